//! A projection that learns, or has something beside it that does.

use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor};

use crate::TrainError;

/// `y = W·x + bias + scale · B·(A·x)`.
#[derive(Debug)]
pub(super) struct Projected {
    pub(super) weight: Matrix,
    pub(super) bias: Option<Tensor>,
    pub(super) adapter: Option<Adapted>,
}

#[derive(Debug)]
pub(super) enum Matrix {
    Frozen(Tensor),
    Learns(Tensor),
}

#[derive(Debug)]
pub(super) struct Adapted {
    pub(super) a: Tensor,
    pub(super) b: Tensor,
    pub(super) scale: f64,
}

impl Projected {
    pub(super) fn forward(&self, input: &Tensor) -> Result<Tensor, TrainError> {
        let mut output = self.weight.forward(input)?;
        if let Some(bias) = &self.bias {
            output = output.broadcast_add(bias)?;
        }
        if let Some(Adapted { a, b, scale }) = &self.adapter {
            let inner = input.matmul(&a.t()?)?.affine(*scale, 0.0)?;
            output = (output + inner.matmul(&b.t()?)?)?;
        }
        Ok(output)
    }
}

impl Matrix {
    pub(super) fn tensor(&self) -> &Tensor {
        match self {
            Self::Frozen(tensor) | Self::Learns(tensor) => tensor,
        }
    }

    fn forward(&self, input: &Tensor) -> Result<Tensor, TrainError> {
        Ok(match self {
            Self::Learns(weight) => input.matmul(&weight.t()?)?,
            Self::Frozen(weight) => input
                .contiguous()?
                .apply_op1(FrozenProduct(weight.clone()))?,
        })
    }
}

/// `x · Wᵀ` for a matrix that does not learn. candle's own product would work out the gradient of the matrix all the same,
/// which costs as much as the one that is wanted.
struct FrozenProduct(Tensor);

impl CustomOp1 for FrozenProduct {
    fn name(&self) -> &'static str {
        "frozen product"
    }

    fn cpu_fwd(
        &self,
        storage: &CpuStorage,
        layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            candle_core::bail!("rows of a product must lie one after the other")
        };
        let rows = &storage.as_slice::<f32>()?[start..end];
        let input = Tensor::from_slice(rows, layout.shape(), self.0.device())?;
        let output = input.matmul(&self.0.t()?)?;
        let shape = output.shape().clone();
        let numbers = output.flatten_all()?.to_vec1::<f32>()?;
        Ok((CpuStorage::F32(numbers), shape))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, slopes: &Tensor) -> candle_core::Result<Option<Tensor>> {
        Ok(Some(slopes.matmul(&self.0)?))
    }
}
