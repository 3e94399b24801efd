//! What the compiler would do with a module: its kernels, what each of them fuses and moves, and what has no rule.

use std::collections::BTreeSet;

use serde::Serialize;
use warpsmith_schema::{OpGraph, Precision, Target, Task};

use crate::emit::module_source::Module;
use crate::epilogue;
use crate::knob::Knobs;
use crate::library::Library;
use crate::lower::{LoweredGraph, lower_around};
use crate::not_covered::NotCovered;
use crate::plan::{BufferOrigin, FusedOperator, Kernel, Strategy};
use crate::scalar::Buffer;
use crate::solution::SolutionEmitter;

/// What the fastest strategy makes of a module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    pub kernels: Vec<ExplainedKernel>,
    /// What all kernels read and write. A kernel counts each of its buffers once.
    pub bytes_moved: u64,
    /// Inputs and parameters that are read, and results: each once.
    pub bytes_minimum: u64,
    /// Where one stands there is no solution; the kernels are then those around it.
    pub not_covered: Vec<Gap>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExplainedKernel {
    pub name: String,
    /// `kernel`, `scan`, `attention`, or the provided call: `gemm`, `conv`.
    pub kind: &'static str,
    /// Empty for a part of an operator that a later kernel completes.
    pub fused: Vec<FusedOperator>,
    pub what: String,
    pub reads: Vec<String>,
    pub writes: String,
    pub bytes: u64,
}

/// Something without a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Gap {
    pub operator: Option<String>,
    pub line: Option<u32>,
    pub reason: String,
}

impl From<NotCovered> for Gap {
    fn from(reason: NotCovered) -> Self {
        Self {
            operator: reason.operator().map(str::to_owned),
            line: reason.line(),
            reason: reason.to_string(),
        }
    }
}

/// Explains the tuned solution of a task that has a graph, as far as there is one.
pub fn explain(task: &Task, target: Target) -> Result<Explanation, NotCovered> {
    let graph: &OpGraph = task.graph.as_ref().ok_or(NotCovered::NoGraph)?;
    let mut not_covered: Vec<Gap> = Vec::new();
    let module = Module::read(&task.source).unwrap_or_else(|reason| {
        not_covered.push(reason.into());
        Module::default()
    });
    let mut planned = lower_around(
        graph,
        target,
        Strategy::Tuned,
        Knobs::default(),
        &mut |reason| {
            not_covered.push(reason.into());
            Ok(())
        },
    )?;
    epilogue::fuse(&mut planned);
    let names = names(&planned, &module);
    let steps = planned.plan.steps.clone();
    let mut emitter = SolutionEmitter {
        planned,
        names,
        module,
        title: String::new(),
        nesting: None,
        precision: Precision::Fp32,
        workspace: None,
    };
    let mut used: BTreeSet<usize> = BTreeSet::new();
    let mut kernels = Vec::new();
    for step in &steps {
        let emitted = emitter.step(step, &step.name, &mut BTreeSet::new());
        let bytes = emitted
            .buffers
            .iter()
            .map(|one| bytes(&emitter.planned, *one));
        let bytes = bytes.sum();
        used.extend(emitted.buffers.iter().map(|buffer| buffer.0));
        let mut named = emitted
            .buffers
            .iter()
            .map(|one| emitter.names[one.0].clone());
        let what = emitter.describe_step(step);
        kernels.push(ExplainedKernel {
            name: step.name.clone(),
            kind: match &step.kernel {
                Kernel::Rows(_) => "kernel",
                Kernel::Scan(_) => "scan",
                Kernel::Attention(_) => "attention",
                Kernel::Library(Library::Gemm(_)) => "gemm",
                Kernel::Library(Library::Convolution(_)) => "conv",
            },
            fused: step.operators.clone(),
            what: match what.split_once(": ") {
                Some((_, what)) => what.to_owned(),
                None => what,
            },
            writes: named.next().unwrap_or_default(),
            reads: named.collect(),
            bytes,
        });
    }
    let planned = &emitter.planned;
    let is_given =
        |buffer: &Buffer| planned.plan.buffers[buffer.0].origin != BufferOrigin::Computed;
    let given = used.into_iter().map(Buffer).filter(is_given);
    let ends = given.chain(planned.returns.iter().copied());
    Ok(Explanation {
        bytes_moved: kernels.iter().map(|kernel| kernel.bytes).sum(),
        bytes_minimum: ends.map(|buffer| bytes(planned, buffer)).sum(),
        kernels,
        not_covered,
    })
}

fn bytes(planned: &LoweredGraph, buffer: Buffer) -> u64 {
    let info = &planned.plan.buffers[buffer.0];
    info.element.bytes() * info.shape.iter().product::<i64>().unsigned_abs()
}

/// What buffers are called in the module; those in between are numbered.
fn names(planned: &LoweredGraph, module: &Module) -> Vec<String> {
    let named = |(place, buffer): (usize, &crate::plan::BufferInfo)| match &buffer.origin {
        BufferOrigin::Input(position) | BufferOrigin::Scalar(position) => {
            match module.inputs.get(*position) {
                Some(name) => name.clone(),
                None => format!("input{position}"),
            }
        }
        BufferOrigin::State(name) => name.clone(),
        BufferOrigin::Constant(_) => format!("constant{place}"),
        BufferOrigin::Computed => match planned.returns.iter().position(|one| one.0 == place) {
            Some(0) => "out".to_owned(),
            Some(number) => format!("out{}", number + 1),
            None => format!("hidden{place}"),
        },
    };
    planned.plan.buffers.iter().enumerate().map(named).collect()
}
