//! A plan as the files of a solution.

mod preamble;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use warpsmith_schema::{MODEL_NEW, OpGraph, OutputNesting, Precision, Target, Task, ValueSource};

use crate::emit::library::ProductPrecision;
use crate::emit::module_source::Module;
use crate::emit::python::{Allocation, Call, attribute};
use crate::emit::{Helper, KernelWriter, cpu, cuda, library as calls};
use crate::epilogue;
use crate::knob::{Knob, Knobs, TuningConfig};
use crate::library::{Gemm, Library};
use crate::lower::{LoweredGraph, lower};
use crate::not_covered::NotCovered;
use crate::plan::{BufferOrigin, FusedOperator, Kernel, KernelStep, Plan, Strategy, VIEWS};
use crate::scalar::{Buffer, ScalarType};

/// Relative path to content.
pub type SolutionFiles = BTreeMap<String, String>;

/// A solution written by one strategy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Solution {
    pub files: SolutionFiles,
    /// Kernels and library calls that a forward pass makes.
    pub launches: usize,
    /// Whether a library is called for matrices or convolutions.
    pub calls_library: bool,
    /// One line for each launch that says what it does.
    pub outline: Vec<String>,
    /// The same launches with their code.
    pub kernels: Vec<WrittenKernel>,
    /// What was decided on the way and could have been another.
    pub knobs: Vec<Knob>,
}

/// A kernel or a call of a library, with what it replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenKernel {
    pub name: String,
    /// Empty for a part of an operator that a later kernel completes.
    pub operators: Vec<FusedOperator>,
    /// As in the outline.
    pub what: String,
    pub code: String,
}

/// How a solution is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompileOptions {
    pub strategy: Strategy,
    /// Of products by a GPU's library.
    pub precision: Precision,
    /// Decisions that are not the usual ones.
    pub config: TuningConfig,
}

impl From<Strategy> for CompileOptions {
    fn from(strategy: Strategy) -> Self {
        Self {
            strategy,
            precision: Precision::Fp32,
            config: TuningConfig::new(),
        }
    }
}

/// Compiles a task's graph into a solution: kernels, their launchers and `model_new.py`.
pub fn compile(task: &Task, target: Target, strategy: Strategy) -> Result<Solution, NotCovered> {
    compile_with(task, target, &strategy.into())
}

/// The same, with more to say about how.
pub fn compile_with(
    task: &Task,
    target: Target,
    options: &CompileOptions,
) -> Result<Solution, NotCovered> {
    let strategy = options.strategy;
    let graph: &OpGraph = task.graph.as_ref().ok_or(NotCovered::NoGraph)?;
    let module = Module::read(&task.source)?;
    let knobs = Knobs::new(options.config.clone());
    let mut planned = lower(graph, target, strategy, knobs)?;
    if strategy != Strategy::Plain {
        epilogue::fuse(&mut planned);
    }
    let names = names(&planned, &module)?;
    let composer = SolutionEmitter {
        planned,
        names,
        module,
        title: title(graph),
        nesting: graph.nesting.clone(),
        precision: options.precision,
    };
    Ok(composer.emit())
}

/// Names that loops and launchers use themselves.
const RESERVED: [&str; 59] = [
    "row", "i", "k", "l", "m", "n", "o", "c", "block", "first", "last", "lane", "warp", "stream",
    "result", "from", "part", "best", "kept", "inside", "v", "status", "one", "zero", "handle",
    "float", "int", "bool", "double", "char", "long", "short", "const", "static", "start", "carry",
    "running", "parts", "other", "before", "item", "tops", "sums", "score", "top", "share", "end",
    "more", "columns", "rows", "r", "line", "vector", "sum", "e", "s", "qi", "ki", "di",
];

/// What Python takes for a name and C++ does not.
const CXX_KEYWORDS: [&str; 48] = [
    "alignas",
    "alignof",
    "asm",
    "auto",
    "case",
    "catch",
    "constexpr",
    "const_cast",
    "decltype",
    "default",
    "delete",
    "do",
    "dynamic_cast",
    "enum",
    "explicit",
    "export",
    "extern",
    "friend",
    "goto",
    "inline",
    "mutable",
    "namespace",
    "new",
    "noexcept",
    "nullptr",
    "operator",
    "private",
    "protected",
    "public",
    "register",
    "signed",
    "sizeof",
    "static_cast",
    "struct",
    "switch",
    "template",
    "this",
    "throw",
    "true",
    "typedef",
    "typename",
    "union",
    "unsigned",
    "using",
    "virtual",
    "void",
    "volatile",
    "xor",
];

/// The name of a state for C++: `conv-3x3.weight` is `conv_3x3_weight`, the `0.bias` of a `Sequential` `layer_0_bias`.
fn identifier(state: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let name: String = state
        .chars()
        .map(|letter| if plain(letter) { letter } else { '_' })
        .collect();
    if name.starts_with(|letter: char| letter.is_ascii_digit()) {
        format!("layer_{name}")
    } else {
        name
    }
}

/// What `forward` returns, as Python writes it.
fn returned(nesting: &OutputNesting, tensors: &mut impl Iterator<Item = String>) -> String {
    match nesting {
        OutputNesting::Tensor => tensors.next().unwrap_or_default(),
        OutputNesting::Sequence(parts) => {
            let parts: Vec<String> = parts.iter().map(|part| returned(part, tensors)).collect();
            let comma = if parts.len() == 1 { "," } else { "" };
            format!("({}{comma})", parts.join(", "))
        }
        OutputNesting::Dict(parts) => {
            let part = |(key, part): &(String, OutputNesting)| {
                let key = serde_json::Value::from(key.as_str());
                format!("{key}: {}", returned(part, tensors))
            };
            let parts: Vec<String> = parts.iter().map(part).collect();
            format!("{{{}}}", parts.join(", "))
        }
    }
}

fn names(planned: &LoweredGraph, module: &Module) -> Result<Vec<String>, NotCovered> {
    let reserved = RESERVED.iter().chain(&CXX_KEYWORDS);
    let mut taken: BTreeSet<String> = reserved.map(ToString::to_string).collect();
    let mut unique = |wanted: String| {
        let mut name = wanted.clone();
        let mut number = 2;
        while !taken.insert(name.clone()) {
            name = format!("{wanted}{number}");
            number += 1;
        }
        name
    };
    let mut names = Vec::new();
    for (place, room) in planned.plan.buffers.iter().enumerate() {
        let wanted = match &room.origin {
            BufferOrigin::Input(position) | BufferOrigin::Scalar(position) => {
                let known = module.inputs.get(*position);
                known.cloned().ok_or_else(|| NotCovered::Module {
                    what: format!("`forward` has no argument number {}", position + 1),
                })?
            }
            BufferOrigin::State(name) => identifier(name),
            BufferOrigin::Constant(_) => "table".to_owned(),
            BufferOrigin::Computed if planned.returns.contains(&Buffer(place)) => "out".to_owned(),
            BufferOrigin::Computed => "hidden".to_owned(),
        };
        names.push(unique(wanted));
    }
    Ok(names)
}

pub(super) struct SolutionEmitter {
    pub(super) planned: LoweredGraph,
    pub(super) names: Vec<String>,
    pub(super) module: Module,
    pub(super) title: String,
    pub(super) nesting: Option<OutputNesting>,
    pub(super) precision: Precision,
}

/// The name of the launcher and its file. It is the same for all strategies, so a later solution replaces an earlier one.
pub(super) fn title(graph: &OpGraph) -> String {
    let mut title = "run".to_owned();
    for value in &graph.values {
        if let ValueSource::Applied { op, .. } = &value.from
            && !VIEWS.contains(&op.as_str())
        {
            let more = format!("{title}_{op}");
            if more.len() > 64 && title != "run" {
                break;
            }
            title = more;
        }
    }
    title
}

fn listed<T: ToString>(shape: &[T], between: &str) -> String {
    let extents: Vec<String> = shape.iter().map(ToString::to_string).collect();
    extents.join(between)
}

/// Extents as a product: 8 x 64.
fn joined_extents(shape: &[i64]) -> String {
    let several: Vec<i64> = shape
        .iter()
        .copied()
        .filter(|extent| *extent != 1)
        .collect();
    match &several[..] {
        [] => "1".to_owned(),
        several => listed(several, " x "),
    }
}

/// A kernel as text.
pub(super) struct EmittedKernel {
    /// The whole function, where there is one.
    function: Option<String>,
    /// The statements that run it.
    call: String,
    /// The buffers it writes and reads, in the order of its parameters.
    pub(super) buffers: Vec<Buffer>,
}

impl SolutionEmitter {
    fn plan(&self) -> &Plan {
        &self.planned.plan
    }

    fn emit(mut self) -> Solution {
        let steps = self.plan().steps.clone();
        let mut taken = BTreeSet::new();
        let mut helpers = BTreeSet::new();
        let mut written = Vec::new();
        for step in &steps {
            let mut name = step.name.clone();
            let mut number = 2;
            while !taken.insert(name.clone()) {
                name = format!("{}{number}", step.name);
                number += 1;
            }
            written.push((self.step(step, &name, &mut helpers), name));
        }
        let plain = self.plan().strategy == Strategy::Plain;
        let title = self.title.clone();
        let mut launchers = Vec::new();
        let mut calls = Vec::new();
        if plain {
            for (one, name) in &written {
                let launcher = format!("launch_{name}");
                launchers.push(self.launcher(&launcher, &one.buffers, &one.call));
                calls.push(self.call(launcher, &one.buffers));
            }
        } else {
            let mut buffers: Vec<Buffer> = self.planned.returns.clone();
            for (one, _) in &written {
                for buffer in &one.buffers {
                    if !buffers.contains(buffer) {
                        buffers.push(*buffer);
                    }
                }
            }
            let body: Vec<&str> = written.iter().map(|(one, _)| one.call.as_str()).collect();
            launchers.push(self.launcher(&title, &buffers, &body.join("\n    ")));
            calls.push(self.call(title.clone(), &buffers));
        }
        let mut parts = vec![self.preamble(&steps, &helpers)];
        parts.extend(self.constants());
        parts.extend(written.iter().filter_map(|(one, _)| one.function.clone()));
        parts.extend(launchers);
        let code = parts.join("\n\n") + "\n";
        let ending = match self.plan().target {
            Target::Cpu => "cpp",
            Target::Cuda => "cu",
        };
        let library = steps
            .iter()
            .any(|step| matches!(step.kernel, Kernel::Library(_)));
        let kernels = steps.iter().zip(&written);
        let kernels = kernels.map(|(step, (one, name))| {
            let what = self.describe_step(step);
            let what = what.split_once(": ").map(|(_, what)| what.to_owned());
            WrittenKernel {
                name: name.clone(),
                operators: step.operators.clone(),
                what: what.unwrap_or_default(),
                code: one.function.clone().unwrap_or_else(|| one.call.clone()),
            }
        });
        let kernels = kernels.collect();
        let files = SolutionFiles::from([
            (format!("kernels/{title}.{ending}"), code),
            (MODEL_NEW.to_owned(), self.module(&calls)),
        ]);
        Solution {
            files,
            launches: steps.len(),
            calls_library: library,
            outline: steps.iter().map(|step| self.describe_step(step)).collect(),
            kernels,
            knobs: self.plan().knobs.asked().to_vec(),
        }
    }

    /// `mean`: 8 x 64 rows of 256 (sum), to (8, 64).
    pub(super) fn describe_step(&self, step: &KernelStep) -> String {
        let plan = self.plan();
        let what = match &step.kernel {
            Kernel::Rows(rows) => {
                let result = listed(&plan.buffers[rows.out.0].shape, ", ");
                let mut lengths: Vec<(String, Vec<&str>)> = Vec::new();
                for pass in &rows.reductions {
                    let reduction = &plan.reductions[pass.reduction.0];
                    let (length, fold) = (joined_extents(&reduction.extents), reduction.op.word());
                    match lengths.iter_mut().find(|(known, _)| *known == length) {
                        Some((_, folds)) if folds.contains(&fold) => {}
                        Some((_, folds)) => folds.push(fold),
                        None => lengths.push((length, vec![fold])),
                    }
                }
                if lengths.is_empty() {
                    format!("each of ({result})")
                } else {
                    // The reduction's own extents, because a kernel may flatten them.
                    let first = &plan.reductions[rows.reductions[0].reduction.0];
                    let is_same = first.rows() == rows.outer.iter().product::<i64>();
                    let outer = joined_extents(if is_same { &first.outer } else { &rows.outer });
                    let lengths = lengths.iter();
                    let lengths =
                        lengths.map(|(length, folds)| format!("{length} ({})", folds.join(", ")));
                    let lengths: Vec<String> = lengths.collect();
                    let noun = if outer == "1" { "row" } else { "rows" };
                    format!("{outer} {noun} of {}, to ({result})", lengths.join(" and "))
                }
            }
            Kernel::Scan(scan) => {
                let [before, along, after] = scan.shape;
                let shape = &plan.buffers[scan.out.0].shape;
                let is_along = |dim: &usize| {
                    let (outer, rest) = shape.split_at(*dim);
                    let inner: i64 = rest[1..].iter().product();
                    (outer.iter().product::<i64>(), rest[0], inner) == (before, along, after)
                };
                let lines = match (0..shape.len()).find(is_along) {
                    Some(dim) => joined_extents(&[&shape[..dim], &shape[dim + 1..]].concat()),
                    None => (before * after).to_string(),
                };
                format!("{lines} lines of {along}, one after another along each")
            }
            Kernel::Attention(one) => format!(
                "{} x {} queries of {} keys, {} scores that are never stored",
                one.batch,
                one.queries,
                one.keys,
                one.scores()
            ),
            Kernel::Library(Library::Gemm(gemm)) => {
                let rows = listed(&self.rows_of_product(gemm), " x ");
                let of_batch = match gemm.batch {
                    1 => String::new(),
                    several => format!("{several} of "),
                };
                format!("library, {of_batch}{rows} x {} over {}", gemm.n, gemm.k)
            }
            Kernel::Library(Library::Convolution(_)) => "library".to_owned(),
        };
        format!("`{}`: {what}", step.name)
    }

    /// The extents of a result that are the rows of a product.
    fn rows_of_product(&self, gemm: &Gemm) -> Vec<i64> {
        let shape = &self.plan().buffers[gemm.out.0].shape;
        let ends = (1..shape.len()).find(|end| shape[..*end].iter().product::<i64>() == gemm.m);
        let several = |end: usize| {
            shape[..end]
                .iter()
                .copied()
                .filter(|one| *one != 1)
                .collect()
        };
        match ends {
            Some(end) if gemm.batch == 1 && gemm.m > 1 => several(end),
            _ => vec![gemm.m],
        }
    }

    pub(super) fn step(
        &mut self,
        step: &KernelStep,
        name: &str,
        helpers: &mut BTreeSet<Helper>,
    ) -> EmittedKernel {
        let target = self.plan().target;
        let elements = self.elements(&step.kernel);
        self.planned.plan.knobs.about(name, elements);
        if let Kernel::Library(library) = &step.kernel {
            return self.library(library, name);
        }
        let out = match &step.kernel {
            Kernel::Rows(rows) => rows.out,
            Kernel::Scan(scan) => scan.out,
            Kernel::Attention(attention) => attention.out,
            Kernel::Library(library) => library.out(),
        };
        let mut writer = KernelWriter::new(&mut self.planned.plan, &self.names);
        let launch = match (&step.kernel, target) {
            (Kernel::Rows(rows), Target::Cpu) => {
                cpu::rows(&mut writer, rows);
                None
            }
            (Kernel::Rows(rows), Target::Cuda) => Some(cuda::rows(&mut writer, rows)),
            (Kernel::Scan(scan), Target::Cpu) => {
                cpu::scan(&mut writer, scan);
                None
            }
            (Kernel::Scan(scan), Target::Cuda) => Some(cuda::scan(&mut writer, scan)),
            (Kernel::Attention(attention), Target::Cpu) => {
                cpu::attention(&mut writer, attention);
                None
            }
            (Kernel::Attention(attention), Target::Cuda) => {
                Some(cuda::attention(&mut writer, attention))
            }
            (Kernel::Library(_), _) => None,
        };
        let body = writer.text();
        helpers.extend(writer.helpers.iter().copied());
        let mut buffers = vec![out];
        buffers.extend(writer.read.iter().copied().filter(|buffer| *buffer != out));
        let parameters = self.parameters(&buffers[1..], &[out]);
        let arguments = self.arguments(&buffers);
        match launch {
            None => EmittedKernel {
                function: Some(format!(
                    "static void {name}_kernel({parameters}) {{\n{body}\n}}"
                )),
                call: format!("{name}_kernel({arguments});"),
                buffers,
            },
            Some(launch) => EmittedKernel {
                function: Some(format!(
                    "__global__ void {}{name}_kernel({parameters}) {{\n{body}\n}}",
                    // Without the bound a large block could need more registers than there are.
                    if launch.max_threads > 256 {
                        format!("__launch_bounds__({}) ", launch.max_threads)
                    } else {
                        String::new()
                    },
                )),
                call: format!(
                    "{name}_kernel<<<{}, {}, 0, stream>>>({arguments});",
                    launch.blocks, launch.threads
                ),
                buffers,
            },
        }
    }

    /// About how many elements a kernel goes through. A product's are as many as it takes as long for.
    fn elements(&self, kernel: &Kernel) -> i64 {
        /// Multiplications and additions in the time of one element.
        const OPERATIONS: i64 = 64;
        let plan = self.plan();
        match kernel {
            Kernel::Rows(rows) => {
                let reduced = rows.reductions.iter().map(|pass| {
                    let reduction = &plan.reductions[pass.reduction.0];
                    reduction.rows().saturating_mul(reduction.length())
                });
                let stored = rows.shape.iter().product();
                reduced.chain([stored]).max().unwrap_or_default()
            }
            Kernel::Scan(scan) => scan.shape.iter().product(),
            Kernel::Attention(attention) => {
                let operations = 2 * attention.scores() * (attention.depth + attention.width);
                operations / OPERATIONS
            }
            Kernel::Library(Library::Gemm(gemm)) => gemm.operations() / OPERATIONS,
            Kernel::Library(Library::Convolution(conv)) => conv.operations() / OPERATIONS,
        }
    }

    fn library(&mut self, library: &Library, name: &str) -> EmittedKernel {
        let mut buffers = vec![library.out()];
        buffers.extend(library.reads());
        let arguments = self.arguments(&buffers);
        let variable = self.variable(library);
        let tuned = self.plan().strategy == Strategy::Tuned;
        let to_tf32 = self.precision == Precision::Tf32 || tuned && library.is_narrow();
        let rows = match library {
            Library::Gemm(gemm) => listed(&self.rows_of_product(gemm), " * "),
            Library::Convolution(_) => String::new(),
        };
        let target = self.plan().target;
        let names = &self.names;
        let named = |buffer: Buffer| names[buffer.0].clone();
        let knobs = &mut self.planned.plan.knobs;
        match target {
            Target::Cpu => {
                let body = match library {
                    Library::Gemm(gemm) => calls::gemm_on_cpu(gemm, &named),
                    Library::Convolution(conv) => calls::convolution_on_cpu(conv, knobs, &named),
                };
                let parameters = self.parameters(&buffers[1..], &[library.out()]);
                EmittedKernel {
                    function: Some(format!(
                        "static void {name}_product({parameters}) {{\n{body}\n}}"
                    )),
                    call: format!("{name}_product({arguments});"),
                    buffers,
                }
            }
            Target::Cuda => {
                let precision = match (to_tf32, tuned) {
                    (true, _) => ProductPrecision::Tf32,
                    (false, true) => ProductPrecision::exact(library, knobs),
                    (false, false) => ProductPrecision::Float32,
                };
                let call = match library {
                    Library::Gemm(gemm) => {
                        calls::gemm_on_cuda(gemm, (&variable, &rows), precision, &named)
                    }
                    Library::Convolution(conv) => {
                        calls::convolution_on_cuda(conv, &variable, precision, &named)
                    }
                };
                EmittedKernel {
                    function: None,
                    call,
                    buffers,
                }
            }
        }
    }

    /// What holds the shapes of a library's call: the first such call of a plan has the short name.
    fn variable(&self, library: &Library) -> String {
        let (word, is_same): (_, fn(&Kernel) -> bool) = match library {
            Library::Gemm(_) => ("gemm", |one| {
                matches!(one, Kernel::Library(Library::Gemm(_)))
            }),
            Library::Convolution(_) => ("conv", |one| {
                matches!(one, Kernel::Library(Library::Convolution(_)))
            }),
        };
        let before = self.plan().steps.iter();
        let before = before.take_while(|step| match &step.kernel {
            Kernel::Library(one) => one.out() != library.out(),
            _ => true,
        });
        let mut number = 1 + before.filter(|step| is_same(&step.kernel)).count();
        loop {
            let name = match number {
                1 => word.to_owned(),
                number => format!("{word}{number}"),
            };
            if !self.names.contains(&name) {
                return name;
            }
            number += self.plan().steps.len();
        }
    }

    fn parameters(&self, read: &[Buffer], written: &[Buffer]) -> String {
        let restrict = match self.plan().target {
            Target::Cpu => "__restrict",
            Target::Cuda => "__restrict__",
        };
        let mut parts = Vec::new();
        for (buffers, is_const) in [(written, ""), (read, "const ")] {
            for buffer in buffers {
                let (room, name) = (&self.plan().buffers[buffer.0], &self.names[buffer.0]);
                let kind = room.element.c_type(self.plan().target);
                match &room.origin {
                    BufferOrigin::Constant(_) => {}
                    BufferOrigin::Scalar(_) => parts.push(format!("{is_const}{kind} {name}")),
                    _ => parts.push(format!("{is_const}{kind}* {restrict} {name}")),
                }
            }
        }
        parts.join(", ")
    }

    fn arguments(&self, buffers: &[Buffer]) -> String {
        let passed = buffers.iter().filter(|buffer| self.is_passed(**buffer));
        let named = passed.map(|buffer| self.names[buffer.0].as_str());
        named.collect::<Vec<_>>().join(", ")
    }

    /// Whether a kernel is handed a buffer, and does not know it from its file.
    fn is_passed(&self, buffer: Buffer) -> bool {
        let origin = &self.plan().buffers[buffer.0].origin;
        !matches!(origin, BufferOrigin::Constant(_))
    }

    fn launcher(&self, name: &str, buffers: &[Buffer], body: &str) -> String {
        let mut parts = Vec::new();
        for buffer in buffers.iter().filter(|one| self.is_passed(**one)) {
            let room = &self.plan().buffers[buffer.0];
            if matches!(room.origin, BufferOrigin::Scalar(_)) {
                // As `kernels` passes Python's numbers.
                let kind = match room.element.scalar() {
                    ScalarType::Float => "double",
                    ScalarType::Int | ScalarType::Bool => "int64_t",
                };
                parts.push(format!("{kind} {}", self.names[buffer.0]));
                continue;
            }
            let is_const = if room.origin == BufferOrigin::Computed {
                ""
            } else {
                "const "
            };
            parts.push(format!(
                "{is_const}{}* {}",
                room.element.c_type(self.plan().target),
                self.names[buffer.0]
            ));
        }
        let (last, status) = match self.plan().target {
            Target::Cpu => ("void*", "0"),
            Target::Cuda => ("cudaStream_t stream", "cudaGetLastError()"),
        };
        parts.push(last.to_owned());
        format!(
            "extern \"C\" int {name}({}) {{\n    {body}\n    return {status};\n}}",
            parts.join(", ")
        )
    }

    fn call(&self, launcher: String, buffers: &[Buffer]) -> Call {
        let passed = buffers.iter().filter(|one| self.is_passed(**one));
        Call {
            launcher,
            arguments: passed.map(|buffer| self.in_python(*buffer)).collect(),
        }
    }

    /// A buffer as `forward` names it.
    fn in_python(&self, buffer: Buffer) -> String {
        match &self.plan().buffers[buffer.0].origin {
            BufferOrigin::Input(position) | BufferOrigin::Scalar(position) => {
                self.module.inputs[*position].clone()
            }
            BufferOrigin::State(name) => attribute(name),
            BufferOrigin::Computed | BufferOrigin::Constant(_) => self.names[buffer.0].clone(),
        }
    }

    fn module(&self, calls: &[Call]) -> String {
        let mut allocations = Vec::new();
        for (place, room) in self.plan().buffers.iter().enumerate() {
            let is_used = calls
                .iter()
                .any(|call| call.arguments.contains(&self.names[place]));
            if room.origin == BufferOrigin::Computed && is_used {
                allocations.push(Allocation {
                    name: self.names[place].clone(),
                    shape: room.shape.clone(),
                    dtype: room.element.torch(),
                });
            }
        }
        let mut tensors =
            self.planned
                .returns
                .iter()
                .zip(&self.planned.views)
                .map(|(buffer, view)| {
                    let mut text = self.in_python(*buffer);
                    if let Some(shape) = &view.shape {
                        // In brackets: a number has no dimensions.
                        let _ = write!(text, ".view([{}])", listed(shape, ", "));
                    }
                    if let Some(order) = &view.order {
                        let _ = write!(text, ".permute({})", listed(order, ", "));
                    }
                    text
                });
        let returned = match &self.nesting {
            Some(nesting) => returned(nesting, &mut tensors),
            None => tensors.collect::<Vec<String>>().join(", "),
        };
        let device = self.device();
        self.module.write(&allocations, calls, &returned, &device)
    }

    /// A tensor that lies where results are to lie.
    fn device(&self) -> String {
        let origins = || self.plan().buffers.iter().map(|room| &room.origin);
        let inputs = origins().filter_map(|origin| match origin {
            BufferOrigin::Input(position) => Some(*position),
            _ => None,
        });
        let state = || {
            origins().find_map(|origin| match origin {
                BufferOrigin::State(name) => Some(attribute(name)),
                _ => None,
            })
        };
        let input = inputs.min().map(|first| self.module.inputs[first].clone());
        input.or_else(state).unwrap_or_else(|| "self".to_owned())
    }
}
