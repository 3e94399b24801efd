//! Matrix products and convolutions: what libraries may be called for.

use crate::scalar::Buffer;

#[derive(Clone)]
pub(super) enum Library {
    Gemm(Gemm),
    Convolution(Convolution),
}

/// Matrices one after the other, or the same for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Operand {
    pub(super) buffer: Buffer,
    pub(super) transposed: bool,
    pub(super) batched: bool,
}

/// What is done to a result before it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Epilogue {
    /// One for each column of a product, each channel of a convolution.
    pub(super) bias: Option<Buffer>,
    pub(super) relu: bool,
}

/// Row-major `out = a b`, `m` by `n`, over `k`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gemm {
    pub(super) batch: i64,
    pub(super) m: i64,
    pub(super) n: i64,
    pub(super) k: i64,
    pub(super) a: Operand,
    pub(super) b: Operand,
    pub(super) out: Buffer,
    pub(super) epilogue: Epilogue,
    /// Both operands were rounded to 16 bits before: TF32 holds them as they are.
    pub(super) narrow: bool,
}

/// In the layout of PyTorch, with one to three dimensions of space.
#[derive(Debug, Clone)]
pub(super) struct Convolution {
    pub(super) batch: i64,
    pub(super) channels: i64,
    pub(super) filters: i64,
    pub(super) groups: i64,
    pub(super) input: Vec<i64>,
    pub(super) kernel: Vec<i64>,
    pub(super) output: Vec<i64>,
    pub(super) stride: Vec<i64>,
    pub(super) padding: Vec<i64>,
    pub(super) dilation: Vec<i64>,
    pub(super) x: Buffer,
    pub(super) weight: Buffer,
    pub(super) out: Buffer,
    /// The gradient of the other way round: what is called a transposed convolution.
    pub(super) transposed: bool,
    pub(super) epilogue: Epilogue,
    /// As of a product.
    pub(super) narrow: bool,
}

impl Library {
    pub(super) fn is_narrow(&self) -> bool {
        match self {
            Self::Gemm(gemm) => gemm.narrow,
            Self::Convolution(convolution) => convolution.narrow,
        }
    }

    pub(super) fn out(&self) -> Buffer {
        match self {
            Self::Gemm(gemm) => gemm.out,
            Self::Convolution(convolution) => convolution.out,
        }
    }

    pub(super) fn reads(&self) -> Vec<Buffer> {
        let (first, second, epilogue) = match self {
            Self::Gemm(gemm) => (gemm.a.buffer, gemm.b.buffer, gemm.epilogue),
            Self::Convolution(conv) => (conv.x, conv.weight, conv.epilogue),
        };
        let mut reads = vec![first];
        for buffer in [Some(second), epilogue.bias].into_iter().flatten() {
            if !reads.contains(&buffer) {
                reads.push(buffer);
            }
        }
        reads
    }

    pub(super) fn epilogue(&mut self) -> &mut Epilogue {
        match self {
            Self::Gemm(gemm) => &mut gemm.epilogue,
            Self::Convolution(convolution) => &mut convolution.epilogue,
        }
    }
}

impl Gemm {
    /// Multiplications and additions.
    pub(super) fn operations(&self) -> i64 {
        let all = [self.batch, self.m, self.n, self.k];
        all.into_iter().fold(2, i64::saturating_mul)
    }
}

impl Convolution {
    /// Multiplications and additions.
    pub(super) fn operations(&self) -> i64 {
        let pixels = if self.transposed {
            &self.input
        } else {
            &self.output
        };
        let all = [self.batch, self.channels / self.groups, self.filters];
        let all = all.iter().chain(pixels).chain(&self.kernel).copied();
        all.fold(2, i64::saturating_mul)
    }

    /// By how much a transposed convolution's result is larger than it must be.
    pub(super) fn output_padding(&self) -> Vec<i64> {
        if !self.transposed {
            return vec![0; self.input.len()];
        }
        let least = |dim: usize| {
            let reach = self.dilation[dim] * (self.kernel[dim] - 1) + 1;
            (self.input[dim] - 1) * self.stride[dim] - 2 * self.padding[dim] + reach
        };
        (0..self.input.len())
            .map(|dim| self.output[dim] - least(dim))
            .collect()
    }
}
