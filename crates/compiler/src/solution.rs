//! A plan as the files of a solution.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use warpsmith_schema::{MODEL_NEW, OpGraph, Target, Task, ValueSource};

use crate::emit::python::{Allocation, Call, Module, attribute};
use crate::emit::{Helper, Writer, c_type, cpu, cuda, library as calls};
use crate::epilogue;
use crate::library::Library;
use crate::lower::{NotCovered, Planned, planned};
use crate::plan::{Kernel, Origin, Plan, Step, Strategy};
use crate::scalar::{Buffer, Kind};

/// Relative path to content.
pub type Files = BTreeMap<String, String>;

/// A solution written by one strategy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Solution {
    pub files: Files,
    /// Kernels and library calls that a forward pass makes.
    pub launches: usize,
    /// Whether a library is called for matrices or convolutions.
    pub library: bool,
    /// What each of them does, in a few words.
    pub outline: Vec<String>,
}

/// Writes a solution for a task.
pub fn write(task: &Task, target: Target, strategy: Strategy) -> Result<Solution, NotCovered> {
    let graph: &OpGraph = task.graph.as_ref().ok_or(NotCovered::NoGraph)?;
    let module = Module::read(&task.source)?;
    let mut planned = planned(graph, target, strategy)?;
    if strategy == Strategy::Tuned {
        epilogue::fuse(&mut planned);
    }
    let names = names(&planned, &module)?;
    let composer = Composer {
        planned,
        names,
        module,
        title: title(graph),
    };
    Ok(composer.compose())
}

/// Names that loops and launchers use themselves.
const RESERVED: [&str; 40] = [
    "row", "i", "k", "l", "m", "n", "o", "c", "block", "first", "last", "lane", "warp", "stream",
    "result", "from", "part", "best", "kept", "inside", "v", "status", "one", "zero", "handle",
    "float", "int", "bool", "double", "char", "long", "short", "const", "static", "start", "carry",
    "running", "parts", "other", "before",
];

fn names(planned: &Planned, module: &Module) -> Result<Vec<String>, NotCovered> {
    let mut taken: BTreeSet<String> = RESERVED.iter().map(ToString::to_string).collect();
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
    for (place, room) in planned.plan.rooms.iter().enumerate() {
        let wanted = match &room.origin {
            Origin::Input(position) => {
                let known = module.inputs.get(*position);
                known.cloned().ok_or_else(|| NotCovered::Module {
                    what: format!("`forward` has no argument number {}", position + 1),
                })?
            }
            Origin::State(name) => name.replace('.', "_"),
            Origin::Made if planned.returns.contains(&Buffer(place)) => "out".to_owned(),
            Origin::Made => "hidden".to_owned(),
        };
        names.push(unique(wanted));
    }
    Ok(names)
}

struct Composer {
    planned: Planned,
    names: Vec<String>,
    module: Module,
    title: String,
}

/// What the launcher and its file are called, whatever the strategy: a later draft takes an earlier one's place.
fn title(graph: &OpGraph) -> String {
    let mut title = "run".to_owned();
    for value in &graph.values {
        if let ValueSource::Applied { op, .. } = &value.from {
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

/// So many of something: 8 x 64.
fn times(shape: &[i64]) -> String {
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
struct Written {
    /// A function, whole.
    function: String,
    /// The statement that runs it.
    call: String,
    /// What it writes and reads, in the order of its parameters.
    buffers: Vec<Buffer>,
}

impl Composer {
    fn plan(&self) -> &Plan {
        &self.planned.plan
    }

    fn compose(mut self) -> Solution {
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
        parts.extend(written.iter().map(|(one, _)| one.function.clone()));
        parts.extend(launchers);
        let code = parts.join("\n\n") + "\n";
        let ending = match self.plan().target {
            Target::Cpu => "cpp",
            Target::Cuda => "cu",
        };
        let library = steps
            .iter()
            .any(|step| matches!(step.kernel, Kernel::Library(_)));
        let files = Files::from([
            (format!("kernels/{title}.{ending}"), code),
            (MODEL_NEW.to_owned(), self.module(&calls)),
        ]);
        Solution {
            files,
            launches: steps.len(),
            library,
            outline: steps.iter().map(|step| self.outlined(step)).collect(),
        }
    }

    /// `mean`: 8 x 64 rows of 256 (sum), to (8, 64).
    fn outlined(&self, step: &Step) -> String {
        let plan = self.plan();
        let what = match &step.kernel {
            Kernel::Rows(rows) => {
                let result = listed(&plan.rooms[rows.out.0].shape, ", ");
                let mut lengths: Vec<(String, Vec<&str>)> = Vec::new();
                for pass in &rows.passes {
                    let reduction = &plan.reductions[pass.reduction.0];
                    let (length, fold) = (times(&reduction.extents), reduction.fold.word());
                    match lengths.iter_mut().find(|(known, _)| *known == length) {
                        Some((_, folds)) if folds.contains(&fold) => {}
                        Some((_, folds)) => folds.push(fold),
                        None => lengths.push((length, vec![fold])),
                    }
                }
                if lengths.is_empty() {
                    format!("each of ({result})")
                } else {
                    // As the reduction leaves them: a kernel may have them all in one line.
                    let first = &plan.reductions[rows.passes[0].reduction.0];
                    let is_same = first.rows() == rows.outer.iter().product::<i64>();
                    let outer = times(if is_same { &first.outer } else { &rows.outer });
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
                let shape = &plan.rooms[scan.out.0].shape;
                let is_along = |dim: &usize| {
                    let (outer, rest) = shape.split_at(*dim);
                    let inner: i64 = rest[1..].iter().product();
                    (outer.iter().product::<i64>(), rest[0], inner) == (before, along, after)
                };
                let lines = match (0..shape.len()).find(is_along) {
                    Some(dim) => times(&[&shape[..dim], &shape[dim + 1..]].concat()),
                    None => (before * after).to_string(),
                };
                format!("{lines} lines of {along}, one after another along each")
            }
            Kernel::Library(Library::Gemm(gemm)) => {
                format!("library, {} x {} over {}", gemm.m, gemm.n, gemm.k)
            }
            Kernel::Library(Library::Convolution(_)) => "library".to_owned(),
        };
        format!("`{}`: {what}", step.name)
    }

    fn step(&mut self, step: &Step, name: &str, helpers: &mut BTreeSet<Helper>) -> Written {
        let target = self.plan().target;
        if let Kernel::Library(library) = &step.kernel {
            return self.library(library, name);
        }
        let out = match &step.kernel {
            Kernel::Rows(rows) => rows.out,
            Kernel::Scan(scan) => scan.out,
            Kernel::Library(library) => library.out(),
        };
        let mut writer = Writer::new(&mut self.planned.plan, &self.names);
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
            (Kernel::Library(_), _) => None,
        };
        let body = writer.text();
        helpers.extend(writer.helpers.iter().copied());
        let mut buffers = vec![out];
        buffers.extend(writer.read.iter().copied().filter(|buffer| *buffer != out));
        let parameters = self.parameters(&buffers[1..], &[out]);
        let arguments = self.arguments(&buffers);
        match launch {
            None => Written {
                function: format!("static void {name}_kernel({parameters}) {{\n{body}\n}}"),
                call: format!("{name}_kernel({arguments});"),
                buffers,
            },
            Some(launch) => Written {
                function: format!(
                    "__global__ void {}{name}_kernel({parameters}) {{\n{body}\n}}",
                    // Without it a large block could have more registers than there are.
                    if launch.most > 256 {
                        format!("__launch_bounds__({}) ", launch.most)
                    } else {
                        String::new()
                    },
                ),
                call: format!(
                    "{name}_kernel<<<{}, {}, 0, stream>>>({arguments});",
                    launch.blocks, launch.threads
                ),
                buffers,
            },
        }
    }

    fn library(&self, library: &Library, name: &str) -> Written {
        let mut buffers = vec![library.out()];
        buffers.extend(library.reads());
        let arguments = self.arguments(&buffers);
        let named = |buffer: Buffer| self.names[buffer.0].clone();
        match self.plan().target {
            Target::Cpu => {
                let body = match library {
                    Library::Gemm(gemm) => calls::gemm_on_cpu(gemm, &named),
                    Library::Convolution(conv) => calls::convolution_on_cpu(conv, &named),
                };
                let parameters = self.parameters(&buffers[1..], &[library.out()]);
                Written {
                    function: format!("static void {name}_product({parameters}) {{\n{body}\n}}"),
                    call: format!("{name}_product({arguments});"),
                    buffers,
                }
            }
            Target::Cuda => {
                let function = match library {
                    Library::Gemm(gemm) => match gemm.epilogue.bias {
                        Some(bias) => calls::gemm_with_bias_on_cuda(gemm, bias, name, &named),
                        None => calls::gemm_on_cuda(gemm, name, &named),
                    },
                    Library::Convolution(conv) => calls::convolution_on_cuda(conv, name, &named),
                };
                Written {
                    function: format!("static {}", function.trim_start()).replacen(
                        "static //",
                        "//",
                        1,
                    ),
                    call: format!("TRY({name}({arguments}, stream));"),
                    buffers,
                }
            }
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
                let kind = c_type(self.plan().rooms[buffer.0].kind);
                parts.push(format!(
                    "{is_const}{kind}* {restrict} {}",
                    self.names[buffer.0]
                ));
            }
        }
        parts.join(", ")
    }

    fn arguments(&self, buffers: &[Buffer]) -> String {
        let named = buffers.iter().map(|buffer| self.names[buffer.0].as_str());
        named.collect::<Vec<_>>().join(", ")
    }

    fn launcher(&self, name: &str, buffers: &[Buffer], body: &str) -> String {
        let mut parts = Vec::new();
        for buffer in buffers {
            let room = &self.plan().rooms[buffer.0];
            let is_const = if room.origin == Origin::Made {
                ""
            } else {
                "const "
            };
            parts.push(format!(
                "{is_const}{}* {}",
                c_type(room.kind),
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
        let argument = |buffer: &Buffer| match &self.plan().rooms[buffer.0].origin {
            Origin::Input(position) => self.module.inputs[*position].clone(),
            Origin::State(name) => attribute(name),
            Origin::Made => self.names[buffer.0].clone(),
        };
        Call {
            launcher,
            arguments: buffers.iter().map(argument).collect(),
        }
    }

    fn module(&self, calls: &[Call]) -> String {
        let mut allocations = Vec::new();
        for (place, room) in self.plan().rooms.iter().enumerate() {
            let is_used = calls
                .iter()
                .any(|call| call.arguments.contains(&self.names[place]));
            if room.origin == Origin::Made && is_used {
                allocations.push(Allocation {
                    name: self.names[place].clone(),
                    shape: room.shape.clone(),
                    dtype: match room.kind {
                        Kind::Float => "float32",
                        Kind::Int => "int64",
                        Kind::Bool => "bool",
                    },
                });
            }
        }
        let returned: Vec<String> = self
            .planned
            .returns
            .iter()
            .zip(&self.planned.views)
            .map(|(buffer, view)| {
                let mut text = self.names[buffer.0].clone();
                if let Some(shape) = &view.shape {
                    // In brackets: a number has no dimensions.
                    let _ = write!(text, ".view([{}])", listed(shape, ", "));
                }
                if let Some(order) = &view.order {
                    let _ = write!(text, ".permute({})", listed(order, ", "));
                }
                text
            })
            .collect();
        let device = self.module.inputs.first().map_or("self", String::as_str);
        self.module.write(&allocations, calls, &returned, device)
    }

    fn preamble(&self, steps: &[Step], helpers: &BTreeSet<Helper>) -> String {
        let libraries: Vec<&Library> = steps
            .iter()
            .filter_map(|step| match &step.kernel {
                Kernel::Library(library) => Some(library),
                _ => None,
            })
            .collect();
        let mut text = String::new();
        match self.plan().target {
            Target::Cpu => {
                text.push_str("#include <cmath>\n#include <cstdint>\n#include <cstdlib>");
                if libraries
                    .iter()
                    .any(|one| matches!(one, Library::Convolution(_)))
                {
                    text.push_str("\n#include <vector>");
                }
                if !libraries.is_empty() {
                    let _ = write!(text, "\n\n{}", calls::GEMM);
                }
                let vectorised: Vec<&str> = helpers
                    .iter()
                    .filter_map(|helper| match helper {
                        Helper::Vectorised(name) => Some(*name),
                        _ => None,
                    })
                    .collect();
                if !vectorised.is_empty() && self.plan().strategy == Strategy::Tuned {
                    text.push_str(
                        "\n\n// The C library has these in vectors too; the compiler must be told.",
                    );
                    for name in vectorised {
                        let _ = write!(
                            text,
                            "\nextern \"C\" __attribute__((simd(\"notinbranch\"))) float {name}(float) noexcept;"
                        );
                    }
                }
            }
            Target::Cuda => {
                let lt = |one: &&&Library| matches!(one, Library::Gemm(gemm) if gemm.epilogue.bias.is_some());
                if libraries.iter().any(|one| lt(&one)) {
                    text.push_str("#include <cublasLt.h>\n");
                }
                if libraries
                    .iter()
                    .any(|one| matches!(one, Library::Gemm(_)) && !lt(&one))
                {
                    text.push_str("#include <cublas_v2.h>\n");
                }
                text.push_str("#include <cuda_runtime.h>\n");
                if libraries
                    .iter()
                    .any(|one| matches!(one, Library::Convolution(_)))
                {
                    text.push_str("#include <cudnn.h>\n");
                }
                text.push_str("#include <cstdint>");
                if !libraries.is_empty() {
                    let _ = write!(text, "\n\n{}", calls::TRY);
                }
                for helper in helpers {
                    if let Some(function) = cuda::helper(*helper) {
                        let _ = write!(text, "\n\n{function}");
                    }
                }
            }
        }
        text
    }
}
