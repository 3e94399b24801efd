//! From a graph's operators to lazy tensors.
//!
//! An argument, a dtype or a shape that no rule knows makes the whole task [`NotCovered`]: nothing is guessed.

mod attention;
mod call;
mod contraction;
mod convolution;
mod fill;
mod loss;
mod matrix;
mod norm;
mod order;
mod pointwise;
mod reduce;
mod resize;
mod scan;
mod shape;
mod uses;
mod window;

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::Value;
use warpsmith_schema::{Dtype, GraphValue, OpGraph, Target, ValueSource};

use call::OperatorCall;
use uses::{is_ordered, is_read_often, is_shared, needed, uses};

use crate::emit::float;
use crate::knob::Knobs;
use crate::not_covered::NotCovered;
use crate::plan::{BufferOrigin, Plan, REDUCTION_WORK, Strategy};
use crate::scalar::{Buffer, ElementType, ScalarType};
use crate::simplify::simplify;
use crate::tensor::Tensor;

/// A plan and the buffers that hold the graph's results.
pub(super) struct LoweredGraph {
    pub(super) plan: Plan,
    pub(super) returns: Vec<Buffer>,
    /// How each result is viewed in its buffer.
    pub(super) views: Vec<OutputView>,
}

/// A result as a view of its buffer.
#[derive(Debug, Default)]
pub(super) struct OutputView {
    /// The result's shape, if it differs from the buffer's.
    pub(super) shape: Option<Vec<i64>>,
    /// The order of dimensions that is applied after the shape.
    pub(super) order: Option<Vec<usize>>,
}

/// The most elements of a buffer. Indices have 64 bits, but nothing larger was tested.
const MAX_ELEMENTS: i64 = 1 << 40;

/// The work of an element that is stored rather than computed by each of several users, and by each of many.
const LONG: u32 = 32;
const SHORT: u32 = 4;
const MANY: usize = 16;

/// The most kernels of a solution: the code of more takes minutes to compile.
const MAX_KERNELS: usize = 1024;

pub(super) fn lower(
    graph: &OpGraph,
    target: Target,
    strategy: Strategy,
    knobs: Knobs,
) -> Result<LoweredGraph, NotCovered> {
    let lowered = lower_around(graph, target, strategy, knobs, &mut Err)?;
    match lowered.plan.steps.len() {
        ..=MAX_KERNELS => Ok(lowered),
        many => Err(NotCovered::TooManyKernels { kernels: many }),
    }
}

/// Lowers what has a rule. `on_gap` is told what has none; if it does not return that as an error, the value is taken for one
/// that somebody else has computed from what is stored.
pub(super) fn lower_around(
    graph: &OpGraph,
    target: Target,
    strategy: Strategy,
    knobs: Knobs,
    on_gap: &mut dyn FnMut(NotCovered) -> Result<(), NotCovered>,
) -> Result<LoweredGraph, NotCovered> {
    let extents = |shape: &[u64]| shape.iter().map(|extent| *extent as i64).collect();
    let told = graph.values.iter().map(|value| extents(&value.shape));
    let mut plan = Plan::new(target, strategy, knobs, told.collect());
    let simple;
    let graph = if strategy == Strategy::Plain {
        graph
    } else {
        simple = simplify(graph, target, &mut plan.knobs);
        &simple
    };
    let mut values: Vec<Option<Tensor>> = Vec::new();
    let needed = needed(graph);
    for (number, value) in graph.values.iter().enumerate() {
        let tensor = if needed.contains(&number) {
            plan.line = value.line;
            let chain = plan.chain.clone();
            match lower_value(&mut plan, graph, number, &values) {
                Ok(tensor) => Some(tensor),
                Err(reason) => {
                    on_gap(reason.at(value.line))?;
                    plan.chain = chain;
                    Some(somebody_elses(&mut plan, value, &mut values))
                }
            }
        } else {
            None
        };
        values.push(tensor);
    }
    let (mut returns, mut views) = (Vec::new(), Vec::new());
    for place in &graph.returns {
        let element = graph
            .values
            .get(*place)
            .map(|value| (value, element(value)));
        let element = match element {
            Some((value, Ok(element))) if ElementType::of(value.dtype).is_some() => element,
            Some((value, _)) => {
                on_gap(NotCovered::Elements { dtype: value.dtype }.at(value.line))?;
                ElementType::Float
            }
            None => ElementType::Float,
        };
        let tensor = values.get(*place).cloned().flatten();
        let tensor = tensor.ok_or_else(|| NotCovered::Module {
            what: "a result that is not in the graph".to_owned(),
        })?;
        let (tensor, order) = in_memory(&plan, tensor);
        let made = tensor.buffer.filter(|buffer| {
            let is_made = plan.buffers[buffer.0].origin == BufferOrigin::Computed;
            let is_typed = plan.buffers[buffer.0].element == element;
            is_made && is_typed && !returns.contains(buffer)
        });
        let buffer = match made {
            Some(buffer) => buffer,
            None => plan.materialize(&tensor.stored_as(element)),
        };
        let reshaped = plan.buffers[buffer.0].shape != tensor.shape;
        let shape = reshaped.then_some(tensor.shape);
        returns.push(buffer);
        views.push(OutputView { shape, order });
    }
    Ok(LoweredGraph {
        plan,
        returns,
        views,
    })
}

/// A value of the graph, from those before it.
fn lower_value(
    plan: &mut Plan,
    graph: &OpGraph,
    number: usize,
    values: &[Option<Tensor>],
) -> Result<Tensor, NotCovered> {
    let value = &graph.values[number];
    let shape: Vec<i64> = value.shape.iter().map(|extent| *extent as i64).collect();
    if shape.contains(&0) || shape.iter().product::<i64>() > MAX_ELEMENTS {
        return Err(NotCovered::Given {
            op: "forward".to_owned(),
            what: "a tensor without elements, or with too many".to_owned(),
        });
    }
    let element = element(value)?;
    let kind = element.scalar();
    Ok(match &value.from {
        ValueSource::Input { position } => {
            let buffer = plan.allocate(BufferOrigin::Input(*position), &shape, element);
            Tensor::of_buffer(buffer, &shape, element)
        }
        ValueSource::Scalar { position } => {
            let buffer = plan.allocate(BufferOrigin::Scalar(*position), &shape, kind.into());
            Tensor {
                buffer: None,
                ..Tensor::of_buffer(buffer, &shape, kind.into())
            }
        }
        ValueSource::Constant { data } => constant(plan, data, &shape, kind)?,
        ValueSource::State { name } => {
            let buffer = plan.allocate(BufferOrigin::State(name.clone()), &shape, element);
            Tensor::of_buffer(buffer, &shape, element)
        }
        ValueSource::Applied {
            op,
            inputs,
            arguments,
            result,
        } => {
            let given = inputs.iter().map(|input| match input {
                Some(place) => values.get(*place).cloned().flatten().map(Some).ok_or(()),
                None => Ok(None),
            });
            let given: Result<Vec<Option<Tensor>>, ()> = given.collect();
            let given = given.map_err(|()| NotCovered::Given {
                op: op.clone(),
                what: "an input that comes later".to_owned(),
            })?;
            let call = OperatorCall {
                op,
                inputs: given,
                arguments,
                result: *result,
                shape: shape.clone(),
                kind,
                read: RefCell::new(BTreeSet::new()),
            };
            let tensor = lower_operator(plan, &call, element)?;
            let shared = tensor.work > 0 && is_shared(graph, number);
            let few = plan.is_cheap_to_store(&tensor) && is_read_often(graph, number);
            let ordered = is_ordered(graph, number);
            let usual = shared || few || is_computed_often(plan, graph, number, &tensor);
            if ordered || is_stored(plan, graph, number, &tensor, usual) {
                plan.realize(&tensor).1
            } else {
                tensor
            }
        }
    })
}

/// Whether a value is stored rather than computed by whoever needs it: fused into one kernel, or repeated in several.
fn is_stored(
    plan: &mut Plan,
    graph: &OpGraph,
    number: usize,
    tensor: &Tensor,
    usual: bool,
) -> bool {
    let is_free = tensor.buffer.is_some() || tensor.work == 0;
    let readers = uses(graph, number);
    // What one elementwise kernel alone reads is best computed there.
    let may_be_either = readers > 1 || readers == 1 && tensor.work >= REDUCTION_WORK;
    if is_free || !may_be_either || plan.strategy != Strategy::Tuned {
        return usual;
    }
    // Computed again by many, a long reduction never ends.
    if usual && tensor.work >= REDUCTION_WORK {
        return true;
    }
    let op = plan.current.clone();
    plan.knobs.about(&format!("{op} {number}"), tensor.count());
    plan.knobs.whether("stored", usual)
}

/// Whether each of several users would compute an element again that takes long, or each of many one that does not. Loops over
/// time end that way.
fn is_computed_often(plan: &Plan, graph: &OpGraph, number: usize, tensor: &Tensor) -> bool {
    if plan.is_regular() && tensor.work >= REDUCTION_WORK {
        return uses(graph, number) > 1;
    }
    if plan.strategy == Strategy::Plain || tensor.work >= REDUCTION_WORK {
        return false;
    }
    match tensor.work {
        LONG.. => uses(graph, number) > 1,
        SHORT.. => uses(graph, number) >= MANY,
        _ => false,
    }
}

/// A value that no kernel of the plan computes. What it is computed from has to be stored.
fn somebody_elses(plan: &mut Plan, value: &GraphValue, values: &mut [Option<Tensor>]) -> Tensor {
    let shape: Vec<i64> = value.shape.iter().map(|extent| *extent as i64).collect();
    let element = element(value).unwrap_or(ElementType::Float);
    let origin = match &value.from {
        ValueSource::Input { position } => BufferOrigin::Input(*position),
        ValueSource::Scalar { position } => BufferOrigin::Scalar(*position),
        ValueSource::State { name } => BufferOrigin::State(name.clone()),
        ValueSource::Constant { .. } => BufferOrigin::Computed,
        ValueSource::Applied { inputs, .. } => {
            for place in inputs.iter().flatten() {
                if let Some(Some(tensor)) = values.get_mut(*place) {
                    *tensor = plan.realize(tensor).1;
                }
            }
            BufferOrigin::Computed
        }
    };
    let buffer = plan.allocate(origin, &shape, element);
    Tensor::of_buffer(buffer, &shape, element)
}

/// What has to lie in memory for a result: PyTorch itself hands over a view of it where dimensions only change places.
fn in_memory(plan: &Plan, tensor: Tensor) -> (Tensor, Option<Vec<usize>>) {
    match &tensor.turned {
        // Nobody may be handed what was given.
        Some((inner, order)) if plan.strategy != Strategy::Plain && inner.work > 0 => {
            (Tensor::clone(inner), Some(order.clone()))
        }
        _ => (tensor, None),
    }
}

/// How a value lies in memory. A single number in double precision, as Python's are, is computed in single like all else.
fn element(value: &GraphValue) -> Result<ElementType, NotCovered> {
    let dtype = value.dtype;
    let is_tensor = matches!(
        value.from,
        ValueSource::Input { .. } | ValueSource::State { .. }
    );
    match ElementType::of(dtype) {
        Some(element) => Ok(element),
        None if dtype == Dtype::Float64 && value.shape.is_empty() && !is_tensor => {
            Ok(ElementType::Float)
        }
        None => Err(NotCovered::Elements { dtype }),
    }
}

/// A tensor of the module's text: a number in the code, a table in the kernel's file otherwise.
fn constant(
    plan: &mut Plan,
    data: &[Value],
    shape: &[i64],
    kind: ScalarType,
) -> Result<Tensor, NotCovered> {
    let numbers: Option<Vec<f64>> = data.iter().map(number).collect();
    let numbers = numbers.filter(|all| all.len() as i64 == shape.iter().product::<i64>());
    let numbers = numbers.ok_or_else(|| NotCovered::Given {
        op: "forward".to_owned(),
        what: "a tensor in its text that holds no numbers".to_owned(),
    })?;
    if let [one] = numbers[..] {
        return Ok(Tensor::number(one, kind, shape));
    }
    let literal = |one: f64| match kind {
        ScalarType::Float => float(one),
        ScalarType::Int => (one as i64).to_string(),
        ScalarType::Bool => (one != 0.0).to_string(),
    };
    let literals = numbers.into_iter().map(literal).collect();
    let buffer = plan.allocate(BufferOrigin::Constant(literals), shape, kind.into());
    Ok(Tensor {
        buffer: None,
        ..Tensor::of_buffer(buffer, shape, kind.into())
    })
}

/// JSON has no infinities.
fn number(value: &Value) -> Option<f64> {
    let non_finite = || value.get("non_finite")?.as_str()?.parse().ok();
    let flag = || value.as_bool().map(|flag| f64::from(u8::from(flag)));
    value.as_f64().or_else(flag).or_else(non_finite)
}

fn lower_operator(
    plan: &mut Plan,
    call: &OperatorCall<'_>,
    element: ElementType,
) -> Result<Tensor, NotCovered> {
    let name = call.op.trim_start_matches("warpsmith_");
    name.clone_into(&mut plan.current);
    plan.knobs.about(name, call.shape.iter().product());
    plan.chain.push(name, plan.line);
    let rules = [
        pointwise::rule,
        reduce::rule,
        norm::rule,
        scan::rule,
        order::rule,
        shape::rule,
        fill::rule,
        matrix::rule,
        attention::rule,
        contraction::rule,
        convolution::rule,
        window::rule,
        resize::rule,
        loss::rule,
    ];
    let mut found = None;
    for rule in rules {
        found = rule(plan, call)?;
        if found.is_some() {
            break;
        }
    }
    if matches!(call.op, "lstm" | "gru" | "rnn_tanh" | "rnn_relu") {
        return Err(call.refuse(RECURRENCE));
    }
    let tensor = found.ok_or_else(|| NotCovered::Operator {
        op: call.op.to_owned(),
    })?;
    if let Some(name) = call.unread_argument() {
        return Err(call.refuse(&format!("the argument `{name}`")));
    }
    if tensor.shape != call.shape || tensor.kind != call.kind {
        return Err(call.refuse("a result of another shape or type than the graph says"));
    }
    let tensor = match tensor.buffer {
        None => tensor.stored_as(element),
        Some(_) => tensor,
    };
    if plan.strategy == Strategy::Plain && !is_view(call.op) {
        return Ok(plan.realize(&tensor).1);
    }
    Ok(tensor)
}

/// Why a recurrence is left to PyTorch.
const RECURRENCE: &str = "steps that each wait for the one before: the library's kernel keeps the weights on the chip from step to \
    step, which kernels launched step by step cannot";

/// Whether PyTorch itself computes nothing.
fn is_view(op: &str) -> bool {
    const VIEWS: [&str; 16] = [
        "view",
        "reshape",
        "flatten",
        "unflatten",
        "permute",
        "transpose",
        "t",
        "movedim",
        "squeeze",
        "unsqueeze",
        "expand",
        "narrow",
        "select",
        "chunk",
        "split",
        "dropout",
    ];
    VIEWS.contains(&op)
}

/// Whether an argument is this number and not one near it.
fn is(given: f64, number: f64) -> bool {
    given.to_bits() == number.to_bits()
}
