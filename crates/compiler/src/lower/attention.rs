//! Attention.

use super::matrix::product;
use super::reduce::softmax_of;
use super::{NotCovered, OperatorCall, is};
use crate::attention::{AttentionKernel, AttentionMask};
use crate::emit::cuda::attention_tile;
use crate::plan::{BufferOrigin, Kernel, Plan, Strategy};
use crate::scalar::{BoundsCheck, ElementType, ScalarType};
use crate::tensor::Tensor;
use warpsmith_schema::Target;

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
    if let Some(found) = in_one_kernel(plan, call, [&query, &key, &value], (causal, scale)) {
        return Ok(found);
    }
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

/// Scores that a GPU stores in between: its library makes products sooner than a kernel of ours, until memory ends.
const STORED_SCORES: i64 = 1 << 28;
/// The most columns of a tile.
const MAX_DEPTH: i64 = 256;

/// Attention whose scores are never stored, where that is worth it.
fn in_one_kernel(
    plan: &mut Plan,
    call: &OperatorCall<'_>,
    [query, key, value]: [&Tensor; 3],
    (causal, scale): (bool, f64),
) -> Option<Tensor> {
    let rank = query.rank();
    let (queries, depth) = (query.shape[rank - 2], query.shape[rank - 1]);
    let (keys, width) = (key.shape[rank - 2], value.shape[value.rank() - 1]);
    let outer = call.shape[..rank - 2].to_vec();
    let batch: i64 = outer.iter().product();
    let fits = match plan.target {
        Target::Cpu => depth.max(width) <= MAX_DEPTH,
        Target::Cuda => attention_tile(depth, width).is_some(),
    };
    let wanted = match (plan.strategy, plan.target) {
        (Strategy::Plain, _) => false,
        (Strategy::Tuned, Target::Cuda) => batch * queries * keys >= STORED_SCORES,
        _ => true,
    };
    let wanted = if fits && plan.strategy == Strategy::Tuned {
        plan.knobs.about(call.op, batch * queries * keys);
        plan.knobs.whether("in one kernel", wanted)
    } else {
        wanted
    };
    let is_float = |x: &&Tensor| x.kind == ScalarType::Float && x.rank() == rank;
    if !fits || !wanted || ![query, key, value].iter().all(is_float) {
        return None;
    }
    let mut flat = |x: &Tensor, rows: i64, columns: i64| {
        let x = plan.elementwise(x);
        // Every tile asks for keys and values again.
        let x = if x.work > 1 { plan.realize(&x).1 } else { x };
        let whole = [&outer[..], &[rows, columns]].concat();
        x.broadcast(&whole).reshaped(&[batch, rows, columns]).at
    };
    let bodies = [
        flat(query, queries, depth),
        flat(key, keys, depth),
        flat(value, keys, width),
    ];
    let mask = call.optional(3).map(|mask| {
        let body = flat(mask, queries, keys);
        match mask.kind {
            ScalarType::Bool => AttentionMask::Seen(body),
            ScalarType::Float | ScalarType::Int => AttentionMask::Added(body),
        }
    });
    let out = plan.allocate(BufferOrigin::Computed, &call.shape, ElementType::Float);
    let [query, key, value] = bodies;
    plan.push(Kernel::Attention(AttentionKernel {
        batch,
        queries,
        keys,
        depth,
        width,
        scale,
        causal,
        query,
        key,
        value,
        mask,
        out,
    }));
    Some(Tensor::of_buffer(out, &call.shape, ElementType::Float))
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
