//! Elements in other places.

use warpsmith_schema::Target;

use super::{NotCovered, OperatorCall};
use crate::index::Index;
use crate::plan::{Plan, REDUCTION_WORK, Strategy};
use crate::scalar::{BoundsCheck, Scalar, ScalarType, Source};
use crate::tensor::Tensor;

type Found = Result<Option<Tensor>, NotCovered>;

#[expect(
    clippy::many_single_char_names,
    reason = "as shapes of images are written"
)]
pub(super) fn rule(plan: &mut Plan, call: &OperatorCall<'_>) -> Found {
    let x = match call.inputs.first() {
        Some(Some(x)) => x.clone(),
        _ => return Ok(None),
    };
    let rank = x.rank();
    let found = match call.op {
        "view" | "reshape" | "flatten" | "unflatten" | "ravel" | "squeeze" | "unsqueeze" => {
            for name in ["shape", "size", "start_dim", "end_dim", "dim", "sizes"] {
                call.argument(name);
            }
            if x.count() != call.shape.iter().product::<i64>() {
                return Err(call.refuse("another number of elements"));
            }
            // The graph says what comes out.
            x.reshaped(&call.shape)
        }
        "transpose" => x.transposed(call.dim("dim0", rank)?, call.dim("dim1", rank)?),
        "t" | "adjoint" if rank == 2 => x.transposed(0, 1),
        "permute" => {
            let dims = call.integers("dims")?.unwrap_or_default();
            let dims: Result<Vec<usize>, _> =
                dims.into_iter().map(|dim| call.dim_of(dim, rank)).collect();
            x.permuted(&dims?)
        }
        "movedim" => {
            let from = call.dim("source", rank)?;
            let to = call.dim("destination", rank)?;
            let mut order: Vec<usize> = (0..rank).collect();
            let moved = order.remove(from);
            order.insert(to, moved);
            x.permuted(&order)
        }
        "expand" | "broadcast_to" => {
            call.argument("size");
            call.argument("shape");
            x.broadcast(&call.shape)
        }
        "narrow" => {
            let (dim, start) = (call.dim("dim", rank)?, call.integer("start")?);
            let start = if start < 0 {
                start + x.shape[dim]
            } else {
                start
            };
            x.sliced(dim, start, call.integer("length")?, 1)
        }
        "select" => {
            let (dim, index) = (call.dim("dim", rank)?, call.integer("index")?);
            let index = if index < 0 {
                index + x.shape[dim]
            } else {
                index
            };
            x.sliced(dim, index, 1, 1).reshaped(&call.shape)
        }
        "chunk" | "split" => {
            let dim = call.dim_of(call.integer_or("dim", 0)?, rank)?;
            let size = if call.op == "chunk" {
                let chunks = call.integer("chunks")?;
                (x.shape[dim] + chunks - 1) / chunks
            } else {
                call.integer("split_size_or_sections")?
            };
            let start = size * call.result as i64;
            x.sliced(dim, start, size.min(x.shape[dim] - start), 1)
        }
        "flip" => {
            let dims = call.dims("dims", rank)?;
            let shape = x.shape.clone();
            x.view(&x.shape, move |at| {
                let mut from = at.to_vec();
                for dim in &dims {
                    from[*dim] = from[*dim].times(-1).offset(shape[*dim] - 1);
                }
                from
            })
        }
        "roll" => {
            let dims = call.integers("dims")?.unwrap_or_default();
            let shifts = call.integers("shifts")?.unwrap_or_default();
            if dims.is_empty() || dims.len() != shifts.len() {
                return Err(call.refuse("no dimensions"));
            }
            let mut moved = x.clone();
            for (dim, shift) in dims.iter().zip(shifts) {
                let dim = call.dim_of(*dim, rank)?;
                let length = x.shape[dim];
                let by = (-shift).rem_euclid(length);
                moved = moved.view(&x.shape, move |at| {
                    let mut from = at.to_vec();
                    from[dim] = from[dim].offset(by).remainder(length);
                    from
                });
            }
            moved
        }
        "tril" | "triu" => {
            let (diagonal, lower) = (call.integer_or("diagonal", 0)?, call.op == "tril");
            if rank < 2 {
                return Err(call.refuse("no matrix"));
            }
            let inner = x.at.clone();
            // Compilers leave single loads out by themselves. What a reduction has read before is not read again but kept.
            let by_fours = plan.target == Target::Cuda
                && plan.strategy == Strategy::Tuned
                && x.shape[rank - 1] % 4 == 0
                && x.work < REDUCTION_WORK;
            Tensor::computed(&x.shape, x.kind, x.work + 1, move |arena, at| {
                let mut value = inner(arena, at);
                let far = i64::from(i32::MAX);
                // Column minus row.
                let condition = |column: &Index| {
                    let apart = column.plus(&at[rank - 2].times(-1));
                    if lower {
                        BoundsCheck::new(apart, -far, diagonal + 1)
                    } else {
                        BoundsCheck::new(apart, diagonal, far)
                    }
                };
                let Some(within) = condition(&at[rank - 1]) else {
                    return value;
                };
                // Of four neighbours the first, or the last, is the last to be outside.
                let nearest = at[rank - 1].divided(4).times(4);
                let nearest = if lower { nearest } else { nearest.offset(3) };
                if let Some(some) = condition(&nearest).filter(|_| by_fours) {
                    value = arena.masked(value, &some);
                }
                let zero = match arena.kind(value) {
                    ScalarType::Float => arena.constant(0.0),
                    ScalarType::Int | ScalarType::Bool => arena.int(0),
                };
                let inside = arena.in_bounds(vec![within]);
                arena.select(inside, value, zero)
            })
        }
        "slice" => x.sliced(
            call.dim("dim", rank)?,
            call.integer("start")?,
            call.integer("length")?,
            call.integer("step")?,
        ),
        "unfold" => {
            let dim = call.dim("dimension", rank)?;
            let step = call.integer("step")?;
            call.argument("size");
            x.view(&call.shape, move |at| {
                let mut from = at[..rank].to_vec();
                from[dim] = from[dim].times(step).plus(&at[rank]);
                from
            })
        }
        "cat" | "stack" => return joined(plan, call).map(Some),
        "glu" => {
            let dim = call.dim_of(call.integer_or("dim", -1)?, rank)?;
            let half = x.shape[dim] / 2;
            if half * 2 != x.shape[dim] {
                return Err(call.refuse("an odd number of elements"));
            }
            let halves = [x.sliced(dim, 0, half, 1), x.sliced(dim, half, half, 1)];
            call.float_map(&halves, "glu", |arena, x| {
                let one = arena.constant(1.0);
                let minus = arena.unary(crate::scalar::Unary::Neg, x[1]);
                let e = arena.unary(crate::scalar::Unary::Exp, minus);
                let below = arena.add(one, e);
                arena.div(x[0], below)
            })?
        }
        "pixel_shuffle" => {
            let r = call.integer("upscale_factor")?;
            let [n, c, h, w] = image(call, &x)?;
            x.reshaped(&[n, c / (r * r), r, r, h, w])
                .permuted(&[0, 1, 4, 2, 5, 3])
                .reshaped(&call.shape)
        }
        "pixel_unshuffle" => {
            let r = call.integer("downscale_factor")?;
            let [n, c, h, w] = image(call, &x)?;
            x.reshaped(&[n, c, h / r, r, w / r, r])
                .permuted(&[0, 1, 3, 5, 2, 4])
                .reshaped(&call.shape)
        }
        "channel_shuffle" => {
            let groups = call.integer("groups")?;
            let [n, c, h, w] = image(call, &x)?;
            x.reshaped(&[n, groups, c / groups, h, w])
                .permuted(&[0, 2, 1, 3, 4])
                .reshaped(&call.shape)
        }
        "repeat" | "tile" => {
            call.argument("repeats");
            call.argument("dims");
            call.argument("sizes");
            let skipped = call
                .shape
                .len()
                .checked_sub(rank)
                .ok_or_else(|| call.refuse("fewer dimensions"))?;
            let own = x.shape.clone();
            x.view(&call.shape, move |at| {
                let pairs = own.iter().zip(&at[skipped..]);
                pairs
                    .map(|(extent, index)| index.remainder(*extent))
                    .collect()
            })
        }
        "repeat_interleave" => {
            let (times, dim) = (call.integer("repeats")?, call.dim("dim", rank)?);
            x.view(&call.shape, move |at| {
                let mut from = at.to_vec();
                from[dim] = from[dim].divided(times);
                from
            })
        }
        "diag" if rank == 1 => {
            let offset = call.integer_or("diagonal", 0)?;
            let (length, inner) = (x.shape[0], x.at.clone());
            let (down, right) = ((-offset).max(0), offset.max(0));
            Tensor::computed(&call.shape, x.kind, x.work + 1, move |arena, at| {
                let apart = at[1].plus(&at[0].times(-1));
                // Off the diagonal the place may lie outside of the vector.
                let place = if down > 0 { &at[1] } else { &at[0] };
                let place = if down.max(right) > 0 {
                    place.remainder(length)
                } else {
                    place.clone()
                };
                let value = inner(arena, &[place]);
                let Some(on) = BoundsCheck::new(apart, offset, offset + 1) else {
                    return value;
                };
                let zero = match arena.kind(value) {
                    ScalarType::Float => arena.constant(0.0),
                    ScalarType::Int | ScalarType::Bool => arena.int(0),
                };
                let on = arena.in_bounds(vec![on]);
                arena.select(on, value, zero)
            })
        }
        "diag" if rank == 2 => diagonal(&x, &call.shape, call.integer_or("diagonal", 0)?),
        "diagonal" if rank == 2 => {
            let offset = call.integer_or("offset", 0)?;
            call.argument("dim1");
            call.argument("dim2");
            diagonal(&x, &call.shape, offset)
        }
        "embedding" => {
            let (indices, table) = (x, call.input(1)?.clone());
            if call.argument("max_norm").is_some() {
                return Err(call.refuse("`max_norm`"));
            }
            call.argument("norm_type");
            call.argument("padding_idx");
            return picked(plan, call, &table, &indices, 0).map(Some);
        }
        "index_select" => {
            let dim = call.dim("dim", rank)?;
            let indices = call.input(1)?.clone();
            return picked(plan, call, &x, &indices, dim).map(Some);
        }
        "index" => return indexed(plan, call, &x).map(Some),
        "gather" | "take_along_dim" => {
            let dim = call.dim("dim", rank)?;
            return gathered(plan, call, &x, dim).map(Some);
        }
        _ => return Ok(None),
    };
    Ok(Some(found))
}

/// What lies on a diagonal of a matrix.
fn diagonal(x: &Tensor, shape: &[i64], offset: i64) -> Tensor {
    let (down, right) = ((-offset).max(0), offset.max(0));
    x.view(shape, move |at| {
        vec![at[0].offset(down), at[0].offset(right)]
    })
}

fn image(call: &OperatorCall<'_>, x: &Tensor) -> Result<[i64; 4], NotCovered> {
    let shape: Result<[i64; 4], _> = x.shape.as_slice().try_into();
    shape.map_err(|_| call.refuse("something that is no image"))
}

/// Several tensors one after the other.
fn joined(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    let parts: Option<Vec<Tensor>> = call.inputs.iter().cloned().collect();
    let mut parts = parts.ok_or_else(|| call.refuse("a missing part"))?;
    let rank = call.shape.len();
    let dim = call.dim_of(call.integer_or("dim", 0)?, rank)?;
    if call.op == "stack" {
        for part in &mut parts {
            let mut shape = part.shape.clone();
            shape.insert(dim, 1);
            *part = part.reshaped(&shape);
        }
    }
    let kind = parts[0].kind;
    if parts
        .iter()
        .any(|part| part.rank() != rank || part.kind != kind)
    {
        return Err(call.refuse("parts that do not fit"));
    }
    for part in &mut parts {
        // Rows of one part would be none of another's; and what was joined over and over becomes long.
        if part.work >= REDUCTION_WORK {
            *part = plan.realize(part).1;
        }
    }
    let work = parts.iter().map(|part| part.work).sum::<u32>() + 1;
    Ok(Tensor::computed(
        &call.shape,
        kind,
        work,
        move |arena, at| {
            let mut start = parts.iter().map(|part| part.shape[dim]).sum::<i64>();
            let mut value = None;
            for part in parts.iter().rev() {
                let extent = part.shape[dim];
                start -= extent;
                let mut from = at.to_vec();
                from[dim] = from[dim].offset(-start);
                let within = BoundsCheck::new(from[dim].clone(), 0, extent);
                let own = (part.at)(arena, &from);
                let Some(within) = within else { return own };
                let own = arena.guarded(own, std::slice::from_ref(&within));
                value = Some(match value {
                    None => own,
                    Some(after) => {
                        let inside = arena.in_bounds(vec![within]);
                        arena.select(inside, own, after)
                    }
                });
            }
            value.unwrap_or_else(|| arena.constant(0.0))
        },
    ))
}

/// An element may be computed this often before it is stored first.
const TIMES: i64 = 4;

/// What is looked up along some dimensions, as it is if its elements can be computed where they are wanted, and what that costs.
pub(super) fn source(
    plan: &mut Plan,
    call: &OperatorCall<'_>,
    x: &Tensor,
    dims: &[usize],
) -> Result<(Source, u32), NotCovered> {
    let wanted: i64 = call.shape.iter().product();
    if plan.strategy != Strategy::Plain
        && wanted <= TIMES * x.count()
        && let Some(source) = Source::new(&mut plan.arena, x, dims)
    {
        return Ok((source, x.work + 1));
    }
    let (_, stored) = plan.realize(x);
    let source = Source::new(&mut plan.arena, &stored, dims);
    let source = source.ok_or_else(|| call.refuse("elements that cannot be looked up"))?;
    Ok((source, 1))
}

/// Whole slices by a list of indices: they take the place of a dimension.
fn picked(
    plan: &mut Plan,
    call: &OperatorCall<'_>,
    x: &Tensor,
    indices: &Tensor,
    dim: usize,
) -> Result<Tensor, NotCovered> {
    if indices.kind != ScalarType::Int {
        return Err(call.refuse("indices that are no integers"));
    }
    let (source, work) = source(plan, call, x, &[dim])?;
    let (inner, many) = (indices.at.clone(), indices.rank());
    Ok(Tensor::computed(
        &call.shape,
        x.kind,
        work,
        move |arena, at| {
            let place = inner(arena, &at[dim..dim + many]);
            let mut rest = at[..dim].to_vec();
            rest.push(Index::default());
            rest.extend(at[dim + many..].iter().cloned());
            source.at(arena, &rest, &[place])
        },
    ))
}

/// An index for each element.
fn gathered(
    plan: &mut Plan,
    call: &OperatorCall<'_>,
    x: &Tensor,
    dim: usize,
) -> Result<Tensor, NotCovered> {
    let indices = call.input(1)?;
    if indices.kind != ScalarType::Int || indices.shape != call.shape {
        return Err(call.refuse("indices that do not fit"));
    }
    let (source, work) = source(plan, call, x, &[dim])?;
    let inner = indices.at.clone();
    Ok(Tensor::computed(
        &call.shape,
        x.kind,
        work,
        move |arena, at| {
            let place = inner(arena, at);
            source.at(arena, at, &[place])
        },
    ))
}

/// `x[:, i, j]`: elements by lists of places along neighbouring dimensions.
fn indexed(plan: &mut Plan, call: &OperatorCall<'_>, x: &Tensor) -> Result<Tensor, NotCovered> {
    let dims = call.dims("dims", x.rank())?;
    let places: Option<Vec<Tensor>> = call.inputs[1..].iter().cloned().collect();
    let places = places.ok_or_else(|| call.refuse("a missing index"))?;
    let first = *dims.first().ok_or_else(|| call.refuse("no index"))?;
    let neighbours = dims.iter().enumerate().all(|(at, dim)| *dim == first + at);
    let whole = places.iter().all(|one| one.kind == ScalarType::Int);
    if places.len() != dims.len() || !neighbours || !whole {
        return Err(call.refuse("masks, or dimensions that are no neighbours"));
    }
    let shape = call.broadcast_shape(&places)?;
    let places: Vec<Tensor> = places.iter().map(|one| one.broadcast(&shape)).collect();
    let (source, work) = source(plan, call, x, &dims)?;
    let (many, extents) = (shape.len(), x.shape.clone());
    Ok(Tensor::computed(
        &call.shape,
        x.kind,
        work + 1,
        move |arena, at| {
            let asked: Vec<Scalar> = places
                .iter()
                .zip(&dims)
                .map(|(place, dim)| {
                    let place = (place.at)(arena, &at[first..first + many]);
                    // Negative ones count from the end.
                    let (zero, extent) = (arena.int(0), arena.int(extents[*dim]));
                    let negative = arena.less(place, zero);
                    let from_end = arena.add(place, extent);
                    arena.select(negative, from_end, place)
                })
                .collect();
            let mut rest = at[..first].to_vec();
            rest.extend(dims.iter().map(|_| Index::default()));
            rest.extend(at[first + many..].iter().cloned());
            source.at(arena, &rest, &asked)
        },
    ))
}
