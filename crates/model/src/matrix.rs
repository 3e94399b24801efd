//! Rows of activations, and the matrices they are multiplied with.

use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use rayon::prelude::*;

use crate::ModelError;

/// Activations: one row a token.
#[derive(Debug, Clone, PartialEq)]
pub struct Rows {
    pub data: Vec<f32>,
    pub width: usize,
}

impl Rows {
    pub fn len(&self) -> usize {
        self.data.len() / self.width
    }

    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    pub fn row(&self, index: usize) -> &[f32] {
        &self.data[index * self.width..][..self.width]
    }

    fn from_tensor(tensor: &Tensor, width: usize) -> Result<Self, ModelError> {
        Ok(Self {
            data: tensor.flatten_all()?.to_vec1()?,
            width,
        })
    }

    fn tensor(&self) -> Result<Tensor, ModelError> {
        Ok(Tensor::from_slice(
            &self.data,
            (self.len(), self.width),
            &Device::Cpu,
        )?)
    }
}

/// A weight matrix, `rows x columns`, applied as `x · wᵀ`.
#[derive(Debug, Clone)]
pub enum Matrix {
    /// In `f32`: the processor computes in nothing shorter without rounding more.
    Full(Tensor),
    /// As the file has it.
    Quantised(Arc<QTensor>),
}

impl Matrix {
    pub(crate) fn new(tensor: QTensor) -> candle_core::Result<Self> {
        Ok(match tensor.dtype() {
            GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16 => {
                Self::Full(tensor.dequantize(&Device::Cpu)?)
            }
            _ => Self::Quantised(Arc::new(tensor)),
        })
    }

    pub fn rows(&self) -> usize {
        match self {
            Self::Full(tensor) => tensor.dims()[0],
            Self::Quantised(tensor) => tensor.shape().dims()[0],
        }
    }

    /// The rows with these numbers, as numbers: an embedding.
    pub(crate) fn select(&self, rows: &[u32]) -> Result<Rows, ModelError> {
        let rows = Tensor::new(rows, &Device::Cpu)?;
        let (tensor, width) = match self {
            Self::Full(tensor) => (tensor.index_select(&rows, 0)?, tensor.dims()[1]),
            Self::Quantised(tensor) => (tensor.embedding(&rows)?, tensor.shape().dims()[1]),
        };
        Rows::from_tensor(&tensor, width)
    }

    fn apply(&self, input: &Tensor) -> Result<Rows, ModelError> {
        let output = match self {
            Self::Full(tensor) => input.matmul(&tensor.t()?)?,
            Self::Quantised(tensor) => input.apply_op1_no_bwd(tensor.as_ref())?,
        };
        Rows::from_tensor(&output, self.rows())
    }

    pub(crate) fn forward(&self, input: &Rows) -> Result<Rows, ModelError> {
        self.apply(&input.tensor()?)
    }
}

#[derive(Debug, Clone)]
pub struct Linear {
    pub weight: Matrix,
    pub bias: Option<Vec<f32>>,
}

impl Linear {
    pub(crate) fn forward(&self, input: &Rows) -> Result<Rows, ModelError> {
        Ok(self.biased(self.weight.forward(input)?))
    }

    /// Several layers of the same input, in one pass over it where the processor has one.
    pub(crate) fn forward_all<const N: usize>(
        layers: [&Self; N],
        input: &Rows,
    ) -> Result<[Rows; N], ModelError> {
        let tensor = input.tensor()?;
        let quantised: Vec<&QTensor> = layers
            .iter()
            .filter_map(|layer| match &layer.weight {
                Matrix::Quantised(tensor) => Some(tensor.as_ref()),
                Matrix::Full(_) => None,
            })
            .collect();
        let fused = if quantised.len() == N {
            QTensor::gemv_fused_shared_lhs(&quantised, &tensor)?
        } else {
            None
        };
        let mut outputs = Vec::with_capacity(N);
        for (index, layer) in layers.iter().enumerate() {
            let output = match &fused {
                Some(tensors) => Rows::from_tensor(&tensors[index], layer.weight.rows())?,
                None => layer.weight.apply(&tensor)?,
            };
            outputs.push(layer.biased(output));
        }
        outputs
            .try_into()
            .map_err(|_| candle_core::Error::Msg("a layer gave no output".into()).into())
    }

    fn biased(&self, mut output: Rows) -> Rows {
        if let Some(bias) = &self.bias {
            output
                .data
                .par_chunks_mut(output.width)
                .for_each(|row| row.iter_mut().zip(bias).for_each(|(to, bias)| *to += bias));
        }
        output
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(rows: usize, width: usize, seed: u64) -> Rows {
        use rand::{Rng, SeedableRng};
        let mut random = rand::rngs::StdRng::seed_from_u64(seed);
        Rows {
            data: (0..rows * width)
                .map(|_| random.random_range(-1.0..1.0))
                .collect(),
            width,
        }
    }

    /// One row takes another way through the processor than several, and several layers at once a third.
    #[test]
    fn quantised_products_differ_only_by_eight_bit_inputs() {
        for dtype in [
            GgmlDType::Q4_0,
            GgmlDType::Q4_1,
            GgmlDType::Q8_0,
            GgmlDType::Q4K,
            GgmlDType::Q5K,
            GgmlDType::Q6K,
        ] {
            let numbers = random(64, 512, 1).tensor().unwrap();
            let tensor = QTensor::quantize(&numbers, dtype).unwrap();
            let full = Matrix::Full(tensor.dequantize(&Device::Cpu).unwrap());
            let quantised = Linear {
                weight: Matrix::new(tensor).unwrap(),
                bias: None,
            };
            assert!(matches!(quantised.weight, Matrix::Quantised(_)));
            for rows in [1, 2, 5, 40] {
                let input = random(rows, 512, 2);
                let expected = full.forward(&input).unwrap();
                let [first, second] =
                    Linear::forward_all([&quantised, &quantised], &input).unwrap();
                for found in [quantised.forward(&input).unwrap(), first, second] {
                    let (mut wrong, mut right) = (0.0, 0.0);
                    for (found, expected) in found.data.iter().zip(&expected.data) {
                        wrong += (found - expected).powi(2);
                        right += expected.powi(2);
                    }
                    let share = (wrong / right).sqrt();
                    assert!(share < 0.01, "{dtype:?}, {rows} rows: off by {share}");
                }
            }
        }
    }
}
