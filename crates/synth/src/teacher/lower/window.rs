//! Over space: convolutions, pools, borders, resizing.

use super::matrix::product;
use super::reduce::without_reductions;
use super::{Call, NotCovered, is};
use crate::teacher::index::Index;
use crate::teacher::library::{Convolution, Epilogue, Library};
use crate::teacher::plan::{Fold, Origin, Plan};
use crate::teacher::scalar::{Arena, Binary, Kind, Scalar, Unary, Within};
use crate::teacher::simplify::FOLDED;
use crate::teacher::tensor::Tensor;
use warpsmith_schema::Target;

type Found = Result<Option<Tensor>, NotCovered>;

pub(super) fn rule(plan: &mut Plan, call: &Call<'_>) -> Found {
    let found = match call.op {
        "conv1d" | "conv2d" | "conv3d" => {
            let (weight, bias) = (call.input(1)?.clone(), call.optional(2).cloned());
            convolution(plan, call, &weight, bias.as_ref())?
        }
        op if op.starts_with(FOLDED) => folded(plan, call)?,
        "conv_transpose1d" | "conv_transpose2d" | "conv_transpose3d" => transposed(plan, call)?,
        "max_pool1d" | "max_pool2d" | "max_pool3d" | "avg_pool1d" | "avg_pool2d" | "avg_pool3d"
        | "lp_pool1d" | "lp_pool2d" | "lp_pool3d" => pool(plan, call)?,
        "adaptive_avg_pool1d"
        | "adaptive_avg_pool2d"
        | "adaptive_avg_pool3d"
        | "adaptive_max_pool1d"
        | "adaptive_max_pool2d"
        | "adaptive_max_pool3d" => adaptive(plan, call)?,
        "pad" => pad(plan, call)?,
        "interpolate" => interpolate(plan, call)?,
        "local_response_norm" => local_response(plan, call)?,
        _ => return Ok(None),
    };
    Ok(Some(found))
}

/// Dimensions of space: what comes after images and channels.
fn space(call: &Call<'_>, x: &Tensor) -> Result<usize, NotCovered> {
    let digit = call.op.trim_end_matches('d').chars().last();
    let space = digit
        .and_then(|digit| digit.to_digit(10))
        .map(|digit| digit as usize);
    match space {
        Some(space) if space + 2 == x.rank() => Ok(space),
        _ => Err(call.refuse("an input without a batch")),
    }
}

struct Window {
    stride: Vec<i64>,
    padding: Vec<i64>,
    dilation: Vec<i64>,
}

impl Window {
    /// The places that a window meets, before the borders are looked at.
    fn place(&self, at: &[Index], tap: &[Index]) -> Vec<Index> {
        (0..at.len())
            .map(|dim| {
                let moved = at[dim].times(self.stride[dim]);
                moved
                    .plus(&tap[dim].times(self.dilation[dim]))
                    .offset(-self.padding[dim])
            })
            .collect()
    }
}

fn window(call: &Call<'_>, space: usize) -> Result<Window, NotCovered> {
    Ok(Window {
        stride: call.each("stride", space, &vec![1; space])?,
        padding: call.each("padding", space, &vec![0; space])?,
        dilation: call.each("dilation", space, &vec![1; space])?,
    })
}

fn with_bias(call: &Call<'_>, x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, NotCovered> {
    let Some(bias) = bias else {
        return Ok(x.clone());
    };
    let mut shape = vec![1; x.rank()];
    shape[1] = bias.count();
    let bias = bias.reshaped(&shape);
    call.float_map(&[x.clone(), bias], "conv", |arena, x| arena.add(x[0], x[1]))
}

/// Scale and shift of the normalisation after it in weights and bias, which are computed anew in every call.
fn folded(plan: &mut Plan, call: &Call<'_>) -> Result<Tensor, NotCovered> {
    let (weight, mean, var) = (
        call.input(1)?.clone(),
        call.input(3)?.clone(),
        call.input(4)?.clone(),
    );
    let eps = call.number("eps")?;
    let or = |place: usize, value: f64| {
        call.optional(place)
            .cloned()
            .unwrap_or_else(|| Tensor::constant(value, &[]))
    };
    let scale = call.float_map(&[or(5, 1.0), var], "scale", move |arena, x| {
        let eps = arena.constant(eps);
        let safe = arena.add(x[1], eps);
        let inverse = arena.unary(Unary::Rsqrt, safe);
        arena.mul(x[0], inverse)
    })?;
    let bias = call.float_map(
        &[or(2, 0.0), mean, scale.clone(), or(6, 0.0)],
        "shift",
        |arena, x| {
            let apart = arena.sub(x[0], x[1]);
            let scaled = arena.mul(apart, x[2]);
            arena.add(scaled, x[3])
        },
    )?;
    let mut filters = vec![1; weight.rank()];
    filters[0] = weight.shape[0];
    let scaled = call.float_map(&[weight, scale.reshaped(&filters)], "folded", |arena, x| {
        arena.mul(x[0], x[1])
    })?;
    let (scaled, bias) = (plan.realize(&scaled).1, plan.realize(&bias).1);
    convolution(plan, call, &scaled, Some(&bias))
}

fn convolution(
    plan: &mut Plan,
    call: &Call<'_>,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor, NotCovered> {
    let (x, weight) = (call.input(0)?.clone(), weight.clone());
    let space = space(call, &x)?;
    if call
        .argument("padding")
        .is_some_and(serde_json::Value::is_string)
    {
        return Err(call.refuse("padding by name"));
    }
    let window = window(call, space)?;
    let groups = call.integer_or("groups", 1)?;
    let (channels, filters) = (x.shape[1], weight.shape[0]);
    let taps = weight.shape[2..].to_vec();
    let (each, size) = (channels / groups, taps.iter().product::<i64>());
    let plain =
        window.stride.iter().all(|one| *one == 1) && window.padding.iter().all(|one| *one == 0);
    if size == 1 && plain && groups == 1 && x.shape[0] * x.shape[2..].iter().product::<i64>() > 1 {
        // One pixel at a time it is a product of matrices.
        let pixels: i64 = x.shape[2..].iter().product();
        let columns = x.reshaped(&[x.shape[0], channels, pixels]);
        let rows = weight.reshaped(&[filters, channels]);
        let product = product(plan, call, &rows, &columns)?.reshaped(&call.shape);
        return with_bias(call, &product, bias);
    }
    let direct = match plan.target {
        Target::Cpu => groups > 1 && each * size <= 64,
        Target::Cuda => groups == channels && groups == filters,
    };
    if direct {
        let x = without_reductions(plan, &x);
        let x = if x.work > 0 { plan.realize(&x).1 } else { x };
        let mut extents = vec![each];
        extents.extend(&taps);
        let of_group = filters / groups;
        let sum = plan.reduce(
            &call.shape,
            &extents,
            Fold::Sum,
            "sum",
            move |arena, at, tap| {
                let group = at[1].divided(of_group);
                let mut place = vec![at[0].clone(), group.times(each).plus(&tap[0])];
                place.extend(window.place(&at[2..], &tap[1..]));
                let value = x.beyond(arena, &place, 0.0);
                let mut filter = vec![at[1].clone()];
                filter.extend(tap.iter().cloned());
                let factor = (weight.at)(arena, &filter);
                arena.mul(value, factor)
            },
        );
        return with_bias(call, &sum, bias);
    }
    let ((from, _), (by, _)) = (plan.realize(&x), plan.realize(&weight));
    let out = plan.room(Origin::Made, &call.shape, Kind::Float);
    plan.library(Library::Convolution(Convolution {
        batch: x.shape[0],
        channels,
        filters,
        groups,
        input: x.shape[2..].to_vec(),
        kernel: taps,
        output: call.shape[2..].to_vec(),
        stride: window.stride,
        padding: window.padding,
        dilation: window.dilation,
        x: from,
        weight: by,
        out,
        transposed: false,
        epilogue: Epilogue::default(),
    }));
    let result = Tensor::of_buffer(out, &call.shape, Kind::Float);
    with_bias(call, &result, bias)
}

fn transposed(plan: &mut Plan, call: &Call<'_>) -> Result<Tensor, NotCovered> {
    let (x, weight) = (call.input(0)?.clone(), call.input(1)?.clone());
    let space = space(call, &x)?;
    let window = window(call, space)?;
    call.argument("output_padding");
    let groups = call.integer_or("groups", 1)?;
    let taps = weight.shape[2..].to_vec();
    let (channels, filters) = (x.shape[1], weight.shape[1] * groups);
    if plan.target == Target::Cuda {
        let ((from, _), (by, _)) = (plan.realize(&x), plan.realize(&weight));
        let out = plan.room(Origin::Made, &call.shape, Kind::Float);
        plan.library(Library::Convolution(Convolution {
            batch: x.shape[0],
            channels,
            filters,
            groups,
            input: x.shape[2..].to_vec(),
            kernel: taps,
            output: call.shape[2..].to_vec(),
            stride: window.stride,
            padding: window.padding,
            dilation: window.dilation,
            x: from,
            weight: by,
            out,
            transposed: true,
            epilogue: Epilogue::default(),
        }));
        let result = Tensor::of_buffer(out, &call.shape, Kind::Float);
        return with_bias(call, &result, call.optional(2));
    }
    if groups != 1 {
        return Err(call.refuse("groups"));
    }
    // What every pixel adds to its surroundings is a product of matrices; each result then sums what it was given.
    let pixels: i64 = x.shape[2..].iter().product();
    let size: i64 = taps.iter().product();
    let columns = x.reshaped(&[x.shape[0], channels, pixels]);
    let rows = weight
        .reshaped(&[channels, filters * size])
        .transposed(0, 1);
    let mut parts_shape = vec![x.shape[0], filters];
    parts_shape.extend(&taps);
    parts_shape.extend(&x.shape[2..]);
    let parts = product(plan, call, &rows, &columns)?.reshaped(&parts_shape);
    let inside = x.shape[2..].to_vec();
    let sum = plan.reduce(
        &call.shape,
        &taps,
        Fold::Sum,
        "sum",
        move |arena, at, tap| {
            let mut place = at[..2].to_vec();
            place.extend(tap.iter().cloned());
            let mut guard = Vec::new();
            for dim in 0..space {
                let from = at[2 + dim]
                    .offset(window.padding[dim])
                    .plus(&tap[dim].times(-window.dilation[dim]));
                let stride = window.stride[dim];
                guard.extend(Within::new(from.clone(), 0, inside[dim] * stride));
                guard.extend(Within::new(from.remainder(stride), 0, 1));
                place.push(from.divided(stride));
            }
            let value = (parts.at)(arena, &place);
            if guard.is_empty() {
                return value;
            }
            let value = arena.guarded(value, &guard);
            let zero = arena.constant(0.0);
            let inside = arena.inside(guard);
            arena.select(inside, value, zero)
        },
    );
    with_bias(call, &sum, call.optional(2))
}

/// Made beforehand where windows overlap: it would be computed once for each of them.
fn before_windows(plan: &mut Plan, x: &Tensor, overlap: bool) -> Tensor {
    if x.work >= 100 || overlap && x.work > 0 {
        return plan.realize(x).1;
    }
    x.clone()
}

fn pool(plan: &mut Plan, call: &Call<'_>) -> Result<Tensor, NotCovered> {
    let x = call.input(0)?.clone();
    let space = space(call, &x)?;
    call.without("ceil_mode")?;
    let kernel = call.each("kernel_size", space, &[])?;
    let window = Window {
        stride: call.each("stride", space, &kernel)?,
        padding: call.each("padding", space, &vec![0; space])?,
        dilation: call.each("dilation", space, &vec![1; space])?,
    };
    if kernel.len() != space {
        return Err(call.refuse("no window"));
    }
    call.without("return_indices")?;
    if call.argument("divisor_override").is_some() {
        return Err(call.refuse("`divisor_override`"));
    }
    let padded = window.padding.iter().any(|one| *one > 0);
    if !call.flag("count_include_pad", true)? && padded {
        return Err(call.refuse("a border that does not count"));
    }
    let overlap = kernel
        .iter()
        .zip(&window.stride)
        .any(|(kernel, stride)| stride < kernel);
    let x = before_windows(plan, &x, overlap);
    let size: i64 = kernel.iter().product();
    let max = call.op.starts_with("max");
    let power = call.op.starts_with("lp");
    if power && !is(call.number("norm_type")?, 2.0) {
        return Err(call.refuse("another norm than the second"));
    }
    let outside = if max { f64::NEG_INFINITY } else { 0.0 };
    let (fold, name) = if max {
        (Fold::Max, "top")
    } else {
        (Fold::Sum, "sum")
    };
    let found = plan.reduce(&call.shape, &kernel, fold, name, move |arena, at, tap| {
        let mut place = at[..2].to_vec();
        place.extend(window.place(&at[2..], tap));
        let value = x.beyond(arena, &place, outside);
        if power {
            arena.mul(value, value)
        } else {
            value
        }
    });
    if max {
        return Ok(found);
    }
    call.float_map(&[found], "pooled", move |arena, x| {
        if power {
            return arena.unary(Unary::Sqrt, x[0]);
        }
        let part = arena.constant(1.0 / size as f64);
        arena.mul(x[0], part)
    })
}

fn adaptive(plan: &mut Plan, call: &Call<'_>) -> Result<Tensor, NotCovered> {
    let x = call.input(0)?.clone();
    let space = space(call, &x)?;
    call.without("return_indices")?;
    call.argument("output_size");
    let (from, to) = (x.shape[2..].to_vec(), call.shape[2..].to_vec());
    let max = call.op.contains("max");
    let (fold, name) = if max {
        (Fold::Max, "top")
    } else {
        (Fold::Sum, "sum")
    };
    let x = before_windows(plan, &x, false);
    let even = from.iter().zip(&to).all(|(from, to)| from % to == 0);
    if even {
        // Windows side by side: dimensions of their own.
        let mut shape = x.shape[..2].to_vec();
        let mut dims = Vec::new();
        for (from, to) in from.iter().zip(&to) {
            shape.extend([*to, from / to]);
            dims.push(shape.len() - 1);
        }
        let size: i64 = from.iter().product::<i64>() / to.iter().product::<i64>();
        let found = plan
            .reduce_dims(&x.reshaped(&shape), &dims, fold, name)
            .reshaped(&call.shape);
        if max {
            return Ok(found);
        }
        return call.float_map(&[found], "pooled", move |arena, x| {
            let part = arena.constant(1.0 / size as f64);
            arena.mul(x[0], part)
        });
    }
    let most: Vec<i64> = from
        .iter()
        .zip(&to)
        .map(|(from, to)| (from + to - 1) / to + 1)
        .collect();
    let bounds = move |dim: usize, at: &Index| {
        let start = at.times(from[dim]).divided(to[dim]);
        let end = at
            .offset(1)
            .times(from[dim])
            .offset(to[dim] - 1)
            .divided(to[dim]);
        (start, end)
    };
    let bounds_of = bounds.clone();
    let neutral = fold.neutral();
    let found = plan.reduce(&call.shape, &most, fold, name, move |arena, at, tap| {
        let mut place = at[..2].to_vec();
        let mut guard = Vec::new();
        for dim in 0..space {
            let (start, end) = bounds_of(dim, &at[2 + dim]);
            let index = start.plus(&tap[dim]);
            let beyond = index.plus(&end.times(-1));
            guard.extend(Within::new(beyond, -i64::from(i32::MAX), 0));
            place.push(index);
        }
        let value = (x.at)(arena, &place);
        let value = arena.guarded(value, &guard);
        let nothing = arena.constant(neutral);
        let inside = arena.inside(guard);
        arena.select(inside, value, nothing)
    });
    if max {
        return Ok(found);
    }
    let inner = found.at.clone();
    Ok(Tensor::computed(
        &call.shape,
        Kind::Float,
        found.work,
        move |arena, at| {
            let mut value = inner(arena, at);
            for dim in 0..space {
                let (start, end) = bounds(dim, &at[2 + dim]);
                let length = arena.place(end.plus(&start.times(-1)));
                let length = arena.unary(Unary::ToFloat, length);
                value = arena.div(value, length);
            }
            value
        },
    ))
}

fn pad(plan: &mut Plan, call: &Call<'_>) -> Result<Tensor, NotCovered> {
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
        let x = without_reductions(plan, &x);
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
    let (buffer, x) = plan.realize(&x);
    let shape = x.shape.clone();
    let padded = call.shape.clone();
    Ok(Tensor::computed(&padded, x.kind, 1, move |arena, at| {
        let (mut fixed, mut looked_up) = (Vec::new(), Vec::new());
        for dim in 0..shape.len() {
            let stride: i64 = shape[dim + 1..].iter().product();
            let place = at[dim].offset(-before[dim]);
            if Within::new(place.clone(), 0, shape[dim]).is_none() {
                fixed.push(place);
                continue;
            }
            fixed.push(Index::default());
            let place = arena.place(place);
            looked_up.push((how(arena, place, shape[dim]), stride));
        }
        let index = crate::teacher::index::linear(&shape, &fixed);
        arena.look_up(buffer, index, looked_up)
    }))
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

fn interpolate(plan: &mut Plan, call: &Call<'_>) -> Result<Tensor, NotCovered> {
    let x = call.input(0)?.clone();
    call.argument("size");
    call.argument("scale_factor");
    call.without("antialias")?;
    let mode = call.text("mode", "nearest")?;
    let corners = call.flag("align_corners", false)?;
    let (from, to) = (x.shape[2..].to_vec(), call.shape[2..].to_vec());
    let space = from.len();
    let x = without_reductions(plan, &x);
    if mode == "nearest" {
        let even = from.iter().zip(&to).all(|(from, to)| to % from == 0);
        if !even {
            return Err(call.refuse("a scale that is no whole number"));
        }
        return Ok(x.view(&call.shape, move |at| {
            let mut place = at.to_vec();
            for dim in 0..space {
                place[2 + dim] = at[2 + dim].divided(to[dim] / from[dim]);
            }
            place
        }));
    }
    if mode != "bilinear" || !corners || space != 2 || to.contains(&1) {
        return Err(call.refuse("this mode of resizing"));
    }
    let shape = call.shape.clone();
    Ok(Tensor::computed(
        &shape,
        Kind::Float,
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

fn local_response(plan: &mut Plan, call: &Call<'_>) -> Result<Tensor, NotCovered> {
    let x = call.input(0)?.clone();
    let size = call.integer("size")?;
    let (alpha, beta) = (
        call.number_or("alpha", 1e-4)?,
        call.number_or("beta", 0.75)?,
    );
    let k = call.number_or("k", 1.0)?;
    let x = before_windows(plan, &x, true);
    let inner = x.clone();
    let sum = plan.reduce(
        &x.shape,
        &[size],
        Fold::Sum,
        "squares",
        move |arena, at, tap| {
            let mut place = at.to_vec();
            place[1] = place[1].plus(&tap[0]).offset(-(size / 2));
            let value = inner.beyond(arena, &place, 0.0);
            arena.mul(value, value)
        },
    );
    call.float_map(&[x, sum], "response", move |arena, x| {
        let (part, k) = (arena.constant(alpha / size as f64), arena.constant(k));
        let scaled = arena.mul(x[1], part);
        let base = arena.add(scaled, k);
        let below = if is(beta, 0.75) {
            let root = arena.unary(Unary::Sqrt, base);
            let fourth = arena.unary(Unary::Sqrt, root);
            arena.mul(root, fourth)
        } else {
            let beta = arena.constant(beta);
            arena.binary(Binary::Pow, base, beta)
        };
        arena.div(x[0], below)
    })
}
