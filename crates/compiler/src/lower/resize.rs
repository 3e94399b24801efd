//! Borders and resizing.

use serde_json::Value;

use super::shape::source;
use super::{NotCovered, OperatorCall, is};
use crate::index::Index;
use crate::plan::Plan;
use crate::scalar::{Arena, Binary, BoundsCheck, Scalar, ScalarType, Unary};
use crate::tensor::Tensor;

pub(super) fn rule(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Option<Tensor>, NotCovered> {
    match call.op {
        "pad" => pad(plan, call).map(Some),
        "interpolate" => interpolate(plan, call).map(Some),
        _ => Ok(None),
    }
}

fn pad(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    let x = call.input(0)?.clone();
    let given = call.integers("pad")?.unwrap_or_default();
    let mode = call.text("mode", "constant")?;
    let value = call.number_or("value", 0.0)?;
    let rank = x.rank();
    let mut before = vec![0; rank];
    for (place, pair) in given.chunks(2).enumerate() {
        let dim = rank
            .checked_sub(place + 1)
            .ok_or_else(|| call.refuse("too many borders"))?;
        before[dim] = *pair.first().unwrap_or(&0);
    }
    if mode == "constant" {
        let x = plan.elementwise(&x);
        let shape = call.shape.clone();
        return Ok(Tensor::computed(
            &shape,
            x.kind,
            x.work + 1,
            move |arena, at| {
                let place: Vec<Index> = at
                    .iter()
                    .zip(&before)
                    .map(|(at, by)| at.offset(-by))
                    .collect();
                x.beyond(arena, &place, value)
            },
        ));
    }
    let how: fn(&mut Arena, Scalar, i64) -> Scalar = match mode.as_str() {
        "reflect" => reflected,
        "replicate" => repeated,
        "circular" => around,
        _ => return Err(call.refuse("an unknown mode")),
    };
    let shape = x.shape.clone();
    let has_border = |dim: &usize| before[*dim] != 0 || call.shape[*dim] != shape[*dim];
    let dims: Vec<usize> = (0..rank).filter(has_border).collect();
    let (source, work) = source(plan, call, &x, &dims)?;
    Ok(Tensor::computed(
        &call.shape,
        x.kind,
        work,
        move |arena, at| {
            let inside = at.iter().zip(&before).map(|(at, by)| at.offset(-by));
            let inside: Vec<Index> = inside.collect();
            let mut places = Vec::new();
            for &dim in &dims {
                let place = arena.place(inside[dim].clone());
                let leaves = BoundsCheck::new(inside[dim].clone(), 0, shape[dim]).is_some();
                places.push(if leaves {
                    how(arena, place, shape[dim])
                } else {
                    place
                });
            }
            source.at(arena, &inside, &places)
        },
    ))
}

fn reflected(arena: &mut Arena, place: Scalar, length: i64) -> Scalar {
    let (zero, last, twice) = (
        arena.int(0),
        arena.int(length - 1),
        arena.int(2 * (length - 1)),
    );
    let (minus, back) = (arena.sub(zero, place), arena.sub(twice, place));
    let (low, high) = (arena.less(place, zero), arena.less(last, place));
    let rest = arena.select(high, back, place);
    arena.select(low, minus, rest)
}

fn repeated(arena: &mut Arena, place: Scalar, length: i64) -> Scalar {
    let (zero, last) = (arena.int(0), arena.int(length - 1));
    let (low, high) = (arena.less(place, zero), arena.less(last, place));
    let rest = arena.select(high, last, place);
    arena.select(low, zero, rest)
}

fn around(arena: &mut Arena, place: Scalar, length: i64) -> Scalar {
    let (zero, last, all) = (arena.int(0), arena.int(length - 1), arena.int(length));
    let (after, ahead) = (arena.binary(Binary::Sub, place, all), arena.add(place, all));
    let (low, high) = (arena.less(place, zero), arena.less(last, place));
    let rest = arena.select(high, after, place);
    arena.select(low, ahead, rest)
}

fn interpolate(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    let x = call.input(0)?.clone();
    call.argument("size");
    let scales = call.argument("scale_factor").and_then(Value::as_array);
    call.without("antialias")?;
    let mode = call.text("mode", "nearest")?;
    let corners = call.flag("align_corners", false)?;
    let (from, to) = (x.shape[2..].to_vec(), call.shape[2..].to_vec());
    let space = from.len();
    // PyTorch's places follow the scale that was given, ours the extents.
    let is_exact = scales.is_none_or(|scales| {
        let extents = from.iter().zip(&to);
        let mut pairs = scales.iter().zip(extents);
        pairs.all(|(scale, (from, to))| {
            scale
                .as_f64()
                .is_some_and(|scale| is(scale * *from as f64, *to as f64))
        })
    });
    if !is_exact {
        return Err(call.refuse("a scale that leaves a part of an element"));
    }
    let x = plan.elementwise(&x);
    if mode == "nearest" {
        let mut extents = from.iter().zip(&to);
        if !extents.all(|(from, to)| to % from == 0 || from % to == 0) {
            return Err(call.refuse("a scale that is no whole number"));
        }
        return Ok(x.view(&call.shape, move |at| {
            let mut place = at.to_vec();
            for dim in 0..space {
                place[2 + dim] = if to[dim] >= from[dim] {
                    at[2 + dim].divided(to[dim] / from[dim])
                } else {
                    at[2 + dim].times(from[dim] / to[dim])
                };
            }
            place
        }));
    }
    if !["linear", "bilinear", "trilinear"].contains(&mode.as_str()) {
        return Err(call.refuse("this mode of resizing"));
    }
    if !corners || space != 2 || to.contains(&1) {
        return weighed(plan, call, &x, corners);
    }
    let shape = call.shape.clone();
    Ok(Tensor::computed(
        &shape,
        ScalarType::Float,
        x.work + 4,
        move |arena, at| {
            let mut low = at.to_vec();
            let mut shares = Vec::new();
            for dim in 0..2 {
                let along = at[2 + dim].times(from[dim] - 1);
                low[2 + dim] = along.divided(to[dim] - 1);
                let rest = arena.place(along.remainder(to[dim] - 1));
                let rest = arena.unary(Unary::ToFloat, rest);
                let all = arena.constant(1.0 / (to[dim] - 1) as f64);
                shares.push(arena.mul(rest, all));
            }
            let mut rows = Vec::new();
            for down in 0..2 {
                let mut pair = Vec::new();
                for right in 0..2 {
                    let mut place = low.clone();
                    place[2] = place[2].offset(down);
                    place[3] = place[3].offset(right);
                    pair.push(x.beyond(arena, &place, 0.0));
                }
                let apart = arena.sub(pair[1], pair[0]);
                let step = arena.mul(apart, shares[1]);
                rows.push(arena.add(pair[0], step));
            }
            let apart = arena.sub(rows[1], rows[0]);
            let step = arena.mul(apart, shares[0]);
            // Where there is no row below, its share is nothing.
            arena.add(rows[0], step)
        },
    ))
}

/// Between the two nearest elements along each dimension, by how far it is to each.
fn weighed(
    plan: &mut Plan,
    call: &OperatorCall<'_>,
    x: &Tensor,
    corners: bool,
) -> Result<Tensor, NotCovered> {
    let (from, to) = (x.shape[2..].to_vec(), call.shape[2..].to_vec());
    let space = from.len();
    let dims: Vec<usize> = (2..2 + space).collect();
    let (source, work) = source(plan, call, x, &dims)?;
    Ok(Tensor::computed(
        &call.shape,
        ScalarType::Float,
        work + 8,
        move |arena, at| {
            let mut corner_places = vec![Vec::new()];
            let mut shares = Vec::new();
            for dim in 0..space {
                // The place as a fraction: corners on corners, or centres of elements of equal width.
                let (over, under) = if corners {
                    (at[2 + dim].times(from[dim] - 1), (to[dim] - 1).max(1))
                } else {
                    let twice = at[2 + dim].times(2).offset(1).times(from[dim]);
                    (twice.offset(-to[dim]), 2 * to[dim])
                };
                let (zero, last) = (arena.int(0), arena.int(from[dim] - 1));
                let (one, whole) = (arena.int(1), arena.int(under));
                let over = arena.place(over);
                let over = arena.max(over, zero);
                let low = arena.div(over, whole);
                let high = arena.add(low, one);
                let high = arena.binary(Binary::Min, high, last);
                let before = arena.mul(low, whole);
                let rest = arena.sub(over, before);
                let rest = arena.unary(Unary::ToFloat, rest);
                let part = arena.constant(1.0 / under as f64);
                shares.push(arena.mul(rest, part));
                corner_places = corner_places
                    .into_iter()
                    .flat_map(|places: Vec<Scalar>| {
                        [low, high].map(|place| [&places[..], &[place]].concat())
                    })
                    .collect();
            }
            let corners = corner_places.iter();
            let mut values: Vec<Scalar> =
                corners.map(|places| source.at(arena, at, places)).collect();
            // The last dimension's neighbours lie side by side.
            for share in shares.into_iter().rev() {
                values = values
                    .chunks(2)
                    .map(|pair| {
                        let apart = arena.sub(pair[1], pair[0]);
                        let step = arena.mul(apart, share);
                        arena.add(pair[0], step)
                    })
                    .collect();
            }
            values[0]
        },
    ))
}
