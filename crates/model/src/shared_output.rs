//! A matrix that several threads fill, each its own columns.

use std::marker::PhantomData;

use crate::HostTensor;

/// Whoever shares it among threads gives no two of them the same columns.
pub(crate) struct SharedOutput<'a> {
    start: *mut f32,
    rows: usize,
    columns: usize,
    tensor: PhantomData<&'a mut HostTensor>,
}

#[expect(unsafe_code, reason = "threads write to one matrix")]
// SAFETY: nothing is read through it, and threads write different columns.
unsafe impl Sync for SharedOutput<'_> {}

/// How a matrix lies in a slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strides {
    pub(crate) row: usize,
    pub(crate) column: usize,
}

impl<'a> SharedOutput<'a> {
    pub(crate) fn new(tensor: &'a mut HostTensor) -> Self {
        let (rows, columns) = (tensor.rows(), tensor.columns());
        Self {
            start: tensor.data_mut().as_mut_ptr(),
            rows,
            columns,
            tensor: PhantomData,
        }
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Writes neighbours of one row.
    pub(crate) fn write(&self, row: usize, first_column: usize, numbers: &[f32]) {
        assert!(row < self.rows && first_column + numbers.len() <= self.columns);
        #[expect(unsafe_code, reason = "threads write to one matrix")]
        // SAFETY: the matrix has these places, and no other thread writes them.
        unsafe {
            let to = self.start.add(row * self.columns + first_column);
            to.copy_from_nonoverlapping(numbers.as_ptr(), numbers.len());
        }
    }

    /// Writes a product, as many columns as `right` has, from one column on.
    pub(crate) fn write_product(
        &self,
        first_column: usize,
        columns: usize,
        left: &HostTensor,
        (right, strides): (&[f32], Strides),
    ) {
        let inner = left.columns();
        assert!(left.rows() == self.rows && first_column + columns <= self.columns);
        if self.rows == 0 || columns == 0 || inner == 0 {
            return;
        }
        assert!((inner - 1) * strides.row + (columns - 1) * strides.column < right.len());
        #[expect(unsafe_code, reason = "`sgemm` takes pointers")]
        // SAFETY: both operands and these columns of the result lie where the strides say, as was just checked.
        unsafe {
            matrixmultiply::sgemm(
                self.rows,
                inner,
                columns,
                1.0,
                left.data().as_ptr(),
                inner.cast_signed(),
                1,
                right.as_ptr(),
                strides.row.cast_signed(),
                strides.column.cast_signed(),
                0.0,
                self.start.add(first_column),
                self.columns.cast_signed(),
                1,
            );
        }
    }
}
