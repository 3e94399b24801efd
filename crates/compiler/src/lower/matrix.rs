//! Products of matrices.

use super::reduce::divided;
use super::{NotCovered, OperatorCall, is};
use crate::index::{Index, linear};
use crate::library::{Epilogue, Gemm, Library, Operand};
use crate::plan::{BufferOrigin, Kernel, Plan, ReduceOp};
use crate::scalar::{ElementType, Node, ScalarType, Unary};
use crate::simplify::{PRODUCT_OF_SUM, SCALED_COLUMNS, SCALED_ROWS, SUM_OF_PRODUCT};
use crate::tensor::Tensor;

type Found = Result<Option<Tensor>, NotCovered>;

pub(super) fn rule(plan: &mut Plan, call: &OperatorCall<'_>) -> Found {
    let found = match call.op {
        "linear" => {
            let (x, weight) = (call.input(0)?.clone(), call.input(1)?.transposed(0, 1));
            let product = product(plan, call, &x, &weight)?;
            match call.optional(2) {
                Some(bias) if library_adds(plan, &product, bias) => product,
                bias => plus(call, product, bias, "linear")?,
            }
        }
        SUM_OF_PRODUCT => sum_of_product(plan, call)?,
        PRODUCT_OF_SUM => product_of_sum(plan, call)?,
        SCALED_ROWS | SCALED_COLUMNS => {
            let (factors, matrix) = (call.input(0)?, call.input(1)?.clone());
            let factors = match call.op {
                SCALED_ROWS => factors.reshaped(&[factors.count(), 1]),
                _ => factors.clone(),
            };
            call.float_map(&[factors, matrix], "scaled", |arena, x| {
                arena.mul(x[0], x[1])
            })?
        }
        "matmul" | "mm" | "bmm" => {
            let (a, b) = (call.input(0)?.clone(), call.input(1)?.clone());
            match (a.rank(), b.rank()) {
                (_, 1) => by_vector(plan, call, &a, &b)?,
                _ => product(plan, call, &a, &b)?,
            }
        }
        "mv" => by_vector(plan, call, &call.input(0)?.clone(), &call.input(1)?.clone())?,
        "inner" if call.input(1)?.rank() == 2 => {
            let other = call.input(1)?.transposed(0, 1);
            product(plan, call, &call.input(0)?.clone(), &other)?
        }
        "addmm" | "baddbmm" => {
            let (alpha, beta) = (call.number_or("alpha", 1.0)?, call.number_or("beta", 1.0)?);
            if !is(alpha, 1.0) || !is(beta, 1.0) {
                return Err(call.refuse("factors"));
            }
            let product = product(plan, call, &call.input(1)?.clone(), &call.input(2)?.clone())?;
            plus(call, product, call.optional(0), "addmm")?
        }
        "bilinear" => bilinear(plan, call)?,
        "cdist" => distances(plan, call)?,
        _ => return Ok(None),
    };
    Ok(Some(found))
}

/// Whether the library call that has just been planned, whose result this is, adds the bias too.
pub(super) fn library_adds(plan: &mut Plan, result: &Tensor, bias: &Tensor) -> bool {
    let Some(buffer) = bias.buffer.filter(|_| plan.is_regular()) else {
        return false;
    };
    if bias.rank() != 1 || !plan.buffers[buffer.0].is_float_memory() {
        return false;
    }
    match plan.steps.last_mut().map(|step| &mut step.kernel) {
        Some(Kernel::Library(library)) if result.buffer == Some(library.out()) => {
            library.epilogue().bias = Some(buffer);
            true
        }
        _ => false,
    }
}

fn plus(
    call: &OperatorCall<'_>,
    x: Tensor,
    bias: Option<&Tensor>,
    name: &'static str,
) -> Result<Tensor, NotCovered> {
    match bias {
        None => Ok(x),
        Some(bias) => call.float_map(&[x, bias.clone()], name, |arena, x| arena.add(x[0], x[1])),
    }
}

/// The last two dimensions are a matrix: where it lies, turned round if it does, or made.
fn operand(plan: &mut Plan, x: &Tensor) -> Operand {
    let batched = x.rank() > 2;
    let vars: Vec<Index> = x
        .shape
        .iter()
        .map(|extent| Index::from(plan.arena.var(*extent)))
        .collect();
    let value = (x.at)(&mut plan.arena, &vars);
    if let Node::Load {
        buffer,
        index,
        looked_up,
        guard,
    } = plan.arena.node(value).clone()
        && looked_up.is_empty()
        && guard.is_empty()
        && plan.buffers[buffer.0].shape.iter().product::<i64>() == x.count()
        && plan.buffers[buffer.0].is_float_memory()
    {
        if index == linear(&x.shape, &vars) {
            return Operand {
                buffer,
                transposed: false,
                batched,
            };
        }
        let (mut shape, mut turned) = (x.shape.clone(), vars);
        let last = shape.len() - 1;
        shape.swap(last - 1, last);
        turned.swap(last - 1, last);
        if index == linear(&shape, &turned) {
            return Operand {
                buffer,
                transposed: true,
                batched,
            };
        }
    }
    let x = plan.settled(x);
    let (buffer, _) = plan.realize(&x.stored_as(ElementType::Float));
    Operand {
        buffer,
        transposed: false,
        batched,
    }
}

#[expect(clippy::many_single_char_names, reason = "as products are written")]
pub(super) fn product(
    plan: &mut Plan,
    call: &OperatorCall<'_>,
    a: &Tensor,
    b: &Tensor,
) -> Result<Tensor, NotCovered> {
    if a.kind != ScalarType::Float || b.kind != ScalarType::Float || a.rank() < 2 || b.rank() < 2 {
        return Err(call.refuse("operands that are no matrices"));
    }
    let (batch_a, [m, k]) = split(a);
    let (batch_b, [depth, n]) = split(b);
    if k != depth {
        return Err(call.refuse("matrices that do not fit"));
    }
    let (sheets_a, sheets_b): (i64, i64) = (batch_a.iter().product(), batch_b.iter().product());
    let outer = |x: &[i64]| Tensor::constant(0.0, x);
    let mut shape = call.broadcast_shape(&[outer(&batch_a), outer(&batch_b)])?;
    shape.extend([m, n]);
    // One matrix for all of them: one product with more rows.
    let (batch, a, b, m) = if sheets_b == 1 {
        (
            1,
            a.reshaped(&[sheets_a * m, k]),
            b.reshaped(&[k, n]),
            sheets_a * m,
        )
    } else if sheets_a == 1 {
        (
            sheets_b,
            a.reshaped(&[m, k]),
            b.reshaped(&[sheets_b, k, n]),
            m,
        )
    } else if batch_a == batch_b {
        (
            sheets_b,
            a.reshaped(&[sheets_a, m, k]),
            b.reshaped(&[sheets_b, k, n]),
            m,
        )
    } else {
        let sheets: i64 = shape[..shape.len() - 2].iter().product();
        let all = |x: &Tensor, rows: i64, columns: i64| {
            let mut wanted = shape[..shape.len() - 2].to_vec();
            wanted.extend([rows, columns]);
            x.broadcast(&wanted).reshaped(&[sheets, rows, columns])
        };
        (sheets, all(a, m, k), all(b, k, n), m)
    };
    if [m, n, k].iter().any(|extent| *extent >= 1 << 31) {
        return Err(call.refuse("too large a matrix"));
    }
    let narrow = a.element.is_narrow_float() && b.element.is_narrow_float();
    let (a, b) = (operand(plan, &a), operand(plan, &b));
    let out = plan.allocate(BufferOrigin::Computed, &shape, ElementType::Float);
    plan.library(Library::Gemm(Gemm {
        narrow,
        batch,
        m,
        n,
        k,
        a,
        b,
        out,
        epilogue: Epilogue::default(),
    }));
    Ok(Tensor::of_buffer(out, &shape, ElementType::Float))
}

fn split(x: &Tensor) -> (Vec<i64>, [i64; 2]) {
    let rank = x.rank();
    (
        x.shape[..rank - 2].to_vec(),
        [x.shape[rank - 2], x.shape[rank - 1]],
    )
}

/// The sum of `x w^T + b` along its columns: `x` times the sum of the rows of `w`, plus the sum of `b`.
fn sum_of_product(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    let (x, weight) = (call.input(0)?.clone(), call.input(1)?.clone());
    let columns = weight.shape[0];
    let sums = plan.reduce_dims(&weight, &[0], ReduceOp::Sum, "column");
    let sums = plan.realize(&sums.reshaped(&[weight.shape[1]])).1;
    let products = call.float_map(&[x, sums], "product", |arena, x| arena.mul(x[0], x[1]))?;
    let last = products.rank() - 1;
    let mut total = plan.reduce_dims(&products, &[last], ReduceOp::Sum, "sum");
    if let Some(bias) = call.optional(2) {
        let all = plan.reduce_dims(bias, &[0], ReduceOp::Sum, "shift");
        let all = plan.realize(&all).1.reshaped(&[]);
        total = call.float_map(&[total, all], "shifted", |arena, x| arena.add(x[0], x[1]))?;
    }
    if call.flag("mean", false)? {
        total = call.float_map(&[total], "mean", move |arena, x| {
            let count = arena.constant(columns as f64);
            arena.div(x[0], count)
        })?;
    }
    call.flag("keepdim", false)?;
    Ok(total.reshaped(&call.shape))
}

/// Of the mean the rows' mean, of the sum their sum and as many biases.
fn product_of_sum(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    let (x, weight) = (call.input(0)?.clone(), call.input(1)?.transposed(0, 1));
    let dims = call.dims("dim", x.rank())?;
    let count: i64 = dims.iter().map(|dim| x.shape[*dim]).product();
    let is_mean = call.flag("mean", false)?;
    let mut rows = plan.reduce_dims(&x, &dims, ReduceOp::Sum, "rows");
    if is_mean {
        rows = divided(call, &rows, count)?;
    }
    let mut total = product(plan, call, &rows, &weight)?;
    if let Some(bias) = call.optional(2) {
        let times = if is_mean { 1 } else { count };
        let both = [total, bias.clone()];
        total = call.float_map(&both, "shifted", move |arena, x| {
            let times = arena.constant(times as f64);
            let shift = arena.mul(x[1], times);
            arena.add(x[0], shift)
        })?;
    }
    call.flag("keepdim", false)?;
    Ok(total.reshaped(&call.shape))
}

/// Nothing is used twice: a sum along rows.
fn by_vector(
    plan: &mut Plan,
    call: &OperatorCall<'_>,
    a: &Tensor,
    b: &Tensor,
) -> Result<Tensor, NotCovered> {
    let products = call.float_map(&[a.clone(), b.clone()], "product", |arena, x| {
        arena.mul(x[0], x[1])
    })?;
    let last = products.rank() - 1;
    let sum = plan.reduce_dims(&products, &[last], ReduceOp::Sum, "dot");
    Ok(sum.reshaped(&call.shape))
}

fn bilinear(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    let (x, y, weight) = (
        call.input(0)?.clone(),
        call.input(1)?.clone(),
        call.input(2)?.clone(),
    );
    let ([rows, first], [out, inner, second]) = (
        x.shape
            .as_slice()
            .try_into()
            .map_err(|_| call.refuse("no rows"))?,
        weight
            .shape
            .as_slice()
            .try_into()
            .map_err(|_| call.refuse("no cube"))?,
    );
    if first != inner {
        return Err(call.refuse("a weight that does not fit"));
    }
    let flat = weight.reshaped(&[out * inner, second]).transposed(0, 1);
    let half = product(plan, call, &y, &flat)?.reshaped(&[rows, out, inner]);
    let x = x.reshaped(&[rows, 1, first]);
    let products = call.float_map(&[half, x], "product", |arena, x| arena.mul(x[0], x[1]))?;
    let sum = plan.reduce_dims(&products, &[2], ReduceOp::Sum, "sum");
    plus(
        call,
        sum.reshaped(&call.shape),
        call.optional(3),
        "bilinear",
    )
}

/// Squares of distances from a product, as PyTorch takes them.
fn distances(plan: &mut Plan, call: &OperatorCall<'_>) -> Result<Tensor, NotCovered> {
    let (x, y) = (call.input(0)?.clone(), call.input(1)?.clone());
    call.argument("compute_mode");
    if !is(call.number_or("p", 2.0)?, 2.0) || x.rank() != y.rank() || x.rank() < 2 {
        return Err(call.refuse("another norm than the second"));
    }
    let rank = x.rank();
    let mut norms = Vec::new();
    for one in [&x, &y] {
        let squares = call.float_map(std::slice::from_ref(one), "square", |arena, x| {
            arena.mul(x[0], x[0])
        })?;
        norms.push(plan.reduce_dims(&squares, &[rank - 1], ReduceOp::Sum, "squares"));
    }
    let dots = product(plan, call, &x, &y.transposed(rank - 2, rank - 1))?;
    let across = norms[1].transposed(rank - 2, rank - 1);
    call.float_map(&[dots, norms[0].clone(), across], "cdist", |arena, x| {
        let (two, zero) = (arena.constant(2.0), arena.constant(0.0));
        let both = arena.add(x[1], x[2]);
        let twice = arena.mul(x[0], two);
        let square = arena.sub(both, twice);
        let square = arena.max(square, zero);
        arena.unary(Unary::Sqrt, square)
    })
}
