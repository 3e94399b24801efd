//! A plan as the files of a solution.

mod launcher;
mod outline;
mod preamble;
mod workspace;

use std::collections::{BTreeMap, BTreeSet};

use warpsmith_schema::{MODEL_NEW, OpGraph, OutputNesting, Precision, Target, Task, ValueSource};

use crate::emit::library::{LibraryCall, ProductPrecision};
use crate::emit::module_source::Module;
use crate::emit::{Helper, KernelWriter, cpu, cuda, library as calls};
use crate::epilogue;
use crate::knob::{Knob, Knobs, TuningConfig};
use crate::library::Library;
use crate::lower::{LoweredGraph, lower};
use crate::not_covered::NotCovered;
use crate::plan::{BufferOrigin, FusedOperator, Kernel, KernelStep, Plan, Strategy, VIEWS};
use crate::scalar::Buffer;
use outline::listed;
use workspace::Workspace;

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
        workspace: None,
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
    /// Of values that lie in one allocation.
    pub(super) workspace: Option<Workspace>,
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
        if self.plan().strategy == Strategy::Tuned {
            self.workspace = self.choose_workspace(&written);
        }
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
                let how = LibraryCall {
                    precision,
                    algorithm: if tuned {
                        calls::algorithm(library, knobs)
                    } else {
                        0
                    },
                };
                let call = match library {
                    Library::Gemm(gemm) => {
                        calls::gemm_on_cuda(gemm, (&variable, &rows), how, &named)
                    }
                    Library::Convolution(conv) => {
                        calls::convolution_on_cuda(conv, &variable, how, &named)
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
}
