//! Convolutions: the library's, and those that are small enough to be written out.

use super::matrix::{library_adds, product};
use super::window::{Window, before_windows, space};
use super::{NotCovered, OperatorCall};
use crate::library::{Convolution, Epilogue, Library};
use crate::plan::{BufferOrigin, Plan, ReduceOp};
use crate::scalar::{BoundsCheck, ElementType, Unary};
use crate::simplify::FOLDED;
use crate::tensor::Tensor;
use warpsmith_schema::Target;

pub(super) fn rule(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Option<Tensor>, NotCovered> {
    let found = match call.op {
        "conv1d" | "conv2d" | "conv3d" => {
            let (weight, bias) = (call.input(1)?.clone(), call.optional(2).cloned());
            convolution(plan, call, &weight, bias.as_ref())?
        }
        op if op.starts_with(FOLDED) => folded(plan, call)?,
        "conv_transpose1d" | "conv_transpose2d" | "conv_transpose3d" => transposed(plan, call)?,
        _ => return Ok(None),
    };
    Ok(Some(found))
}

fn with_bias(
    plan: &mut Plan,
    call: &OperatorCall<'_>,
    x: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor, NotCovered> {
    let Some(bias) = bias else {
        return Ok(x.clone());
    };
    if library_adds(plan, x, bias) {
        return Ok(x.clone());
    }
    let mut shape = vec![1; x.rank()];
    shape[1] = bias.count();
    let bias = bias.reshaped(&shape);
    call.float_map(&[x.clone(), bias], "conv", |arena, x| arena.add(x[0], x[1]))
}

/// Scale and shift of the normalisation after it in weights and bias, which are computed anew in every call.
fn folded(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
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
    call: &OperatorCall<'_>,
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
    let window = Window::new(call, space, &vec![1; space])?;
    let groups = call.integer_or("groups", 1)?;
    let (channels, filters) = (x.shape[1], weight.shape[0]);
    let taps = weight.shape[2..].to_vec();
    let (each, size) = (channels / groups, taps.iter().product::<i64>());
    let plain =
        window.stride.iter().all(|one| *one == 1) && window.padding.iter().all(|one| *one == 0);
    let by_product = size == 1 && plain && groups == 1 && !plan.is_regular();
    if by_product && x.shape[0] * x.shape[2..].iter().product::<i64>() > 1 {
        // One pixel at a time it is a product of matrices.
        let pixels: i64 = x.shape[2..].iter().product();
        let columns = x.reshaped(&[x.shape[0], channels, pixels]);
        let rows = weight.reshaped(&[filters, channels]);
        let product = product(plan, call, &rows, &columns)?.reshaped(&call.shape);
        return with_bias(plan, call, &product, bias);
    }
    let direct = match plan.target {
        Target::Cpu => groups > 1 && each * size <= 64,
        Target::Cuda => groups == channels && groups == filters && !plan.is_regular(),
    };
    if direct {
        let x = before_windows(plan, &x, each * size);
        let mut extents = vec![each];
        extents.extend(&taps);
        let of_group = filters / groups;
        let work = x.work + weight.work;
        let sum = plan.reduce_window(
            &call.shape,
            &extents,
            (ReduceOp::Sum, "sum"),
            work,
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
        return with_bias(plan, call, &sum, bias);
    }
    let found = called(plan, call, &x, &weight, &window, groups, Way::Forward);
    with_bias(plan, call, &found, bias)
}

/// Which of the two a library computes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Forward,
    /// The gradient of the other way round: what is called a transposed convolution.
    Back,
}

fn called(
    plan: &mut Plan,
    call: &OperatorCall<'_>,
    x: &Tensor,
    weight: &Tensor,
    window: &Window,
    groups: i64,
    way: Way,
) -> Tensor {
    let narrow = x.element.is_narrow_float() && weight.element.is_narrow_float();
    let x = &plan.settled(x);
    let [from, by] = [x, weight].map(|one| plan.realize(&one.stored_as(ElementType::Float)).0);
    let out = plan.allocate(BufferOrigin::Computed, &call.shape, ElementType::Float);
    plan.library(Library::Convolution(Convolution {
        batch: x.shape[0],
        channels: x.shape[1],
        filters: call.shape[1],
        groups,
        input: x.shape[2..].to_vec(),
        kernel: weight.shape[2..].to_vec(),
        output: call.shape[2..].to_vec(),
        stride: window.stride.clone(),
        padding: window.padding.clone(),
        dilation: window.dilation.clone(),
        x: from,
        weight: by,
        out,
        transposed: way == Way::Back,
        narrow,
        epilogue: Epilogue::default(),
    }));
    Tensor::of_buffer(out, &call.shape, ElementType::Float)
}

fn transposed(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    let (x, weight) = (call.input(0)?.clone(), call.input(1)?.clone());
    let space = space(call, &x)?;
    let window = Window::new(call, space, &vec![1; space])?;
    call.argument("output_padding");
    let groups = call.integer_or("groups", 1)?;
    let taps = weight.shape[2..].to_vec();
    let (channels, filters) = (x.shape[1], weight.shape[1] * groups);
    if plan.target == Target::Cuda {
        let found = called(plan, call, &x, &weight, &window, groups, Way::Back);
        return with_bias(plan, call, &found, call.optional(2));
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
        ReduceOp::Sum,
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
                guard.extend(BoundsCheck::new(from.clone(), 0, inside[dim] * stride));
                guard.extend(BoundsCheck::new(from.remainder(stride), 0, 1));
                place.push(from.divided(stride));
            }
            let value = (parts.at)(arena, &place);
            if guard.is_empty() {
                return value;
            }
            let value = arena.guarded(value, &guard);
            let zero = arena.constant(0.0);
            let inside = arena.in_bounds(guard);
            arena.select(inside, value, zero)
        },
    );
    with_bias(plan, call, &sum, call.optional(2))
}
