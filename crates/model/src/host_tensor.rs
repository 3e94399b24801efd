//! Numbers in memory with a shape: what files, adapters, exports and the forward pass exchange.

use std::borrow::Cow;

/// `f32` numbers in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub struct HostTensor {
    shape: Vec<usize>,
    data: Vec<f32>,
}

impl HostTensor {
    /// Panics where the shape does not hold exactly these numbers.
    pub fn new(shape: impl Into<Vec<usize>>, data: Vec<f32>) -> Self {
        let shape = shape.into();
        assert_eq!(shape.iter().product::<usize>(), data.len());
        Self { shape, data }
    }

    pub fn zeros(shape: impl Into<Vec<usize>>) -> Self {
        let shape = shape.into();
        let data = vec![0.0; shape.iter().product()];
        Self { shape, data }
    }

    pub fn vector(data: Vec<f32>) -> Self {
        Self {
            shape: vec![data.len()],
            data,
        }
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub fn data(&self) -> &[f32] {
        &self.data
    }

    pub fn data_mut(&mut self) -> &mut [f32] {
        &mut self.data
    }

    pub fn into_data(self) -> Vec<f32> {
        self.data
    }

    /// The length of the last dimension.
    pub fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// How many rows of [`columns`](Self::columns) numbers there are.
    pub fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    pub fn row(&self, index: usize) -> &[f32] {
        let columns = self.columns();
        &self.data[index * columns..][..columns]
    }

    /// Adds another tensor of the same shape.
    pub(crate) fn add(&mut self, other: &Self) {
        debug_assert_eq!(self.shape, other.shape);
        for (sum, term) in self.data.iter_mut().zip(&other.data) {
            *sum += term;
        }
    }
}

impl safetensors::View for &HostTensor {
    fn dtype(&self) -> safetensors::Dtype {
        safetensors::Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let mut bytes = vec![0; self.data_len()];
        for (bytes, number) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(&self.data) {
            *bytes = number.to_le_bytes();
        }
        bytes.into()
    }

    fn data_len(&self) -> usize {
        4 * self.data.len()
    }
}
