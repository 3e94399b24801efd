//! Rows of activations, and the matrices they are multiplied with.

use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};

use crate::ModelError;
use crate::adapter::LowRank;
use crate::q4_1::Q4_1;

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

    pub(crate) fn from_tensor(tensor: &Tensor, width: usize) -> Result<Self, ModelError> {
        Ok(Self {
            data: tensor.flatten_all()?.to_vec1()?,
            width,
        })
    }

    pub(crate) fn tensor(&self) -> Result<Tensor, ModelError> {
        Ok(Tensor::from_slice(
            &self.data,
            (self.len(), self.width),
            &Device::Cpu,
        )?)
    }

    /// Number by number.
    pub(crate) fn add(&mut self, other: &Self) {
        for (to, from) in self.data.iter_mut().zip(&other.data) {
            *to += from;
        }
    }
}

/// A weight matrix, `rows x columns`, applied as `x · wᵀ`.
#[derive(Debug, Clone)]
pub enum Matrix {
    /// In `f32`: the processor computes in nothing shorter without rounding more.
    Full(Tensor),
    /// As the file has it.
    Quantised(Arc<QTensor>),
    /// The same in a format we multiply ourselves.
    Q4_1(Arc<Q4_1>),
}

impl Matrix {
    pub(crate) fn new(tensor: QTensor) -> candle_core::Result<Self> {
        Ok(match tensor.dtype() {
            GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16 => {
                Self::Full(tensor.dequantize(&Device::Cpu)?)
            }
            GgmlDType::Q4_1 => {
                let (rows, columns) = tensor.shape().dims2()?;
                match Q4_1::new(&tensor.data()?, rows, columns) {
                    Some(matrix) => Self::Q4_1(Arc::new(matrix)),
                    None => Self::Quantised(Arc::new(tensor)),
                }
            }
            _ => Self::Quantised(Arc::new(tensor)),
        })
    }

    pub fn rows(&self) -> usize {
        match self {
            Self::Full(tensor) => tensor.dims()[0],
            Self::Quantised(tensor) => tensor.shape().dims()[0],
            Self::Q4_1(matrix) => matrix.rows(),
        }
    }

    pub fn columns(&self) -> usize {
        match self {
            Self::Full(tensor) => tensor.dims()[1],
            Self::Quantised(tensor) => tensor.shape().dims()[1],
            Self::Q4_1(matrix) => matrix.columns(),
        }
    }

    /// All of it in `f32`.
    pub fn numbers(&self) -> Result<Tensor, ModelError> {
        match self {
            Self::Full(tensor) => Ok(tensor.clone()),
            Self::Quantised(tensor) => Ok(tensor.dequantize(&Device::Cpu)?),
            Self::Q4_1(matrix) => {
                let mut data = Vec::with_capacity(matrix.rows() * matrix.columns());
                for row in 0..matrix.rows() {
                    matrix.extend_row(row, &mut data);
                }
                let shape = (matrix.rows(), matrix.columns());
                Ok(Tensor::from_vec(data, shape, &Device::Cpu)?)
            }
        }
    }

    /// The rows with these numbers, as numbers: an embedding.
    pub(crate) fn select(&self, rows: &[u32]) -> Result<Rows, ModelError> {
        let indices = Tensor::new(rows, &Device::Cpu)?;
        match self {
            Self::Full(tensor) => {
                Rows::from_tensor(&tensor.index_select(&indices, 0)?, tensor.dims()[1])
            }
            Self::Quantised(tensor) => {
                Rows::from_tensor(&tensor.embedding(&indices)?, tensor.shape().dims()[1])
            }
            Self::Q4_1(matrix) => {
                let mut data = Vec::with_capacity(rows.len() * matrix.columns());
                for &row in rows {
                    matrix.extend_row(row as usize, &mut data);
                }
                Ok(Rows {
                    data,
                    width: matrix.columns(),
                })
            }
        }
    }

    pub(crate) fn forward(&self, input: &Rows) -> Result<Rows, ModelError> {
        let output = match self {
            Self::Full(tensor) => input.tensor()?.matmul(&tensor.t()?)?,
            Self::Quantised(tensor) => input.tensor()?.apply_op1_no_bwd(tensor.as_ref())?,
            Self::Q4_1(matrix) => return Ok(matrix.forward(input)),
        };
        Rows::from_tensor(&output, self.rows())
    }
}

/// A projection: a frozen matrix, and what adapters add to it.
#[derive(Debug, Clone)]
pub struct Linear {
    pub weight: Matrix,
    pub bias: Option<Vec<f32>>,
    pub adapters: Vec<LowRank>,
}

impl Linear {
    pub(crate) fn forward(&self, input: &Rows) -> Result<Rows, ModelError> {
        self.completed(self.weight.forward(input)?, input)
    }

    /// Several layers of the same input, in one pass over it where the processor has one.
    pub(crate) fn forward_all<const N: usize>(
        layers: [&Self; N],
        input: &Rows,
    ) -> Result<[Rows; N], ModelError> {
        let quantised: Vec<&QTensor> = layers
            .iter()
            .filter_map(|layer| match &layer.weight {
                Matrix::Quantised(tensor) => Some(tensor.as_ref()),
                Matrix::Full(_) | Matrix::Q4_1(_) => None,
            })
            .collect();
        let fused = if quantised.len() == N {
            QTensor::gemv_fused_shared_lhs(&quantised, &input.tensor()?)?
        } else {
            None
        };
        let mut outputs = Vec::with_capacity(N);
        for (index, layer) in layers.iter().enumerate() {
            let output = match &fused {
                Some(tensors) => Rows::from_tensor(&tensors[index], layer.weight.rows())?,
                None => layer.weight.forward(input)?,
            };
            outputs.push(layer.completed(output, input)?);
        }
        outputs
            .try_into()
            .map_err(|_| candle_core::Error::Msg("a layer gave no output".into()).into())
    }

    /// The matrix's product with the bias and the adapters' shares.
    fn completed(&self, mut output: Rows, input: &Rows) -> Result<Rows, ModelError> {
        if let Some(bias) = &self.bias {
            for row in output.data.chunks_exact_mut(output.width) {
                row.iter_mut().zip(bias).for_each(|(to, bias)| *to += bias);
            }
        }
        for adapter in &self.adapters {
            adapter.add_to(&mut output, input)?;
        }
        Ok(output)
    }

    /// One matrix in `f32` that does what the frozen one and the adapters do together.
    pub fn merged_weight(&self) -> Result<Tensor, ModelError> {
        let mut numbers = self.weight.numbers()?;
        for adapter in &self.adapters {
            numbers = (numbers + adapter.product()?)?;
        }
        Ok(numbers)
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
                adapters: Vec::new(),
            };
            assert!(!matches!(quantised.weight, Matrix::Full(_)));
            let selected = quantised.weight.select(&[3, 0]).unwrap();
            assert_eq!(selected, full.select(&[3, 0]).unwrap());
            let numbers = quantised.weight.numbers().unwrap();
            assert_eq!(Matrix::Full(numbers).select(&[3, 0]).unwrap(), selected);
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
