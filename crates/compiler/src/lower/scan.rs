//! Along a dimension, every element with all before it.

use std::rc::Rc;

use super::{NotCovered, OperatorCall};
use crate::plan::{BufferOrigin, Kernel, Plan, ScanKernel, ScanOp};
use crate::scalar::ScalarType;
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
    call.argument("dtype");
    let x = &match (call.kind, x.kind) {
        (ScalarType::Float, _) => x.to_float(),
        (ScalarType::Int, ScalarType::Int | ScalarType::Bool)
            if matches!(how, ScanOp::Sum | ScanOp::Product) =>
        {
            x.to_whole()
        }
        _ => return Err(call.refuse("elements that are no floats")),
    };
    let element = call.kind.into();
    let dim = call.dim("dim", x.rank())?;
    let before: i64 = x.shape[..dim].iter().product();
    let after: i64 = x.shape[dim + 1..].iter().product();
    let shape = [before, x.shape[dim], after];
    let value = plan.elementwise(x).reshaped(&shape);
    let out = plan.allocate(BufferOrigin::Computed, &x.shape, element);
    plan.push(Kernel::Scan(ScanKernel {
        shape,
        op: how,
        kind: call.kind,
        value: Rc::clone(&value.at),
        out,
        epilogue: None,
    }));
    Ok(Some(Tensor::of_buffer(out, &x.shape, element)))
}
