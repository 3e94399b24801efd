//! Running sums, products and extremes.

use super::launch::blocks;
use super::vectors::{unpack, vector, wide};
use super::{LaunchConfig, THREADS, block_size, integer, thread_number};
use crate::emit::{Helper, KernelWriter, c_type};
use crate::index::{Index, Var, linear};
use crate::plan::{ScanKernel, ScanOp, ScanStore, Strategy};
use crate::scalar::{Arena, Scalar, ScalarType};

/// Neighbouring elements of a thread.
const WIDTH: i64 = 4;

/// What two neighbours come to, and what changes nothing.
struct Step {
    how: ScanOp,
}

impl Step {
    fn start(&self) -> &'static str {
        match self.how {
            ScanOp::Sum => "0.0f",
            ScanOp::Product => "1.0f",
            ScanOp::Max | ScanOp::LogSum => "-INFINITY",
            ScanOp::Min => "INFINITY",
        }
    }

    fn of_two(&self, a: &str, b: &str) -> String {
        match self.how {
            ScanOp::Sum => format!("{a} + {b}"),
            ScanOp::Product => format!("{a} * {b}"),
            ScanOp::Max => format!("fmaxf({a}, {b})"),
            ScanOp::Min => format!("fminf({a}, {b})"),
            ScanOp::LogSum => format!("warpsmith::logaddexp({a}, {b})"),
        }
    }
}

pub(crate) fn scan(writer: &mut KernelWriter<'_>, kernel: &ScanKernel) -> LaunchConfig {
    if kernel.op == ScanOp::LogSum {
        writer.helpers.insert(Helper::Provided);
    }
    let [_, _, after] = kernel.shape;
    // Lines of whole numbers are rare: their vectors have no form of their own.
    let is_simple = writer.plan.strategy == Strategy::Plain || kernel.kind != ScalarType::Float;
    if after > 1 || is_simple {
        columns(writer, kernel)
    } else {
        rows(writer, kernel)
    }
}

/// One thread a scan: neighbouring threads have neighbouring ones.
fn columns(writer: &mut KernelWriter<'_>, kernel: &ScanKernel) -> LaunchConfig {
    let [before, length, after] = kernel.shape;
    let flat = writer.plan.arena.var(before * after);
    let along = writer.plan.arena.var(length);
    let at = [
        Index::from(flat).divided(after),
        along.into(),
        Index::from(flat).remainder(after),
    ];
    let value = (kernel.value)(&mut writer.plan.arena, &at);
    let value = writer.plan.resolve(value, &[]);
    let place = linear(&kernel.shape, &at);
    let then = kernel.epilogue.as_ref();
    let then = then.map(|then| then.at_variable(writer.plan));
    let out = writer.buffer(kernel.out).to_owned();
    writer.name_variable(flat, "row");
    writer.name_variable(along, "k");
    let threads = block_size(writer);
    thread_number(writer, "row", &[before * after], threads);
    let step = Step { how: kernel.op };
    // Sums in double: every element carries the rounding of all before it.
    let of_two = step.of_two("running", "next");
    let own = c_type(kernel.kind);
    let kind = match kernel.op {
        _ if kernel.kind == ScalarType::Int => own,
        ScanOp::Sum | ScanOp::Product => "double",
        _ => own,
    };
    let start = match kernel.kind {
        ScalarType::Int => step.start().trim_end_matches(".0f"),
        ScalarType::Float | ScalarType::Bool => step.start(),
    };
    writer.define(&[value], &[along]);
    writer.line(format!("{kind} running = {start};"));
    if writer.plan.strategy == Strategy::Tuned {
        writer.line("#pragma unroll 8");
    }
    writer.open(format!("for (int k = 0; k < {length}; ++k) {{"));
    writer.define(&[value], &[]);
    let value = writer.value(value);
    writer.line(format!("const {own} next = {value};"));
    writer.line(format!("running = {of_two};"));
    let stored = stored(writer, then, &place, &format!("{own}(running)"));
    let place = writer.index(&place);
    writer.line(format!("{out}[{place}] = {stored};"));
    writer.close();
    LaunchConfig::over(&[before, after], 1, threads)
}

/// What is stored at a place where the scan came to a value, after what has to be written before it.
fn stored(
    writer: &mut KernelWriter<'_>,
    then: Option<ScanStore>,
    place: &Index,
    scanned: &str,
) -> String {
    let Some(then) = then else {
        return scanned.to_owned();
    };
    let name = writer.unique("scanned");
    writer.line(format!("const float {name} = {scanned};"));
    writer.set(then.scanned, name);
    let arena = &writer.plan.arena;
    let others = arena.ordered_until(&[then.value], &|one| one == then.scanned);
    if needs(arena, &others, then.place) {
        let (int, place) = (integer(writer.plan), writer.index(place));
        let name = writer.unique("place");
        writer.line(format!("const {int} {name} = {place};"));
        writer.name_variable(then.place, &name);
    }
    writer.define(&[then.value], &[]);
    writer.value(then.value)
}

/// Whether places of some values depend on a variable.
fn needs(arena: &Arena, scalars: &[Scalar], var: Var) -> bool {
    let indices = scalars.iter().flat_map(|one| arena.indices(*one));
    indices.into_iter().any(|index| index.depends_on(var))
}

/// Short scans of a block, a warp each.
const ROWS: i64 = 8;

/// A block a scan, chunk by chunk: each thread scans neighbours, a warp its threads, the block its warps. Where a warp is enough
/// for a scan the block has several.
fn rows(writer: &mut KernelWriter<'_>, kernel: &ScanKernel) -> LaunchConfig {
    let [before, length, _] = kernel.shape;
    let int = integer(writer.plan);
    let groups = (length + WIDTH - 1) / WIDTH;
    let most = writer
        .plan
        .knobs
        .choose("threads of a block", THREADS, &[128, 512, 64]);
    let threads = ((groups + 31) / 32 * 32).min(most);
    // Two chunks at once have more loads under way for every time that all threads meet.
    let chunks = if groups >= 2 * threads { 2 } else { 1 };
    let more = if groups >= 4 * threads {
        [1, 4]
    } else {
        [1, 2]
    };
    let chunks = writer.plan.knobs.choose("chunks at once", chunks, &more);
    let warps = threads / 32;
    let alone = warps == 1;
    let flat = writer.plan.arena.var(before);
    let (group, lane) = (writer.plan.arena.var(groups), writer.plan.arena.var(WIDTH));
    let along = Index::from(group).times(WIDTH).plus(&lane.into());
    let at = [flat.into(), along, Index::default()];
    let value = (kernel.value)(&mut writer.plan.arena, &at);
    let value = writer.plan.resolve(value, &[]);
    let place = linear(&kernel.shape, &at);
    let then = kernel.epilogue.as_ref();
    let then = then.map(|then| then.at_variable(writer.plan));
    let out = writer.buffer(kernel.out).to_owned();
    writer.name_variable(flat, "row");
    writer.name_variable(group, "c");
    writer.name_variable(lane, "l");
    for name in [
        "row", "c", "l", "lane", "warp", "carry", "start", "v", "j", "running", "parts", "before",
    ] {
        writer.unique(name);
    }
    let step = Step { how: kernel.op };
    let start = step.start();
    let whole = groups % (threads * chunks) == 0 && length % WIDTH == 0;
    let by_four = length % WIDTH == 0;
    if alone {
        writer.line(format!(
            "const {int} row = blockIdx.x * {ROWS} + threadIdx.y;"
        ));
        let count = writer.count(before);
        writer.line(format!("if (row >= {count}) return;"));
        writer.line("const int lane = threadIdx.x;");
    } else {
        writer.line(format!("__shared__ float parts[{chunks}][{warps}];"));
        writer.line(format!("const {int} row = blockIdx.x;"));
        writer.line("const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;");
    }
    writer.define(&[value], &[group, lane]);
    if !alone {
        writer.line(format!("float carry = {start};"));
    }
    writer.open(format!(
        "for (int start = 0; start < {groups}; start += {}) {{",
        threads * chunks
    ));
    writer.line(format!("float4 v[{chunks}];"));
    writer.line("#pragma unroll");
    writer.open(format!("for (int j = 0; j < {chunks}; ++j) {{"));
    writer.line(format!(
        "const int c = start + j * {threads} + threadIdx.x;"
    ));
    let scope = writer.scope();
    if !whole {
        writer.line(format!("v[j] = {{{start}, {start}, {start}, {start}}};"));
        writer.open(format!("if (c < {groups}) {{"));
    }
    let mut vectors = Vec::new();
    if by_four {
        for load in wide(writer.plan, &[value], lane, &|_| false) {
            vectors.extend(vector(writer, load, lane));
        }
    }
    writer.define(&[value], &[lane]);
    writer.line("#pragma unroll");
    writer.open(format!("for (int l = 0; l < {WIDTH}; ++l) {{"));
    if !by_four {
        writer.line(format!("if (c * {WIDTH} + l >= {length}) break;"));
    }
    unpack(writer, &vectors, "");
    writer.define(&[value], &[]);
    let text = writer.value(value);
    writer.line(format!("(&v[j].x)[l] = {text};"));
    writer.close();
    writer.exit_scope(scope);
    if !whole {
        writer.close();
    }
    writer.close();
    writer.line(format!("float running[{chunks}];"));
    writer.line("#pragma unroll");
    writer.open(format!("for (int j = 0; j < {chunks}; ++j) {{"));
    for (from, to) in [("x", "y"), ("y", "z"), ("z", "w")] {
        let (a, b) = (format!("v[j].{from}"), format!("v[j].{to}"));
        writer.line(format!("{b} = {};", step.of_two(&a, &b)));
    }
    writer.line("running[j] = v[j].w;");
    writer.line("#pragma unroll");
    writer.open("for (int d = 1; d < 32; d <<= 1) {");
    writer.line("const float other = __shfl_up_sync(0xffffffffu, running[j], d);");
    writer.line(format!(
        "if (lane >= d) running[j] = {};",
        step.of_two("other", "running[j]")
    ));
    writer.close();
    if !alone {
        writer.line("if (lane == 31) parts[j][warp] = running[j];");
    }
    writer.close();
    if !alone {
        writer.line("__syncthreads();");
    }
    writer.line("#pragma unroll");
    writer.open(format!("for (int j = 0; j < {chunks}; ++j) {{"));
    writer.line("const float other = __shfl_up_sync(0xffffffffu, running[j], 1);");
    if alone {
        writer.line(format!("const float before = lane > 0 ? other : {start};"));
    } else {
        writer.line("float before = carry;");
        writer.line("#pragma unroll");
        writer.open(format!("for (int w = 0; w < {warps}; ++w) {{"));
        writer.line(format!(
            "if (w < warp) before = {};",
            step.of_two("before", "parts[j][w]")
        ));
        writer.line(format!("carry = {};", step.of_two("carry", "parts[j][w]")));
        writer.close();
        writer.line(format!(
            "if (lane > 0) before = {};",
            step.of_two("before", "other")
        ));
    }
    for part in ["x", "y", "z", "w"] {
        let own = format!("v[j].{part}");
        writer.line(format!("{own} = {};", step.of_two("before", &own)));
    }
    writer.line(format!(
        "const int c = start + j * {threads} + threadIdx.x;"
    ));
    if !whole {
        writer.open(format!("if (c < {groups}) {{"));
    }
    if then.is_some() {
        let scope = writer.scope();
        writer.line("#pragma unroll");
        writer.open(format!("for (int l = 0; l < {WIDTH}; ++l) {{"));
        if !by_four {
            writer.line(format!("if (c * {WIDTH} + l >= {length}) break;"));
        }
        let stored = stored(writer, then, &place, "(&v[j].x)[l]");
        writer.line(format!("(&v[j].x)[l] = {stored};"));
        writer.close();
        writer.exit_scope(scope);
    }
    if by_four {
        let first = place.substituted(lane, &Index::default()).divided(WIDTH);
        let first = writer.index(&first);
        writer.line(format!("reinterpret_cast<float4*>({out})[{first}] = v[j];"));
    } else {
        let place = writer.index(&place);
        writer.line("#pragma unroll");
        writer.open(format!("for (int l = 0; l < {WIDTH}; ++l) {{"));
        writer.line(format!(
            "if (c * {WIDTH} + l < {length}) {out}[{place}] = (&v[j].x)[l];"
        ));
        writer.close();
    }
    if !whole {
        writer.close();
    }
    writer.close();
    if !alone {
        writer.line("__syncthreads();");
    }
    writer.close();
    if alone {
        return LaunchConfig {
            blocks: blocks(&[before], ROWS),
            threads: format!("dim3({threads}, {ROWS})"),
            max_threads: threads * ROWS,
        };
    }
    LaunchConfig {
        blocks: before.to_string(),
        threads: threads.to_string(),
        max_threads: threads,
    }
}
