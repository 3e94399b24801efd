//! Tensors that no operand decides, and other types of the same values.

use super::{NotCovered, OperatorCall};
use crate::plan::Plan;
use crate::scalar::{Binary, ScalarType, Unary};
use crate::tensor::Tensor;

pub(super) fn rule(_: &mut Plan, call: &OperatorCall<'_>) -> Result<Option<Tensor>, NotCovered> {
    let found = match call.op {
        "full" => {
            call.argument("size");
            call.argument("dtype");
            Tensor::number(call.number("fill_value")?, call.kind, &call.shape)
        }
        "arange" => {
            call.argument("length");
            call.argument("dtype");
            arange(call)?
        }
        "to" => {
            call.argument("dtype");
            converted(call)?
        }
        "one_hot" => {
            call.argument("num_classes");
            one_hot(call)?
        }
        _ => return Ok(None),
    };
    Ok(Some(found))
}

fn arange(call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    if call.kind == ScalarType::Int {
        let (start, step) = (call.integer("start")?, call.integer("step")?);
        return Ok(Tensor::computed(
            &call.shape,
            call.kind,
            1,
            move |arena, at| arena.place(at[0].times(step).offset(start)),
        ));
    }
    let (start, step) = (call.number("start")?, call.number("step")?);
    Ok(Tensor::computed(
        &call.shape,
        ScalarType::Float,
        1,
        move |arena, at| {
            let place = arena.place(at[0].clone());
            let place = arena.unary(Unary::ToFloat, place);
            let (start, step) = (arena.constant(start), arena.constant(step));
            let far = arena.mul(place, step);
            arena.add(far, start)
        },
    ))
}

fn one_hot(call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    let classes = call.input(0)?;
    if classes.kind != ScalarType::Int {
        return Err(call.refuse("classes that are no integers"));
    }
    let (inner, rank) = (classes.at.clone(), classes.rank());
    let work = classes.work + 1;
    Ok(Tensor::computed(
        &call.shape,
        call.kind,
        work,
        move |arena, at| {
            let class = inner(arena, &at[..rank]);
            let place = arena.place(at[rank].clone());
            let is_class = arena.binary(Binary::Equal, class, place);
            let (one, zero) = (arena.int(1), arena.int(0));
            arena.select(is_class, one, zero)
        },
    ))
}

fn converted(call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    let x = call.input(0)?;
    match call.kind {
        // Of another width perhaps: whoever stores it decides.
        kind if kind == x.kind => Ok(Tensor {
            buffer: None,
            turned: None,
            ..x.clone()
        }),
        ScalarType::Float => Ok(x.to_float()),
        ScalarType::Int => {
            let one = std::slice::from_ref(x);
            call.map(one, "whole", ScalarType::Int, |arena, x| {
                arena.unary(Unary::ToInt, x[0])
            })
        }
        ScalarType::Bool => {
            let one = std::slice::from_ref(x);
            let float = x.kind == ScalarType::Float;
            call.map(one, "mask", ScalarType::Bool, move |arena, x| {
                let zero = if float {
                    arena.constant(0.0)
                } else {
                    arena.int(0)
                };
                arena.binary(Binary::NotEqual, x[0], zero)
            })
        }
    }
}
