//! The greatest few along a dimension, in order.

use super::reduce::float_only;
use super::shape::source;
use super::{NotCovered, OperatorCall};
use crate::index::Index;
use crate::plan::{Plan, ReduceOp};
use crate::scalar::{Arena, Binary, BoundsCheck, Scalar, ScalarType, Unary};
use crate::tensor::Tensor;

/// More of them are found sooner by sorting, for which there is no rule.
const MOST: i64 = 8;

pub(super) fn rule(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Option<Tensor>, NotCovered> {
    match call.op {
        "topk" => top(plan, call).map(Some),
        _ => Ok(None),
    }
}

/// One after the other: the place of the greatest that is none of those before it.
fn top(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    let x = call.input(0)?.clone();
    float_only(call, &x)?;
    call.argument("sorted");
    let (dim, count) = (call.dim("dim", x.rank())?, call.integer("k")?);
    if !(1..=MOST).contains(&count) {
        return Err(call.refuse(&format!("more than {MOST} of them")));
    }
    // What is looked up has to lie in memory.
    let (_, x) = plan.realize(&x);
    let keys = if call.flag("largest", true)? {
        x.clone()
    } else {
        call.float_map(std::slice::from_ref(&x), "neg", |arena, x| {
            arena.unary(Unary::Neg, x[0])
        })?
    };
    let mut places: Vec<Tensor> = Vec::new();
    for _ in 0..count {
        let (inner, before) = (keys.at.clone(), places.clone());
        let rest = Tensor::computed(
            &x.shape,
            ScalarType::Float,
            keys.work + before.len() as u32,
            move |arena, at| {
                let key = inner(arena, at);
                let place = arena.place(at[dim].clone());
                let never = arena.constant(f64::NEG_INFINITY);
                before.iter().fold(key, |key, taken| {
                    let is_taken = same(arena, taken, at, dim, place);
                    arena.select(is_taken, never, key)
                })
            },
        );
        let place = plan.reduce_dims(&rest, &[dim], ReduceOp::ArgMax, "place");
        places.push(plan.realize(&place).1);
    }
    let wants_places = call.result == 1;
    let (source, _) = source(plan, call, &x, &[dim])?;
    let least = if call.flag("largest", true)? {
        f64::NEG_INFINITY
    } else {
        f64::INFINITY
    };
    Ok(Tensor::computed(
        &call.shape,
        call.kind,
        places.len() as u32 + 1,
        move |arena, at| {
            let row = |arena: &mut Arena, taken: &Tensor| {
                let mut row = at.to_vec();
                row[dim] = Index::default();
                (taken.at)(arena, &row)
            };
            let mut place = row(arena, &places[0]);
            let mut again: Option<Scalar> = None;
            for (number, taken) in places.iter().enumerate().skip(1) {
                let number = number as i64;
                let own = row(arena, taken);
                let Some(within) = BoundsCheck::new(at[dim].clone(), number, number + 1) else {
                    place = own;
                    continue;
                };
                let is_own = arena.in_bounds(vec![within]);
                place = arena.select(is_own, own, place);
                // All others are infinitely small: their place was not found but left at the first.
                let mut is_again: Option<Scalar> = None;
                for earlier in &places[..number as usize] {
                    let other = row(arena, earlier);
                    let equal = arena.binary(Binary::Equal, own, other);
                    is_again = Some(match is_again {
                        Some(known) => arena.binary(Binary::Or, known, equal),
                        None => equal,
                    });
                }
                if let Some(equal) = is_again {
                    let here = arena.binary(Binary::And, is_own, equal);
                    again = Some(match again {
                        Some(known) => arena.binary(Binary::Or, known, here),
                        None => here,
                    });
                }
            }
            if wants_places {
                return place;
            }
            let value = source.at(arena, at, &[place]);
            match again {
                Some(again) => {
                    let least = arena.constant(least);
                    arena.select(again, least, value)
                }
                None => value,
            }
        },
    ))
}

/// Whether the place found for a row is this one.
fn same(arena: &mut Arena, taken: &Tensor, at: &[Index], dim: usize, place: Scalar) -> Scalar {
    let mut row = at.to_vec();
    row[dim] = Index::default();
    let taken = (taken.at)(arena, &row);
    arena.binary(Binary::Equal, place, taken)
}
