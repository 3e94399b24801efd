//! Windows over space: pools, and what responds to its neighbours.

use serde_json::Value;

use super::{NotCovered, OperatorCall, is};
use crate::index::Index;
use crate::plan::{Plan, REDUCTION_WORK, ReduceOp};
use crate::scalar::{Arena, Binary, BoundsCheck, Scalar, ScalarType, Unary};
use crate::tensor::Tensor;

pub(super) fn rule(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Option<Tensor>, NotCovered> {
    let found = match call.op {
        "max_pool1d" | "max_pool2d" | "max_pool3d" | "avg_pool1d" | "avg_pool2d" | "avg_pool3d"
        | "lp_pool1d" | "lp_pool2d" | "lp_pool3d" => pool(plan, call)?,
        "adaptive_avg_pool1d"
        | "adaptive_avg_pool2d"
        | "adaptive_avg_pool3d"
        | "adaptive_max_pool1d"
        | "adaptive_max_pool2d"
        | "adaptive_max_pool3d" => adaptive(plan, call)?,
        "local_response_norm" => local_response(plan, call)?,
        _ => return Ok(None),
    };
    Ok(Some(found))
}

/// Dimensions of space: what comes after images and channels.
pub(super) fn space(call: &OperatorCall<'_>, x: &Tensor) -> Result<usize, NotCovered> {
    let digit = call.op.trim_end_matches('d').chars().last();
    let space = digit
        .and_then(|digit| digit.to_digit(10))
        .map(|digit| digit as usize);
    match space {
        Some(space) if space + 2 == x.rank() => Ok(space),
        _ => Err(call.refuse("an input without a batch")),
    }
}

#[derive(Debug, Clone)]
pub(super) struct Window {
    pub(super) stride: Vec<i64>,
    pub(super) padding: Vec<i64>,
    pub(super) dilation: Vec<i64>,
}

impl Window {
    pub(super) fn new(
        call: &OperatorCall<'_>,
        space: usize,
        stride: &[i64],
    ) -> Result<Self, NotCovered> {
        Ok(Self {
            stride: call.each("stride", space, stride)?,
            padding: call.each("padding", space, &vec![0; space])?,
            dilation: call.each("dilation", space, &vec![1; space])?,
        })
    }

    /// The places that a window meets, before the borders are looked at.
    pub(super) fn place(&self, at: &[Index], tap: &[Index]) -> Vec<Index> {
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

/// What windows of so many places that share some of them are laid over: made beforehand where computing it anew for
/// each of them would cost more than writing and reading it.
pub(super) fn before_windows(plan: &mut Plan, x: &Tensor, taps: i64) -> Tensor {
    let own = i64::from((x.work % REDUCTION_WORK).max(1));
    if x.work == 0 || plan.unrolls_window(taps) && own * taps <= 48 {
        return plan.elementwise(x);
    }
    plan.realize(x).1
}

fn pool(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    let x = plan.without_reductions(call.input(0)?);
    let space = space(call, &x)?;
    // The graph says how many windows there are.
    let ceil = call.flag("ceil_mode", false)?;
    let kernel = call.each("kernel_size", space, &[])?;
    let window = Window::new(call, space, &kernel)?;
    if kernel.len() != space {
        return Err(call.refuse("no window"));
    }
    call.without("return_indices")?;
    let divisor = Divisor {
        given: call.argument("divisor_override").and_then(Value::as_i64),
        counts_border: call.flag("count_include_pad", true)?,
        from: x.shape[2..].to_vec(),
        to: call.shape[2..].to_vec(),
        kernel: kernel.clone(),
        window: window.clone(),
    };
    let overlap = kernel
        .iter()
        .zip(&window.stride)
        .any(|(kernel, stride)| stride < kernel);
    let size: i64 = kernel.iter().product();
    let x = if overlap {
        before_windows(plan, &x, size)
    } else {
        plan.elementwise(&x)
    };
    let max = call.op.starts_with("max");
    let power = call.op.starts_with("lp");
    if power && !is(call.number("norm_type")?, 2.0) {
        return Err(call.refuse("another norm than the second"));
    }
    let outside = if max { f64::NEG_INFINITY } else { 0.0 };
    let (fold, name) = if max {
        (ReduceOp::Max, "top")
    } else {
        (ReduceOp::Sum, "sum")
    };
    let (work, how) = (x.work, (fold, name));
    let found = plan.reduce_window(&call.shape, &kernel, how, work, move |arena, at, tap| {
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
    if power && ceil {
        return Err(call.refuse("`ceil_mode`"));
    }
    if power {
        return call.float_map(&[found], "pooled", |arena, x| {
            arena.unary(Unary::Sqrt, x[0])
        });
    }
    let (inner, work) = (found.at.clone(), found.work + 1);
    Ok(Tensor::computed(
        &call.shape,
        ScalarType::Float,
        work,
        move |arena, at| {
            let sum = inner(arena, at);
            let mean = divisor.divided(arena, sum, &at[2..]);
            arena.name(mean, "pooled")
        },
    ))
}

/// How many elements an average is over.
struct Divisor {
    given: Option<i64>,
    counts_border: bool,
    from: Vec<i64>,
    to: Vec<i64>,
    kernel: Vec<i64>,
    window: Window,
}

impl Divisor {
    fn divided(&self, arena: &mut Arena, sum: Scalar, at: &[Index]) -> Scalar {
        let (mut fixed, mut counts) = (1, Vec::new());
        for (dim, place) in at.iter().enumerate() {
            // What of a window counts lies from `low` to `high`.
            let border = self.window.padding[dim];
            let (low, high) = if self.counts_border {
                (-border, self.from[dim] + border)
            } else {
                (0, self.from[dim])
            };
            let stride = self.window.stride[dim];
            let last = (self.to[dim] - 1) * stride - border + self.kernel[dim];
            if -border >= low && last <= high {
                fixed *= self.kernel[dim];
                continue;
            }
            let start = place.times(stride).offset(-border);
            let end = arena.place(start.offset(self.kernel[dim]));
            let start = arena.place(start);
            let (low, high) = (arena.int(low), arena.int(high));
            let start = arena.max(start, low);
            let end = arena.binary(Binary::Min, end, high);
            let count = arena.sub(end, start);
            counts.push(arena.unary(Unary::ToFloat, count));
        }
        let fixed = self.given.unwrap_or(fixed);
        let part = arena.constant(1.0 / fixed as f64);
        let sum = arena.mul(sum, part);
        if self.given.is_some() {
            return sum;
        }
        counts
            .into_iter()
            .fold(sum, |sum, count| arena.div(sum, count))
    }
}

fn adaptive(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    let x = plan.without_reductions(call.input(0)?);
    let space = space(call, &x)?;
    call.without("return_indices")?;
    call.argument("output_size");
    let (from, to) = (x.shape[2..].to_vec(), call.shape[2..].to_vec());
    let max = call.op.contains("max");
    let (fold, name) = if max {
        (ReduceOp::Max, "top")
    } else {
        (ReduceOp::Sum, "sum")
    };
    let x = plan.elementwise(&x);
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
    let neutral = fold.identity();
    let found = plan.reduce(&call.shape, &most, fold, name, move |arena, at, tap| {
        let mut place = at[..2].to_vec();
        let mut guard = Vec::new();
        for dim in 0..space {
            let (start, end) = bounds_of(dim, &at[2 + dim]);
            let index = start.plus(&tap[dim]);
            let beyond = index.plus(&end.times(-1));
            guard.extend(BoundsCheck::new(beyond, -i64::from(i32::MAX), 0));
            place.push(index);
        }
        let value = (x.at)(arena, &place);
        let value = arena.guarded(value, &guard);
        let nothing = arena.constant(neutral);
        let inside = arena.in_bounds(guard);
        arena.select(inside, value, nothing)
    });
    if max {
        return Ok(found);
    }
    let inner = found.at.clone();
    Ok(Tensor::computed(
        &call.shape,
        ScalarType::Float,
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

fn local_response(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    let x = call.input(0)?.clone();
    let size = call.integer("size")?;
    let (alpha, beta) = (
        call.number_or("alpha", 1e-4)?,
        call.number_or("beta", 0.75)?,
    );
    let k = call.number_or("k", 1.0)?;
    let x = before_windows(plan, &x, size);
    let inner = x.clone();
    let sum = plan.reduce_window(
        &x.shape,
        &[size],
        (ReduceOp::Sum, "squares"),
        x.work + 1,
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
