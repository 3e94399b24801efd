//! Along a dimension, every element with all before it.

use std::rc::Rc;

use super::reduce::float_only;
use super::{NotCovered, OperatorCall};
use crate::plan::{BufferOrigin, Kernel, Plan, ScanKernel, ScanOp};
use crate::scalar::ElementType;
use crate::tensor::Tensor;

pub(super) fn rule(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Option<Tensor>, NotCovered> {
    let how = match call.op {
        "cumsum" => ScanOp::Sum,
        "cumprod" => ScanOp::Product,
        "logcumsumexp" => ScanOp::LogSum,
        "cummax" => ScanOp::Max,
        "cummin" => ScanOp::Min,
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
    let out = plan.allocate(BufferOrigin::Computed, &x.shape, ElementType::Float);
    plan.push(Kernel::Scan(ScanKernel {
        shape,
        op: how,
        value: Rc::clone(&value.at),
        out,
        epilogue: None,
    }));
    Ok(Some(Tensor::of_buffer(out, &x.shape, ElementType::Float)))
}
