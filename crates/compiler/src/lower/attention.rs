//! Attention.

use super::matrix::product;
use super::reduce::softmax_of;
use super::{NotCovered, OperatorCall, is};
use crate::plan::Plan;
use crate::scalar::{BoundsCheck, ScalarType};
use crate::tensor::Tensor;

pub(super) fn rule(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Option<Tensor>, NotCovered> {
    match call.op {
        "scaled_dot_product_attention" => attention(plan, call).map(Some),
        _ => Ok(None),
    }
}

fn attention(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    let (query, mut key, mut value) = (
        call.input(0)?.clone(),
        call.input(1)?.clone(),
        call.input(2)?.clone(),
    );
    if !is(call.number_or("dropout_p", 0.0)?, 0.0) || query.rank() < 3 {
        return Err(call.refuse("dropout"));
    }
    let rank = query.rank();
    if call.flag("enable_gqa", false)? {
        let heads = query.shape[rank - 3];
        (key, value) = (repeated(&key, heads), repeated(&value, heads));
    }
    let causal = call.flag("is_causal", false)?;
    let scale = call.number_or("scale", 1.0 / (query.shape[rank - 1] as f64).sqrt())?;
    let scores = product(plan, call, &query, &key.transposed(rank - 2, rank - 1))?;
    let rank = scores.rank();
    let inner = scores.at.clone();
    let mask = call.optional(3).map(|mask| mask.broadcast(&scores.shape));
    let weighed = Tensor::computed(&scores.shape, ScalarType::Float, 1, move |arena, at| {
        let score = inner(arena, at);
        let scale = arena.constant(scale);
        let score = arena.mul(score, scale);
        let never = arena.constant(f64::NEG_INFINITY);
        let score = match &mask {
            Some(mask) if mask.kind == ScalarType::Bool => {
                let seen = (mask.at)(arena, at);
                arena.select(seen, score, never)
            }
            Some(mask) => {
                let more = (mask.at)(arena, at);
                arena.add(score, more)
            }
            None => score,
        };
        let apart = at[rank - 1].plus(&at[rank - 2].times(-1));
        match BoundsCheck::new(apart, -i64::from(i32::MAX), 1).filter(|_| causal) {
            None => score,
            Some(within) => {
                let inside = arena.in_bounds(vec![within]);
                arena.select(inside, score, never)
            }
        }
    });
    let weights = softmax_of(plan, call, &weighed)?;
    product(plan, call, &weights, &value)
}

/// Every head of keys or values for several heads of queries.
fn repeated(x: &Tensor, heads: i64) -> Tensor {
    let dim = x.rank() - 3;
    let times = heads / x.shape[dim];
    let mut shape = x.shape.clone();
    shape[dim] = heads;
    x.view(&shape, move |at| {
        let mut from = at.to_vec();
        from[dim] = from[dim].divided(times);
        from
    })
}
