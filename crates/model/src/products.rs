//! Products of `f32` matrices on the processor.

use rayon::prelude::*;

use crate::HostTensor;
use crate::shared_output::{SharedOutput, Strides};

/// Up to so many inputs each is multiplied on its own: to lay out a product of matrices costs more.
const FEW_INPUTS: usize = 4;
/// Rows of a weight that one thread takes at a time.
const ROWS_AT_ONCE: usize = 128;

/// `input · weightᵀ`: a row for each input, a column for each row of the weight.
pub(crate) fn multiply_transposed(input: &HostTensor, weight: &HostTensor) -> HostTensor {
    let columns = input.columns();
    assert_eq!(columns, weight.columns());
    let mut products = HostTensor::zeros([input.rows(), weight.rows()]);
    let output = SharedOutput::new(&mut products);
    weight
        .data()
        .par_chunks(ROWS_AT_ONCE * columns)
        .enumerate()
        .for_each(|(chunk, rows)| {
            let first = chunk * ROWS_AT_ONCE;
            let count = rows.len() / columns;
            if input.rows() > FEW_INPUTS {
                let strides = Strides {
                    row: 1,
                    column: columns,
                };
                return output.write_product(first, count, input, (rows, strides));
            }
            let mut products = [0.0; ROWS_AT_ONCE];
            for index in 0..input.rows() {
                dots(input.row(index), rows, &mut products);
                output.write(index, first, &products[..count]);
            }
        });
    products
}

/// `left · right`.
pub(crate) fn multiply(left: &HostTensor, right: &HostTensor) -> HostTensor {
    assert_eq!(left.columns(), right.rows());
    let columns = right.columns();
    let mut products = HostTensor::zeros([left.rows(), columns]);
    let strides = Strides {
        row: columns,
        column: 1,
    };
    let output = SharedOutput::new(&mut products);
    output.write_product(0, columns, left, (right.data(), strides));
    products
}

/// Dot products of one input with each of some rows.
pub(crate) fn dots(input: &[f32], rows: &[f32], products: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
        #[target_feature(enable = "avx2,fma")]
        fn avx2(input: &[f32], rows: &[f32], products: &mut [f32]) {
            dots_anywhere(input, rows, products);
        }
        #[expect(unsafe_code, reason = "the compiler cannot see the check above")]
        // SAFETY: the processor has the instructions this function is compiled for.
        unsafe {
            avx2(input, rows, products);
        };
        return;
    }
    dots_anywhere(input, rows, products);
}

#[inline(always)]
#[expect(
    clippy::inline_always,
    reason = "it must be compiled with the instructions of its caller"
)]
fn dots_anywhere(input: &[f32], rows: &[f32], products: &mut [f32]) {
    for (product, row) in products.iter_mut().zip(rows.chunks_exact(input.len())) {
        *product = dot(input, row);
    }
}

/// In sixteen sums of their own, so that they need not wait for each other.
#[inline(always)]
pub(crate) fn dot(left: &[f32], right: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut sums = [0.0f32; LANES];
    let (left, left_rest) = left.as_chunks::<LANES>();
    let (right, right_rest) = right.as_chunks::<LANES>();
    for (left, right) in left.iter().zip(right) {
        for lane in 0..LANES {
            sums[lane] += left[lane] * right[lane];
        }
    }
    let rest: f32 = left_rest.iter().zip(right_rest).map(|(l, r)| l * r).sum();
    sums.iter().sum::<f32>() + rest
}
