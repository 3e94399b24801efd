//! Which rows a kernel has: reductions that fit are computed in the kernel that needs them.

use std::collections::BTreeSet;
use std::rc::Rc;

use warpsmith_schema::Target;

use super::{IndexMap, Plan, RowKernel, RowReduction};
use crate::index::{Index, coordinates, linear};
use crate::scalar::{Buffer, ReductionId, Scalar};
use crate::tensor::Tensor;

impl Plan {
    pub(super) fn row_kernel(&mut self, tensor: &Tensor) -> RowKernel {
        let cells = RowKernel {
            outer: Vec::new(),
            reductions: Vec::new(),
            row_shape: tensor.shape.clone(),
            index_map: Rc::new(|_, cell| cell.to_vec()),
            shape: tensor.shape.clone(),
            value: tensor.at.clone(),
            out: Buffer(usize::MAX),
        };
        let domain = self.variables(&tensor.shape);
        let value = (tensor.at)(&mut self.arena, &domain);
        let unmade = self.pending_reductions(value);
        if unmade.is_empty() {
            return cells;
        }
        for (first, at) in &unmade {
            let shaped = self
                .by_prefix(tensor, *first)
                .or_else(|| self.by_dims(tensor, *first, at, &domain));
            if let Some(mut rows) = shaped
                && !self.is_split(*first)
                && self.has_enough_rows(&rows)
            {
                self.fuse(&mut rows);
                return rows;
            }
        }
        for (reduction, _) in unmade {
            if !self.shorten(reduction) {
                self.materialize_reduction(reduction);
            }
        }
        self.row_kernel(tensor)
    }

    /// Whether there are enough rows for the number of elements that each of them stores.
    fn has_enough_rows(&self, rows: &RowKernel) -> bool {
        let (count, cells): (i64, i64) =
            (rows.outer.iter().product(), rows.row_shape.iter().product());
        let few = match self.target {
            Target::Cpu => 8,
            Target::Cuda => 512,
        };
        count >= few || cells < 1 << 14 || self.is_regular()
    }

    /// Rows are a prefix of the order of elements.
    fn by_prefix(&mut self, tensor: &Tensor, first: ReductionId) -> Option<RowKernel> {
        let rows = self.reductions[first.0].rows();
        let count = tensor.count();
        if rows == 0 || count % rows != 0 {
            return None;
        }
        let cells = count / rows;
        let shape = tensor.shape.clone();
        let place = move |row: &[Index], cell: &[Index]| {
            coordinates(
                &shape,
                &linear(&[rows, cells], &[row[0].clone(), cell[0].clone()]),
            )
        };
        let found = RowKernel {
            outer: vec![rows],
            reductions: Vec::new(),
            row_shape: vec![cells],
            index_map: Rc::new(place),
            shape: tensor.shape.clone(),
            value: tensor.at.clone(),
            out: Buffer(usize::MAX),
        };
        self.fits(&found).then_some(found)
    }

    /// Rows are some dimensions, and the elements of a row are the others.
    fn by_dims(
        &mut self,
        tensor: &Tensor,
        first: ReductionId,
        at: &[Index],
        domain: &[Index],
    ) -> Option<RowKernel> {
        let outer = self.reductions[first.0].outer.clone();
        let mut dims = Vec::new();
        for (index, extent) in at.iter().zip(&outer) {
            if *extent == 1 {
                continue;
            }
            dims.push(domain.iter().position(|known| known == index)?);
        }
        dims.sort_unstable();
        let others: Vec<usize> = (0..tensor.rank())
            .filter(|dim| !dims.contains(dim))
            .collect();
        let extents = |of: &[usize]| of.iter().map(|dim| tensor.shape[*dim]).collect::<Vec<_>>();
        let (rows, cells) = (extents(&dims), extents(&others));
        let rank = tensor.rank();
        let found = RowKernel {
            outer: rows,
            reductions: Vec::new(),
            row_shape: cells,
            index_map: Rc::new(move |row, cell| {
                let mut place = vec![Index::default(); rank];
                for (dim, index) in dims.iter().zip(row) {
                    place[*dim] = index.clone();
                }
                for (dim, index) in others.iter().zip(cell) {
                    place[*dim] = index.clone();
                }
                place
            }),
            shape: tensor.shape.clone(),
            value: tensor.at.clone(),
            out: Buffer(usize::MAX),
        };
        self.fits(&found).then_some(found)
    }

    /// Whether at least one reduction can be computed in these rows.
    fn fits(&mut self, rows: &RowKernel) -> bool {
        let (row, cell) = (self.variables(&rows.outer), self.variables(&rows.row_shape));
        let value = (rows.value)(&mut self.arena, &(rows.index_map)(&row, &cell));
        let found = self.pending_reductions(value);
        found
            .iter()
            .any(|(reduction, at)| self.outer(*reduction, at, &row).is_some())
    }

    /// From rows to the results of a reduction, if every row is one of them.
    fn outer(&self, reduction: ReductionId, at: &[Index], row: &[Index]) -> Option<IndexMap> {
        let extents = self.reductions[reduction.0].outer.clone();
        let rows: i64 = row.iter().map(|index| index.range().1 + 1).product();
        if rows != self.reductions[reduction.0].rows() {
            return None;
        }
        if let [only] = row
            && coordinates(&extents, only) == at
        {
            return Some(Rc::new(move |row| coordinates(&extents, &row[0])));
        }
        let mut from = Vec::new();
        for (index, extent) in at.iter().zip(&extents) {
            from.push(match row.iter().position(|known| known == index) {
                Some(place) => Some(place),
                None if *extent == 1 => None,
                None => return None,
            });
        }
        Some(Rc::new(move |row| {
            let pick = |place: &Option<usize>| place.map_or(Index::default(), |at| row[at].clone());
            from.iter().map(pick).collect()
        }))
    }

    /// Fuses every reduction that fits, each after those it needs. Earlier kernels compute the others.
    fn fuse(&mut self, rows: &mut RowKernel) {
        let (row, cell) = (self.variables(&rows.outer), self.variables(&rows.row_shape));
        let value = (rows.value)(&mut self.arena, &(rows.index_map)(&row, &cell));
        let mut seen = BTreeSet::new();
        self.fuse_reduction(value, &row, rows, &mut seen);
    }

    fn fuse_reduction(
        &mut self,
        value: Scalar,
        row: &[Index],
        rows: &mut RowKernel,
        seen: &mut BTreeSet<ReductionId>,
    ) {
        for (reduction, at) in self.pending_reductions(value) {
            let fits = self.outer(reduction, &at, row);
            let is_split = self.is_split(reduction);
            let Some(outer) = fits.filter(|_| !is_split) else {
                self.materialize_reduction(reduction);
                continue;
            };
            if !seen.insert(reduction) {
                continue;
            }
            let known = self.reductions[reduction.0].clone();
            let inner = self.variables(&known.extents);
            let body = (known.body)(&mut self.arena, &outer(row), &inner);
            self.fuse_reduction(body, row, rows, seen);
            rows.reductions.push(RowReduction { reduction, outer });
        }
    }
}
