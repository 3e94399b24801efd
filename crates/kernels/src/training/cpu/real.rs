//! The two floating-point types that the CPU backend is written for.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub};

/// `f32`, in which models train, or `f64`, which tests compare with.
pub trait Real:
    Copy
    + Default
    + Send
    + Sync
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + MulAssign
    + Sum
    + 'static
{
    const ZERO: Self;
    const ONE: Self;

    fn from_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
    #[must_use]
    fn exp(self) -> Self;

    /// `c = alpha * a · b + beta * c` for `c[m x n]` and `a[m x k]`, each matrix with its row and column stride.
    ///
    /// # Safety
    ///
    /// All elements of the matrices lie within the allocations that the pointers point into, and nobody else accesses `c`.
    #[doc(hidden)]
    #[expect(unsafe_code, reason = "matrix products take pointers")]
    unsafe fn gemm(
        sizes: [usize; 3],
        factors: [Self; 2],
        a: Strided<Self>,
        b: Strided<Self>,
        c: StridedMut<Self>,
    );
}

/// A matrix of a product: pointer, row stride and column stride.
type Strided<T> = (*const T, isize, isize);
type StridedMut<T> = (*mut T, isize, isize);

macro_rules! real {
    ($type:ty, $gemm:path) => {
        impl Real for $type {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;

            fn from_f64(value: f64) -> Self {
                value as Self
            }

            #[allow(clippy::cast_lossless, reason = "the other type needs no cast")]
            fn to_f64(self) -> f64 {
                self as f64
            }

            fn exp(self) -> Self {
                <$type>::exp(self)
            }

            #[expect(unsafe_code, reason = "matrix products take pointers")]
            unsafe fn gemm(
                [m, n, k]: [usize; 3],
                [alpha, beta]: [Self; 2],
                (a, a_rows, a_columns): Strided<Self>,
                (b, b_rows, b_columns): Strided<Self>,
                (c, c_rows, c_columns): StridedMut<Self>,
            ) {
                // SAFETY: the caller's promise.
                unsafe {
                    $gemm(
                        m, k, n, alpha, a, a_rows, a_columns, b, b_rows, b_columns, beta, c,
                        c_rows, c_columns,
                    );
                }
            }
        }
    };
}

real!(f32, matrixmultiply::sgemm);
real!(f64, matrixmultiply::dgemm);
