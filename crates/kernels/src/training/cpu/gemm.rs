//! Matrix products on all cores. Every element is summed by one thread in one order, so results do not depend on the number of
//! threads.
#![expect(clippy::many_single_char_names, reason = "the names are those of BLAS")]

use rayon::prelude::*;

use super::real::Real;

/// A matrix in a slice, with any strides.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a, T> {
    data: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// All of a slice, in row-major order.
    pub(super) fn new(data: &'a [T], columns: usize) -> Self {
        Self::strided(data, [data.len() / columns, columns], columns)
    }

    /// Rows of a wider matrix: `row_stride` elements from one to the next.
    pub(super) fn strided(data: &'a [T], [rows, columns]: [usize; 2], row_stride: usize) -> Self {
        assert!(rows == 0 || (rows - 1) * row_stride + columns <= data.len());
        Self {
            data,
            rows,
            columns,
            row_stride,
            column_stride: 1,
        }
    }

    /// The transposed matrix.
    pub(super) fn t(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    pub(super) fn row_count(&self) -> usize {
        self.rows
    }

    /// Rows `first` to `end`.
    pub(super) fn rows(self, first: usize, end: usize) -> Self {
        assert!(first <= end && end <= self.rows);
        Self {
            data: &self.data[first * self.row_stride..],
            rows: end - first,
            ..self
        }
    }

    fn pointer(&self, row: usize, column: usize) -> *const T {
        let offset = row * self.row_stride + column * self.column_stride;
        self.data.as_ptr().wrapping_add(offset)
    }
}

/// Whether a product replaces what is there or is added to it, and what it is multiplied with.
#[derive(Clone, Copy)]
pub(super) struct Scaling<T> {
    pub(super) alpha: T,
    pub(super) beta: T,
}

impl<T: Real> Scaling<T> {
    pub(super) const OVERWRITE: Self = Self {
        alpha: T::ONE,
        beta: T::ZERO,
    };
    pub(super) const ACCUMULATE: Self = Self {
        alpha: T::ONE,
        beta: T::ONE,
    };

    pub(super) fn times(alpha: T) -> Self {
        Self {
            alpha,
            ..Self::OVERWRITE
        }
    }
}

/// Multiplications below which threads cost more than they gain.
const PARALLEL_WORK: usize = 1 << 17;
/// Rows and columns of a thread's part are a multiple of this, as those of the inner kernel.
const TILE: usize = 8;

/// `c = alpha * a · b + beta * c`, where `c` has `c_stride` elements from one row to the next. On all cores.
pub(super) fn gemm<T: Real>(
    c: &mut [T],
    c_stride: usize,
    scaling: Scaling<T>,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
) {
    let (m, n, k) = (a.rows, b.columns, a.columns);
    let threads = rayon::current_num_threads();
    if threads == 1 || m * n * k < PARALLEL_WORK {
        return gemm_single(c, c_stride, scaling, a, b);
    }
    let product = Product::new(c, c_stride, scaling, a, b);
    let (split, by_rows) = if m >= n { (m, true) } else { (n, false) };
    let part = split.div_ceil(threads).next_multiple_of(TILE);
    (0..split.div_ceil(part)).into_par_iter().for_each(|index| {
        let range = [index * part, split.min((index + 1) * part)];
        if by_rows {
            product.compute(range, [0, n]);
        } else {
            product.compute([0, m], range);
        }
    });
}

/// The same by the current thread alone.
pub(super) fn gemm_single<T: Real>(
    c: &mut [T],
    c_stride: usize,
    scaling: Scaling<T>,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
) {
    let (m, n) = (a.rows, b.columns);
    Product::new(c, c_stride, scaling, a, b).compute([0, m], [0, n]);
}

struct Product<'a, T> {
    c: *mut T,
    c_stride: usize,
    scaling: Scaling<T>,
    a: Matrix<'a, T>,
    b: Matrix<'a, T>,
}

#[expect(
    unsafe_code,
    reason = "parts of one matrix are written by several threads"
)]
// SAFETY: `compute` writes only the rows and columns it is given, and `gemm` gives each part to one thread.
unsafe impl<T: Sync> Sync for Product<'_, T> {}

impl<'a, T: Real> Product<'a, T> {
    /// Checks that all elements are within their slices.
    fn new(
        c: &'a mut [T],
        c_stride: usize,
        scaling: Scaling<T>,
        a: Matrix<'a, T>,
        b: Matrix<'a, T>,
    ) -> Self {
        let (m, n) = (a.rows, b.columns);
        assert_eq!(a.columns, b.rows, "the sizes of a product must agree");
        assert!(n <= c_stride && (m == 0 || (m - 1) * c_stride + n <= c.len()));
        Self {
            c: c.as_mut_ptr(),
            c_stride,
            scaling,
            a,
            b,
        }
    }

    fn compute(&self, rows: [usize; 2], columns: [usize; 2]) {
        let strides = |of: &Matrix<'_, T>| (of.row_stride as isize, of.column_stride as isize);
        let (a, b) = (&self.a, &self.b);
        let ((a_rows, a_columns), (b_rows, b_columns)) = (strides(a), strides(b));
        let c = self.c.wrapping_add(rows[0] * self.c_stride + columns[0]);
        #[expect(unsafe_code, reason = "matrix products take pointers")]
        // SAFETY: `new` and `Matrix::strided` checked the sizes; no two threads compute the same part.
        unsafe {
            T::gemm(
                [rows[1] - rows[0], columns[1] - columns[0], a.columns],
                [self.scaling.alpha, self.scaling.beta],
                (a.pointer(rows[0], 0), a_rows, a_columns),
                (b.pointer(0, columns[0]), b_rows, b_columns),
                (c, self.c_stride as isize, 1),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small whole numbers, whose sums are exact.
    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count)
            .map(|place| ((place * 7 + seed) % 11) as f32 - 5.0)
            .collect()
    }

    #[test]
    fn products_are_those_of_plain_loops_whatever_is_transposed_or_split() {
        for (m, n, k) in [
            (1, 1, 1),
            (5, 9, 3),
            (130, 70, 40),
            (40, 200, 70),
            (3, 300, 200),
        ] {
            let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
            let before = numbers(m * (n + 2), 3);
            let mut expected = before.clone();
            for row in 0..m {
                for column in 0..n {
                    let sum: f32 = (0..k).map(|i| a[row * k + i] * b[i * n + column]).sum();
                    expected[row * (n + 2) + column] += 2.0 * sum;
                }
            }
            let transposed = |of: &[f32], rows: usize, columns: usize| -> Vec<f32> {
                let places = (0..columns).flat_map(|c| (0..rows).map(move |r| r * columns + c));
                places.map(|place| of[place]).collect()
            };
            let (a_t, b_t) = (transposed(&a, m, k), transposed(&b, k, n));
            let scaling = Scaling {
                alpha: 2.0,
                beta: 1.0,
            };
            for (left, right) in [
                (Matrix::new(&a, k), Matrix::new(&b, n)),
                (Matrix::new(&a_t, m).t(), Matrix::new(&b, n)),
                (Matrix::new(&a, k), Matrix::new(&b_t, k).t()),
            ] {
                let mut found = before.clone();
                gemm(&mut found, n + 2, scaling, left, right);
                assert_eq!(found, expected, "{m} {n} {k}");
            }
        }
    }
}
