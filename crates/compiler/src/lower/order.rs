//! The greatest few along a dimension, and all of them, in order.

use super::reduce::float_only;
use super::shape::source;
use super::{NotCovered, OperatorCall};
use crate::index::Index;
use crate::plan::{OrderOf, Plan, ReduceOp};
use crate::scalar::{Arena, Binary, BoundsCheck, Scalar, ScalarType, Unary};
use crate::tensor::Tensor;

/// More of them are found sooner by sorting.
const MOST: i64 = 8;
/// The longest line that is sorted by comparing all with all.
const LONGEST: i64 = 2048;

pub(super) fn rule(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Option<Tensor>, NotCovered> {
    match call.op {
        "topk" if call.integer("k")? > MOST => {
            call.argument("sorted");
            let descending = call.flag("largest", true)?;
            sorted(plan, call, descending, call.result == 1).map(Some)
        }
        "topk" => top(plan, call).map(Some),
        "sort" | "argsort" => {
            call.argument("stable");
            let descending = call.flag("descending", false)?;
            let wants_places = call.op == "argsort" || call.result == 1;
            sorted(plan, call, descending, wants_places).map(Some)
        }
        _ => Ok(None),
    }
}

/// The place of each element is how many come before it. Of equal ones the first comes first.
fn sorted(
    plan: &mut Plan,
    call: &OperatorCall<'_>,
    descending: bool,
    wants_places: bool,
) -> Result<Tensor, NotCovered> {
    let x = call.input(0)?;
    float_only(call, x)?;
    let dim = call.dim("dim", x.rank())?;
    let length = x.shape[dim];
    if length > LONGEST {
        return Err(call.refuse(&format!("lines of more than {LONGEST} elements")));
    }
    let (buffer, x) = plan.realize(x);
    let order = OrderOf {
        buffer,
        dim,
        first: None,
        descending,
    };
    let known = plan.orders.get(&order).and_then(|found| found.first());
    let ranks = if let Some(ranks) = known {
        ranks.clone()
    } else {
        let ranks = ranks(plan, &x, dim, descending);
        let ranks = plan.realize(&ranks).1;
        plan.orders.insert(order, vec![ranks.clone()]);
        ranks
    };
    let name = if wants_places { "place" } else { "sorted" };
    let found = plan.reduce(
        &call.shape,
        &[length],
        ReduceOp::Sum,
        name,
        move |arena, at, inner| {
            let from = moved(at, dim, &inner[0]);
            let rank = (ranks.at)(arena, &from);
            let place = arena.place(at[dim].clone());
            let place = arena.unary(Unary::ToFloat, place);
            let is_here = arena.binary(Binary::Equal, rank, place);
            let value = if wants_places {
                let from = arena.place(inner[0].clone());
                arena.unary(Unary::ToFloat, from)
            } else {
                (x.at)(arena, &from)
            };
            let nothing = arena.constant(0.0);
            arena.select(is_here, value, nothing)
        },
    );
    if !wants_places {
        return Ok(found);
    }
    call.map(&[found], "place", ScalarType::Int, |arena, x| {
        arena.unary(Unary::ToInt, x[0])
    })
}

fn ranks(plan: &mut Plan, x: &Tensor, dim: usize, descending: bool) -> Tensor {
    let inner_at = x.at.clone();
    let length = x.shape[dim];
    plan.reduce(
        &x.shape,
        &[length],
        ReduceOp::Sum,
        "rank",
        move |arena, at, inner| {
            let own = inner_at(arena, at);
            let other = inner_at(arena, &moved(at, dim, &inner[0]));
            let comes_before = if descending {
                arena.less(own, other)
            } else {
                arena.less(other, own)
            };
            let equal = arena.binary(Binary::Equal, own, other);
            let [here, there] = [at[dim].clone(), inner[0].clone()].map(|at| arena.place(at));
            let earlier = arena.less(there, here);
            let before = arena.binary(Binary::And, equal, earlier);
            let before = arena.binary(Binary::Or, comes_before, before);
            let (one, zero) = (arena.constant(1.0), arena.constant(0.0));
            arena.select(before, one, zero)
        },
    )
}

fn moved(at: &[Index], dim: usize, to: &Index) -> Vec<Index> {
    let mut moved = at.to_vec();
    moved[dim] = to.clone();
    moved
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
    let (buffer, x) = plan.realize(&x);
    let order = OrderOf {
        buffer,
        dim,
        first: Some(count),
        descending: call.flag("largest", true)?,
    };
    let keys = if order.descending {
        x.clone()
    } else {
        call.float_map(std::slice::from_ref(&x), "neg", |arena, x| {
            arena.unary(Unary::Neg, x[0])
        })?
    };
    let mut places: Vec<Tensor> = plan.orders.get(&order).cloned().unwrap_or_default();
    for _ in places.len() as i64..count {
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
    plan.orders.insert(order, places.clone());
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
