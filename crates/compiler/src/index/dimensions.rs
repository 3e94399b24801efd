//! A place in a buffer taken apart into its coordinates again.

use super::{Index, linear};

impl Index {
    /// The coordinates that this place in a contiguous buffer was made of, each a sum over loop variables; they may lie beyond the
    /// buffer's borders. Put together they are the same place again; `None` where that cannot be had.
    pub(crate) fn by_dimension(&self, shape: &[i64]) -> Option<Vec<Self>> {
        let mut strides = vec![1; shape.len()];
        for dim in (1..shape.len()).rev() {
            strides[dim - 1] = strides[dim] * shape[dim];
        }
        let mut found = vec![Self::default(); shape.len()];
        for (atom, factor) in &self.terms {
            let fits = |dim: &usize| {
                shape[*dim] > 1 && factor.abs() >= strides[*dim] && factor % strides[*dim] == 0
            };
            let dim = (0..shape.len()).find(fits)?;
            found[dim].add(atom.clone(), factor / strides[dim]);
        }
        let mut rest = self.constant;
        for dim in (0..shape.len()).filter(|dim| shape[*dim] > 1) {
            // To the nearest one: a border is a few steps before the first element.
            let steps = (rest + rest.signum() * strides[dim] / 2) / strides[dim];
            found[dim].constant = steps;
            rest -= steps * strides[dim];
        }
        (linear(shape, &found) == *self).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Var;
    use super::*;

    #[test]
    fn a_window_beyond_the_borders_keeps_its_coordinates() {
        let var = |id: u32, extent: i64| Index::from(Var { id, extent });
        let shape = [8, 256, 53, 59, 10];
        let at = [
            Index::default(),
            var(0, 8 * 256),
            var(1, 18).times(3).plus(&var(2, 3)).offset(-1),
            var(3, 20).times(3).plus(&var(4, 3)).offset(-1),
            var(5, 4).times(3).plus(&var(6, 3)).offset(-1),
        ];
        let place = linear(&shape, &at);
        assert_eq!(place.by_dimension(&shape).as_deref(), Some(&at[..]));
        // A buffer of one element has no dimension to move along.
        assert_eq!(var(7, 10).by_dimension(&[1, 1]), None);
    }
}
