//! Backward of the embedding. Training uses the forward kernel of inference.

use cudarc::driver::{CudaViewMut as ViewMut, DeviceRepr};

use crate::launch::LaunchShape;
use crate::{Buffer, Gpu, GpuError};

/// Where one token occurs in a batch: `count` entries of an order of rows, from `first` on.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenOccurrences {
    pub token: u32,
    pub first: u32,
    pub count: u32,
}

#[expect(unsafe_code, reason = "plain numbers, laid out as the kernel's struct")]
// SAFETY: see the reason.
unsafe impl DeviceRepr for TokenOccurrences {}

impl TokenOccurrences {
    /// Rows sorted by token, and each token's part of that order.
    pub fn of(tokens: &[u32]) -> (Vec<u32>, Vec<Self>) {
        // Token and row as one key: faster than sorting rows by their tokens.
        let mut keys: Vec<u64> = (0u64..)
            .zip(tokens)
            .map(|(row, token)| (u64::from(*token) << 32) | row)
            .collect();
        keys.sort_unstable();
        let order: Vec<u32> = keys.iter().map(|key| *key as u32).collect();
        let mut occurrences: Vec<Self> = Vec::new();
        for (index, row) in order.iter().enumerate() {
            let token = tokens[*row as usize];
            match occurrences.last_mut() {
                Some(last) if last.token == token => last.count += 1,
                _ => occurrences.push(Self {
                    token,
                    first: index as u32,
                    count: 1,
                }),
            }
        }
        (order, occurrences)
    }
}

const THREADS: usize = 256;

#[repr(C)]
struct EmbeddingBwdParams {
    d_table: u64,
    d_rows: u64,
    order: u64,
    occurrences: u64,
    width: i32,
}

#[expect(unsafe_code, reason = "launches kernels; sizes are checked before")]
impl Gpu {
    /// Adds each row's gradient to that of its token's row of the table.
    pub fn embedding_bwd(
        &self,
        d_table: &mut ViewMut<'_, f32>,
        (d_rows, width): (&Buffer<f32>, usize),
        order: &Buffer<u32>,
        (occurrences, count): (&Buffer<TokenOccurrences>, usize),
    ) -> Result<(), GpuError> {
        Self::check_width(width)?;
        assert!(occurrences.len() >= count);
        let params = EmbeddingBwdParams {
            d_table: self.address(d_table),
            d_rows: self.address(d_rows),
            order: self.address(order),
            occurrences: self.address(occurrences),
            width: width as i32,
        };
        let launch = LaunchShape::new((count, width.div_ceil(128), 1), THREADS);
        // SAFETY: the caller guarantees that tokens and rows exist.
        unsafe { self.launch(&self.training_kernels()?.embedding_bwd, &launch, &params) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_ordered_by_token_and_stay_in_order_within() {
        let (order, occurrences) = TokenOccurrences::of(&[7, 3, 7, 0, 3, 7]);
        assert_eq!(order, [3, 1, 4, 0, 2, 5]);
        let occurrences: Vec<_> = occurrences
            .iter()
            .map(|one| (one.token, one.first, one.count))
            .collect();
        assert_eq!(occurrences, [(0, 0, 1), (3, 1, 2), (7, 3, 3)]);
    }
}
