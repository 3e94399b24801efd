//! Elements in other places: transposes, shuffles, triangles, picks.

use serde_json::json;

use super::OperatorAttempt;
use crate::grammar::builder::{InputDistribution, OperatorCall, ValueId};
use crate::grammar::size::{Argument, Extent};

impl OperatorAttempt<'_> {
    pub(super) fn view(&mut self) -> Option<ValueId> {
        // A view alone computes nothing.
        if self.builder.body.is_empty() && self.is_last() {
            return None;
        }
        let shape = self.shape().clone();
        let rank = shape.len();
        let (given, shape): (Vec<(&str, Argument)>, _) = match self.seed.op.as_str() {
            "flatten" if rank >= 3 => {
                let mut flat = vec![shape[0]];
                let rest = shape[1..]
                    .iter()
                    .fold(Extent::fixed(1), |all, one| all.times(*one));
                flat.push(rest);
                (vec![("start_dim", 1.into())], flat)
            }
            "transpose" if rank >= 2 => {
                let mut turned = shape;
                turned.swap(rank - 2, rank - 1);
                (vec![("dim0", (-2).into()), ("dim1", (-1).into())], turned)
            }
            "t" if rank == 2 => (Vec::new(), vec![shape[1], shape[0]]),
            "permute" if rank >= 3 => {
                let mut order: Vec<usize> = (0..rank).collect();
                order[1..].rotate_left(1);
                let turned = order.iter().map(|at| shape[*at]).collect();
                (vec![("dims", json!(order).into())], turned)
            }
            "movedim" if rank >= 3 => {
                let mut moved = shape;
                let channels = moved.remove(1);
                moved.push(channels);
                (
                    vec![("source", 1.into()), ("destination", (-1).into())],
                    moved,
                )
            }
            "narrow" if rank >= 2 && shape[1].at_least(4) => {
                let half = shape[1].map(|length| Some(length / 2))?;
                let mut narrow = shape;
                narrow[1] = half;
                let given = vec![
                    ("dim", Argument::from(1)),
                    ("start", 0.into()),
                    ("length", Argument::Length(half)),
                ];
                (given, narrow)
            }
            "select" if rank >= 3 => {
                let mut rest = shape;
                rest.remove(1);
                (vec![("dim", 1.into()), ("index", 0.into())], rest)
            }
            "unsqueeze" if rank == 2 || rank == 3 => {
                let mut more = shape;
                more.insert(1, Extent::fixed(1));
                (vec![("dim", 1.into())], more)
            }
            _ => return None,
        };
        self.apply(OperatorCall {
            given,
            domain: self.typed().domain,
            ..self.call(&[self.value], shape)
        })
    }

    pub(super) fn shuffle(&mut self) -> Option<ValueId> {
        if self.rank() != 4 {
            return None;
        }
        let mut shape = self.shape().clone();
        let given: Vec<(&str, Argument)> = match self.seed.op.as_str() {
            "pixel_shuffle" if shape[1].divisible(4) => {
                shape[1] = shape[1].map(|length| Some(length / 4))?;
                shape[2] = shape[2].map(|length| Some(length * 2))?;
                shape[3] = shape[3].map(|length| Some(length * 2))?;
                vec![("upscale_factor", 2.into())]
            }
            "pixel_unshuffle" if shape[2].divisible(2) && shape[3].divisible(2) => {
                shape[1] = shape[1].map(|length| Some(length * 4))?;
                shape[2] = shape[2].map(|length| Some(length / 2))?;
                shape[3] = shape[3].map(|length| Some(length / 2))?;
                vec![("downscale_factor", 2.into())]
            }
            "channel_shuffle" => {
                let groups = self.rng.choose_of([2, 4]);
                if !shape[1].divisible(groups) {
                    return None;
                }
                vec![("groups", groups.into())]
            }
            _ => return None,
        };
        self.apply(OperatorCall {
            given,
            domain: self.typed().domain,
            ..self.call(&[self.value], shape)
        })
    }

    pub(super) fn triangle(&mut self) -> Option<ValueId> {
        if self.rank() < 2 {
            return None;
        }
        let diagonal = self.rng.choose_of([0, 1, -1]);
        let given = if diagonal == 0 {
            Vec::new()
        } else {
            vec![("diagonal", diagonal.into())]
        };
        self.apply(OperatorCall {
            given,
            ..self.call(&[self.value], self.shape().clone())
        })
    }

    pub(super) fn pick(&mut self) -> Option<ValueId> {
        let shape = self.shape().clone();
        if shape.len() < 2 {
            return None;
        }
        let length = shape[1];
        let mut picked = shape;
        picked[1] = length.map(|length| Some((length / 2).max(1)))?;
        let indices = match self.seed.op.as_str() {
            "index_select" => vec![picked[1]],
            _ => picked.clone(),
        };
        let indices = self
            .builder
            .input("index", indices, InputDistribution::Below(length));
        self.apply(OperatorCall {
            given: vec![("dim", 1.into())],
            by_name: true,
            domain: self.typed().domain,
            ..self.call(&[self.value, indices], picked)
        })
    }

    pub(super) fn halving(&mut self) -> Option<ValueId> {
        let mut shape = self.shape().clone();
        let rank = shape.len();
        let dim = if rank >= 3 && self.rng.chance(50) {
            1
        } else {
            rank - 1
        };
        if rank < 2 || !shape[dim].divisible(2) {
            return None;
        }
        shape[dim] = shape[dim].map(|length| Some(length / 2))?;
        let dim = if dim + 1 == rank { -1 } else { 1 };
        self.apply(OperatorCall {
            given: vec![("dim", dim.into())],
            ..self.call(&[self.value], shape)
        })
    }
}
