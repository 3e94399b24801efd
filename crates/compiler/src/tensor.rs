//! Tensors that are not there yet: each knows how to compute any of its elements.

use std::rc::Rc;

use crate::index::{Index, linear, reshaped};
use crate::scalar::{Arena, BoundsCheck, Buffer, ElementType, Node, Scalar, ScalarType, Unary};

/// The value at some coordinates.
pub(super) type Body = Rc<dyn Fn(&mut Arena, &[Index]) -> Scalar>;

#[derive(Clone)]
pub(super) struct Tensor {
    pub(super) shape: Vec<i64>,
    pub(super) kind: ScalarType,
    /// How its elements lie in memory, or would if it were stored.
    pub(super) element: ElementType,
    pub(super) at: Body,
    /// What it costs to compute an element over and over; zero for one that is loaded.
    pub(super) work: u32,
    /// Where it lies, contiguous and whole, if it does.
    pub(super) buffer: Option<Buffer>,
    /// What it is with its dimensions in another order, and that order.
    pub(super) turned: Option<(Rc<Tensor>, Vec<usize>)>,
}

impl Tensor {
    pub(super) fn of_buffer(buffer: Buffer, shape: &[i64], element: ElementType) -> Self {
        let extents = shape.to_vec();
        Self {
            shape: shape.to_vec(),
            kind: element.scalar(),
            element,
            at: Rc::new(move |arena, at| arena.load(buffer, linear(&extents, at))),
            work: 0,
            buffer: Some(buffer),
            turned: None,
        }
    }

    /// A new one, computed from elements of others.
    pub(super) fn computed(
        shape: &[i64],
        kind: ScalarType,
        work: u32,
        at: impl Fn(&mut Arena, &[Index]) -> Scalar + 'static,
    ) -> Self {
        Self {
            shape: shape.to_vec(),
            kind,
            element: kind.into(),
            at: Rc::new(at),
            work,
            buffer: None,
            turned: None,
        }
    }

    pub(super) fn constant(value: f64, shape: &[i64]) -> Self {
        Self::computed(shape, ScalarType::Float, 0, move |arena, _| {
            arena.constant(value)
        })
    }

    /// One number everywhere.
    pub(super) fn number(value: f64, kind: ScalarType, shape: &[i64]) -> Self {
        Self::computed(shape, kind, 0, move |arena, _| match kind {
            ScalarType::Float => arena.constant(value),
            ScalarType::Int | ScalarType::Bool => arena.int(value as i64),
        })
    }

    pub(super) fn to_float(&self) -> Self {
        if self.kind == ScalarType::Float {
            return self.clone();
        }
        let inner = self.at.clone();
        Self::computed(
            &self.shape,
            ScalarType::Float,
            self.work,
            move |arena, at| {
                let value = inner(arena, at);
                arena.unary(Unary::ToFloat, value)
            },
        )
    }

    /// Whole numbers; of a mask, ones and zeros.
    pub(super) fn to_whole(&self) -> Self {
        let inner = self.at.clone();
        match self.kind {
            ScalarType::Int => self.clone(),
            ScalarType::Float | ScalarType::Bool => {
                Self::computed(&self.shape, ScalarType::Int, self.work, move |arena, at| {
                    let value = inner(arena, at);
                    arena.unary(Unary::ToInt, value)
                })
            }
        }
    }

    /// The same values, stored in another way. A buffer of another type is no longer its own.
    pub(super) fn stored_as(&self, element: ElementType) -> Self {
        if self.element == element {
            return self.clone();
        }
        Self {
            element,
            buffer: None,
            turned: None,
            ..self.clone()
        }
    }

    pub(super) fn count(&self) -> i64 {
        self.shape.iter().product()
    }

    pub(super) fn rank(&self) -> usize {
        self.shape.len()
    }

    /// The same elements under other coordinates.
    pub(super) fn view(
        &self,
        shape: &[i64],
        map: impl Fn(&[Index]) -> Vec<Index> + 'static,
    ) -> Self {
        let inner = self.at.clone();
        Self {
            shape: shape.to_vec(),
            kind: self.kind,
            element: self.element,
            at: Rc::new(move |arena, at| inner(arena, &map(at))),
            work: self.work,
            buffer: None,
            turned: None,
        }
    }

    /// Elements keep their order.
    pub(super) fn reshaped(&self, shape: &[i64]) -> Self {
        let (from, to) = (self.shape.clone(), shape.to_vec());
        let mut view = self.view(shape, move |at| reshaped(&to, &from, at));
        view.buffer = self.buffer;
        // A buffer under another shape is a buffer.
        if let Some(buffer) = self.buffer {
            view.at = Self::of_buffer(buffer, shape, self.element).at;
        }
        view
    }

    pub(super) fn permuted(&self, dims: &[usize]) -> Self {
        let shape: Vec<i64> = dims.iter().map(|dim| self.shape[*dim]).collect();
        let order = dims.to_vec();
        let moves = order.iter().enumerate().any(|(to, from)| to != *from);
        if !moves {
            return self.clone();
        }
        let mut view = self.view(&shape, move |at| {
            let mut from = vec![Index::default(); at.len()];
            for (to, dim) in order.iter().enumerate() {
                from[*dim] = at[to].clone();
            }
            from
        });
        view.turned = Some((Rc::new(self.clone()), dims.to_vec()));
        view
    }

    pub(super) fn transposed(&self, a: usize, b: usize) -> Self {
        let mut dims: Vec<usize> = (0..self.rank()).collect();
        dims.swap(a, b);
        self.permuted(&dims)
    }

    /// Repeated along dimensions that are missing or have one element.
    pub(super) fn broadcast(&self, shape: &[i64]) -> Self {
        if self.shape == shape {
            return self.clone();
        }
        let skipped = shape.len() - self.rank();
        let own = self.shape.clone();
        self.view(shape, move |at| {
            own.iter()
                .zip(&at[skipped..])
                .map(|(extent, index)| {
                    if *extent == 1 {
                        Index::default()
                    } else {
                        index.clone()
                    }
                })
                .collect()
        })
    }

    /// Elements from `start` on, every `step`th.
    pub(super) fn sliced(&self, dim: usize, start: i64, count: i64, step: i64) -> Self {
        let mut shape = self.shape.clone();
        shape[dim] = count;
        self.view(&shape, move |at| {
            let mut from = at.to_vec();
            from[dim] = from[dim].times(step).offset(start);
            from
        })
    }

    /// The element that a window meets; `outside` where it meets none.
    pub(super) fn beyond(&self, arena: &mut Arena, at: &[Index], outside: f64) -> Scalar {
        let guard: Vec<BoundsCheck> = self
            .shape
            .iter()
            .zip(at)
            .filter_map(|(extent, index)| BoundsCheck::new(index.clone(), 0, *extent))
            .collect();
        let value = (self.at)(arena, at);
        if guard.is_empty() {
            return value;
        }
        let value = arena.guarded(value, &guard);
        // A load that is guarded is zero outside.
        let is_zero = |guarded: &[BoundsCheck]| guard.iter().all(|within| guarded.contains(within));
        if outside.to_bits() == 0
            && matches!(arena.node(value), Node::Load { guard, .. } if is_zero(guard))
        {
            return value;
        }
        let outside = match self.kind {
            ScalarType::Float => arena.constant(outside),
            ScalarType::Int | ScalarType::Bool => arena.int(outside as i64),
        };
        let inside = arena.in_bounds(guard);
        arena.select(inside, value, outside)
    }
}
