//! Two things compared: losses and distances of pairs. They end a chain.

use super::OperatorAttempt;
use crate::grammar::builder::{InputDistribution, OperatorCall, ValueId};
use crate::seeds::ValueDomain;

impl OperatorAttempt<'_> {
    pub(super) fn loss(&mut self) -> Option<ValueId> {
        if !self.is_last() || self.rank() < 2 {
            return None;
        }
        let domain = self.typed().domain;
        let op = self.seed.op.as_str();
        let draw = match op {
            "binary_cross_entropy" if domain.within(ValueDomain::Unit) => InputDistribution::Unit,
            "binary_cross_entropy" => return None,
            "binary_cross_entropy_with_logits" | "poisson_nll_loss" => InputDistribution::Unit,
            "soft_margin_loss" | "hinge_embedding_loss" => InputDistribution::Signs,
            "multilabel_soft_margin_loss" => InputDistribution::Marks,
            "kl_div" => InputDistribution::LogProbabilities,
            _ => InputDistribution::Normal,
        };
        // Only of logarithms of probabilities.
        if op == "kl_div" && self.builder.ops.last().is_none_or(|op| op != "log_softmax") {
            return None;
        }
        let reduction = match op {
            "multilabel_soft_margin_loss" => "mean",
            "kl_div" => self.rng.choose_of(["sum", "batchmean"]),
            _ => self.rng.choose_of(["mean", "mean", "sum", "none"]),
        };
        let shape = self.shape().clone();
        let target = self.builder.input("target", shape.clone(), draw);
        let mut given = Vec::new();
        if reduction != "mean" {
            given.push(("reduction", reduction.into()));
        }
        let shape = if reduction == "none" {
            shape
        } else {
            Vec::new()
        };
        self.apply(OperatorCall {
            given,
            ..self.call(&[self.value, target], shape)
        })
    }

    pub(super) fn class_loss(&mut self) -> Option<ValueId> {
        if !self.is_last() || self.rank() != 2 {
            return None;
        }
        let logarithms = self
            .builder
            .ops
            .last()
            .is_some_and(|op| op == "log_softmax");
        if self.seed.op == "nll_loss" && !logarithms {
            return None;
        }
        let (rows, classes) = (self.shape()[0], self.shape()[1]);
        let target = self
            .builder
            .input("target", vec![rows], InputDistribution::Below(classes));
        let reduction = self.rng.choose_of(["mean", "sum", "none"]);
        let mut given = Vec::new();
        if reduction != "mean" {
            given.push(("reduction", reduction.into()));
        }
        let shape = if reduction == "none" {
            vec![rows]
        } else {
            Vec::new()
        };
        self.apply(OperatorCall {
            given,
            ..self.call(&[self.value, target], shape)
        })
    }

    pub(super) fn paired_reduction(&mut self) -> Option<ValueId> {
        let mut shape = self.shape().clone();
        if shape.len() != 2 && shape.len() != 3 {
            return None;
        }
        let other = self
            .builder
            .input("y", shape.clone(), InputDistribution::Normal);
        let mut given = Vec::new();
        // By default along the second dimension; distances are always along the last.
        if self.seed.op == "cosine_similarity" && shape.len() == 3 {
            given.push(("dim", (-1).into()));
        }
        shape.pop();
        self.apply(OperatorCall {
            given,
            ..self.call(&[self.value, other], shape)
        })
    }
}
