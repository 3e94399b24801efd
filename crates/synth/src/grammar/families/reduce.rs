//! Along dimensions: scans, sums, extremes, orders.

use serde_json::json;
use warpsmith_schema::Dtype;

use super::OperatorAttempt;
use crate::grammar::builder::{OperatorCall, ValueId};
use crate::grammar::size::{Argument, Extent};
use crate::seeds::ValueDomain;

impl OperatorAttempt<'_> {
    /// The last dimension, or that of channels.
    fn dimension(&mut self) -> usize {
        let rank = self.rank();
        if rank >= 3 && self.rng.chance(40) {
            1
        } else {
            rank - 1
        }
    }

    /// The last dimension is mostly spelled from behind.
    fn spelled(&mut self, dim: usize) -> Argument {
        if dim + 1 == self.rank() && self.rng.chance(60) {
            Argument::from(-1)
        } else {
            Argument::from(dim)
        }
    }

    pub(super) fn scan(&mut self) -> Option<ValueId> {
        // A product of many is zero or infinite.
        if self.seed.op == "cumprod" || self.rank() < 2 {
            return None;
        }
        let dim = self.dimension();
        if !self.shape()[dim].at_least(4) {
            return None;
        }
        let domain = match self.seed.op.as_str() {
            "softmax" | "softmin" => ValueDomain::NonNegative,
            "normalize" => ValueDomain::Symmetric,
            _ => ValueDomain::Real,
        };
        let dim = self.spelled(dim);
        self.apply(OperatorCall {
            given: vec![("dim", dim)],
            domain,
            ..self.call(&[self.value], self.shape().clone())
        })
    }

    pub(super) fn reduction(&mut self) -> Option<ValueId> {
        let op = self.seed.op.as_str();
        // A product of many is zero or infinite; quantiles have a limit on elements below any size of ours.
        if op == "prod" || op.contains("quantile") || self.rank() < 2 {
            return None;
        }
        let shape = self.shape().clone();
        let several = matches!(
            op,
            "sum" | "mean" | "amax" | "amin" | "logsumexp" | "var" | "std" | "nansum" | "nanmean"
        );
        let keep = op != "trapezoid" && self.rng.chance(30);
        let domain = match op {
            "std" | "var" => ValueDomain::NonNegative,
            "sum" | "mean" | "nansum" | "nanmean" | "amax" | "amin" => self.typed().domain,
            _ => ValueDomain::Real,
        };
        let domain = if op.ends_with("sum") && domain == ValueDomain::Symmetric {
            ValueDomain::Real
        } else {
            domain
        };
        let mut given: Vec<(&str, Argument)>;
        let mut reduced = shape.clone();
        if several && shape.len() >= 4 && self.rng.chance(50) {
            let dims: Vec<usize> = (2..shape.len()).collect();
            for dim in dims.iter().rev() {
                if keep {
                    reduced[*dim] = Extent::fixed(1);
                } else {
                    reduced.remove(*dim);
                }
            }
            given = vec![("dim", json!(dims).into())];
        } else if several && op != "logsumexp" && self.is_last() && !keep && self.rng.chance(15) {
            // Everything.
            reduced.clear();
            let all: Vec<usize> = (0..shape.len()).collect();
            given = vec![("dim", json!(all).into())];
        } else {
            let dim = self.dimension();
            if !shape[dim].at_least(2) {
                return None;
            }
            if keep {
                reduced[dim] = Extent::fixed(1);
            } else {
                reduced.remove(dim);
            }
            given = vec![("dim", self.spelled(dim))];
        }
        if keep {
            given.push(("keepdim", true.into()));
        }
        self.apply(OperatorCall {
            given,
            domain: if domain == ValueDomain::Unit {
                ValueDomain::Positive
            } else {
                domain
            },
            ..self.call(&[self.value], reduced)
        })
    }

    pub(super) fn ranked_reduction(&mut self) -> Option<ValueId> {
        if self.rank() < 2 {
            return None;
        }
        let dim = self.dimension();
        let mut shape = self.shape().clone();
        shape.remove(dim);
        let dim = self.spelled(dim);
        self.apply(OperatorCall {
            given: vec![("dim", dim)],
            domain: self.typed().domain,
            pick: Some(0),
            ..self.call(&[self.value], shape)
        })
    }

    pub(super) fn ranked(&mut self) -> Option<ValueId> {
        if self.rank() < 2 {
            return None;
        }
        let dim = self.dimension();
        let mut shape = self.shape().clone();
        let mut given = Vec::new();
        if self.seed.op == "topk" {
            let k = self.rng.choose_of([4, 8]);
            if !shape[dim].at_least(k) {
                return None;
            }
            shape[dim] = Extent::fixed(k);
            given.push(("k", k.into()));
        }
        if self.seed.op == "sort" && self.rng.chance(40) {
            given.push(("descending", true.into()));
        }
        given.push(("dim", self.spelled(dim)));
        self.apply(OperatorCall {
            given,
            domain: self.typed().domain,
            pick: Some(0),
            ..self.call(&[self.value], shape)
        })
    }

    /// Indices end a chain.
    pub(super) fn index_reduction(&mut self) -> Option<ValueId> {
        if !self.is_last() || self.rank() < 2 {
            return None;
        }
        let dim = self.dimension();
        let mut shape = self.shape().clone();
        shape.remove(dim);
        let dim = self.spelled(dim);
        self.apply(OperatorCall {
            given: vec![("dim", dim)],
            dtype: Dtype::Int64,
            ..self.call(&[self.value], shape)
        })
    }
}
