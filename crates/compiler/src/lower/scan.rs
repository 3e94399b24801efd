//! Along a dimension, every element with all before it.

use std::rc::Rc;

use super::reduce::float_only;
use super::{Call, NotCovered};
use crate::plan::{Kernel, Origin, Plan, Scan, Scanning};
use crate::scalar::Kind;
use crate::tensor::Tensor;

pub(super) fn rule(plan: &mut Plan, call: &Call<'_>) -> Result<Option<Tensor>, NotCovered> {
    let how = match call.op {
        "cumsum" => Scanning::Sum,
        "cumprod" => Scanning::Product,
        "logcumsumexp" => Scanning::LogSum,
        "cummax" => Scanning::Max,
        "cummin" => Scanning::Min,
        _ => return Ok(None),
    };
    if call.result != 0 {
        return Err(call.refuse("places wanted"));
    }
    let x = call.input(0)?;
    float_only(call, x)?;
    if call.argument("dtype").is_some() {
        return Err(call.refuse("another type"));
    }
    let dim = call.dim("dim", x.rank())?;
    let before: i64 = x.shape[..dim].iter().product();
    let after: i64 = x.shape[dim + 1..].iter().product();
    let shape = [before, x.shape[dim], after];
    let value = plan.elementwise(x).reshaped(&shape);
    let out = plan.room(Origin::Made, &x.shape, Kind::Float);
    plan.push(Kernel::Scan(Scan {
        shape,
        how,
        value: Rc::clone(&value.at),
        out,
        then: None,
    }));
    Ok(Some(Tensor::of_buffer(out, &x.shape, Kind::Float)))
}
