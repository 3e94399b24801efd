//! The matrices that activations are multiplied with.

use std::sync::Arc;

use rayon::prelude::*;

use crate::HostTensor;
use crate::adapter::LoraUpdate;
use crate::products;
use crate::quantized::{GgmlTensor, QuantizedMatrix};

/// A weight matrix, `rows x columns`, applied as `x · wᵀ`. Clones share the numbers.
#[derive(Debug, Clone)]
pub enum Matrix {
    /// In `f32`: the processor computes in nothing shorter without rounding more.
    Full(Arc<HostTensor>),
    /// As the file has it.
    Quantized(Arc<QuantizedMatrix>),
}

impl From<HostTensor> for Matrix {
    fn from(numbers: HostTensor) -> Self {
        Self::Full(Arc::new(numbers))
    }
}

impl Matrix {
    /// Quantised where the tensor is.
    pub(crate) fn new(tensor: &GgmlTensor) -> Self {
        match QuantizedMatrix::new(tensor) {
            Some(matrix) => Self::Quantized(Arc::new(matrix)),
            None => tensor.dequantize().into(),
        }
    }

    pub fn rows(&self) -> usize {
        match self {
            Self::Full(tensor) => tensor.rows(),
            Self::Quantized(matrix) => matrix.rows(),
        }
    }

    pub fn columns(&self) -> usize {
        match self {
            Self::Full(tensor) => tensor.columns(),
            Self::Quantized(matrix) => matrix.columns(),
        }
    }

    /// All of it in `f32`.
    pub fn to_f32(&self) -> Arc<HostTensor> {
        match self {
            Self::Full(tensor) => tensor.clone(),
            Self::Quantized(matrix) => Arc::new(matrix.dequantize()),
        }
    }

    /// The rows with these numbers, as numbers: an embedding.
    pub(crate) fn select(&self, rows: &[u32]) -> HostTensor {
        let mut selected = HostTensor::zeros([rows.len(), self.columns()]);
        selected
            .data_mut()
            .par_chunks_mut(self.columns())
            .with_min_len(16)
            .zip(rows)
            .for_each(|(numbers, row)| match self {
                Self::Full(tensor) => numbers.copy_from_slice(tensor.row(*row as usize)),
                Self::Quantized(matrix) => matrix.write_row(*row as usize, numbers),
            });
        selected
    }

    pub(crate) fn forward(&self, input: &HostTensor) -> HostTensor {
        let [output] = Self::forward_all([self], input);
        output
    }

    /// Several matrices on the same input, which is rounded once for all that are quantised.
    fn forward_all<const N: usize>(matrices: [&Self; N], input: &HostTensor) -> [HostTensor; N] {
        let quantized: Vec<&QuantizedMatrix> = matrices
            .iter()
            .filter_map(|matrix| match matrix {
                Self::Quantized(matrix) => Some(matrix.as_ref()),
                Self::Full(_) => None,
            })
            .collect();
        let mut quantized = QuantizedMatrix::multiply_all(&quantized, input).into_iter();
        matrices.map(|matrix| match matrix {
            Self::Full(tensor) => products::multiply_transposed(input, tensor),
            Self::Quantized(matrix) => quantized
                .next()
                .unwrap_or_else(|| HostTensor::zeros([input.rows(), matrix.rows()])),
        })
    }
}

/// A projection: a frozen matrix, and what adapters add to it.
#[derive(Debug, Clone)]
pub struct Linear {
    pub weight: Matrix,
    pub bias: Option<Vec<f32>>,
    pub adapters: Vec<LoraUpdate>,
}

impl Linear {
    pub(crate) fn forward(&self, input: &HostTensor) -> HostTensor {
        let [output] = Self::forward_all([self], input);
        output
    }

    /// Several layers of the same input.
    pub(crate) fn forward_all<const N: usize>(
        layers: [&Self; N],
        input: &HostTensor,
    ) -> [HostTensor; N] {
        let mut outputs = Matrix::forward_all(layers.map(|layer| &layer.weight), input);
        for (output, layer) in outputs.iter_mut().zip(layers) {
            layer.complete(output, input);
        }
        outputs
    }

    /// Adds the bias and the adapters' shares to the matrix's product.
    fn complete(&self, output: &mut HostTensor, input: &HostTensor) {
        if let Some(bias) = &self.bias {
            for row in output.data_mut().chunks_exact_mut(bias.len()) {
                row.iter_mut().zip(bias).for_each(|(to, bias)| *to += bias);
            }
        }
        for adapter in &self.adapters {
            adapter.add_to(output, input);
        }
    }

    /// One matrix in `f32` that does what the frozen one and the adapters do together.
    pub fn merged_weight(&self) -> Arc<HostTensor> {
        let mut numbers = self.weight.to_f32();
        for adapter in &self.adapters {
            Arc::make_mut(&mut numbers).add(&adapter.product());
        }
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantized::GgmlType;
    use crate::quantized::random::{random_input, random_tensor};

    #[test]
    fn quantized_products_differ_only_by_eight_bit_inputs() {
        for ggml_type in GgmlType::ALL {
            let tensor = random_tensor(ggml_type, 64, 512);
            let full = Matrix::from(tensor.dequantize());
            let quantized = Linear {
                weight: Matrix::new(&tensor),
                bias: None,
                adapters: Vec::new(),
            };
            let float = matches!(ggml_type, GgmlType::F32 | GgmlType::F16 | GgmlType::Bf16);
            assert_eq!(matches!(quantized.weight, Matrix::Full(_)), float);
            let selected = quantized.weight.select(&[3, 0]);
            assert_eq!(selected, full.select(&[3, 0]));
            let numbers = quantized.weight.to_f32();
            assert_eq!(Matrix::Full(numbers).select(&[3, 0]), selected);
            for rows in [1, 2, 5, 40] {
                let input = random_input(rows, 512, 2);
                let expected = full.forward(&input);
                let [first, second] = Linear::forward_all([&quantized, &quantized], &input);
                for found in [quantized.forward(&input), first, second] {
                    let (mut wrong, mut right) = (0.0, 0.0);
                    for (found, expected) in found.data().iter().zip(expected.data()) {
                        wrong += (found - expected).powi(2);
                        right += expected.powi(2);
                    }
                    let share = (wrong / right).sqrt();
                    assert!(share < 0.01, "{ggml_type:?}, {rows} rows: off by {share}");
                }
            }
        }
    }

    /// Few inputs are multiplied one by one, many as a matrix; by an oracle in `f64`.
    #[test]
    fn full_products_are_sums_of_products() {
        for (inputs, rows, columns) in [(1, 1, 1), (3, 130, 65), (5, 300, 33), (40, 129, 70)] {
            let (input, weight) = (
                random_input(inputs, columns, 1),
                random_input(rows, columns, 2),
            );
            let found = products::multiply_transposed(&input, &weight);
            assert_eq!(found.shape(), [inputs, rows]);
            for index in 0..inputs {
                for row in 0..rows {
                    let terms = input.row(index).iter().zip(weight.row(row));
                    let expected: f64 = terms.map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                    let found = f64::from(found.row(index)[row]);
                    assert!((found - expected).abs() < 1e-5, "{found} {expected}");
                }
            }
        }
    }
}
