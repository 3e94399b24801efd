//! Kernels as CUDA C++.

use super::cpu::{combine, open_loops};
use super::loops::contiguous;
use super::{Helper, Writer, float};
use crate::teacher::index::{Index, Var, coordinates, linear};
use crate::teacher::plan::{Fold, Pass, Plan, Rows, Scan, Scanning, Strategy};
use crate::teacher::scalar::{Kind, Node, Scalar};

const THREADS: i64 = 256;
/// Values of a row that a thread may keep in registers.
const KEPT: i64 = 64;

/// Blocks, and the threads of one.
pub(in crate::teacher) struct Launch {
    pub(in crate::teacher) blocks: i64,
    pub(in crate::teacher) threads: String,
}

impl Launch {
    fn over(count: i64) -> Self {
        Self {
            blocks: (count + THREADS - 1) / THREADS,
            threads: THREADS.to_string(),
        }
    }
}

pub(in crate::teacher) fn rows(writer: &mut Writer<'_>, kernel: &Rows) -> Launch {
    if kernel.passes.is_empty() {
        return cells(writer, kernel);
    }
    match shared_out(writer, kernel) {
        Some(team) => together(writer, kernel, team),
        None => alone(writer, kernel),
    }
}

/// The type of an index: 32 bits are quicker where they suffice.
fn integer(plan: &Plan) -> &'static str {
    let large = |shape: &[i64]| shape.iter().product::<i64>() >= 1 << 31;
    if plan.rooms.iter().any(|room| large(&room.shape)) {
        "int64_t"
    } else {
        "int"
    }
}

fn thread_number(writer: &mut Writer<'_>, name: &str, count: i64) {
    let int = integer(writer.plan);
    let block = if int == "int" {
        "blockIdx.x"
    } else {
        "int64_t(blockIdx.x)"
    };
    writer.unique(name);
    writer.line(format!(
        "const {int} {name} = {block} * {THREADS} + threadIdx.x;"
    ));
    if count % THREADS != 0 {
        writer.line(format!("if ({name} >= {count}) return;"));
    }
}

fn stored(plan: &mut Plan, kernel: &Rows, at: &[Index]) -> Scalar {
    let value = (kernel.value)(&mut plan.arena, at);
    plan.resolved(value, &kernel.passes)
}

fn folded(plan: &mut Plan, pass: &Pass, passes: &[Pass], row: &[Index], at: &[Index]) -> Scalar {
    let body = plan.reductions[pass.reduction.0].body.clone();
    let value = body(&mut plan.arena, &(pass.outer)(row), at);
    plan.resolved(value, passes)
}

/// Loads of four neighbours at once: their vector's first element is `lane` zero.
fn wide(plan: &Plan, values: &[Scalar], lane: Var) -> Vec<Scalar> {
    let arena = &plan.arena;
    let ordered = arena.ordered(values);
    let is_wide = |one: &Scalar| match arena.node(*one) {
        Node::Load {
            buffer,
            index,
            looked_up,
            guard,
        } => {
            looked_up.is_empty()
                && guard.is_empty()
                && plan.rooms[buffer.0].kind == Kind::Float
                && index.stride(lane) == Some(1)
                && index.aligned(4, lane)
        }
        _ => false,
    };
    ordered.into_iter().filter(is_wide).collect()
}

/// A quarter of a wide load's index.
fn quarter(plan: &Plan, load: Scalar, lane: Var) -> Option<(usize, Index)> {
    match plan.arena.node(load) {
        Node::Load { buffer, index, .. } => {
            let first = index.substituted(lane, &Index::default());
            Some((buffer.0, first.divided(4)))
        }
        _ => None,
    }
}

fn cells(writer: &mut Writer<'_>, kernel: &Rows) -> Launch {
    let count: i64 = kernel.cells.iter().product();
    let tuned = writer.plan.strategy == Strategy::Tuned;
    let kind = writer.plan.rooms[kernel.out.0].kind;
    if tuned && count % 4 == 0 && kind == Kind::Float {
        let (group, lane) = (writer.plan.arena.var(count / 4), writer.plan.arena.var(4));
        let flat = Index::from(group).times(4).plus(&lane.into());
        let value = stored(writer.plan, kernel, &coordinates(&kernel.cells, &flat));
        let loads = wide(writer.plan, &[value], lane);
        if !loads.is_empty() {
            return cells_by_four(writer, kernel, value, &loads, (group, lane));
        }
    }
    let flat = writer.plan.arena.var(count);
    let at = coordinates(&kernel.cells, &flat.into());
    let value = stored(writer.plan, kernel, &at);
    writer.call(flat, "i");
    thread_number(writer, "i", count);
    writer.define(&[value], &[]);
    let out = writer.buffer(kernel.out).to_owned();
    let value = writer.value(value);
    writer.line(format!("{out}[i] = {value};"));
    Launch::over(count)
}

fn cells_by_four(
    writer: &mut Writer<'_>,
    kernel: &Rows,
    value: Scalar,
    loads: &[Scalar],
    (group, lane): (Var, Var),
) -> Launch {
    writer.call(group, "i");
    writer.call(lane, "l");
    thread_number(writer, "i", group.extent);
    let mut vectors = Vec::new();
    for load in loads {
        vectors.extend(vector(writer, *load, lane));
    }
    writer.define(&[value], &[lane]);
    writer.line("float4 result;");
    writer.line("#pragma unroll");
    writer.open("for (int l = 0; l < 4; ++l) {");
    unpack(writer, &vectors, "");
    writer.define(&[value], &[]);
    let value = writer.value(value);
    writer.line(format!("(&result.x)[l] = {value};"));
    writer.close();
    let out = writer.buffer(kernel.out).to_owned();
    writer.line(format!("reinterpret_cast<float4*>({out})[i] = result;"));
    Launch::over(group.extent)
}

/// Declares a vector and loads it.
fn vector(writer: &mut Writer<'_>, load: Scalar, lane: Var) -> Option<(Scalar, String)> {
    let (name, from) = vector_source(writer, load, lane)?;
    writer.line(format!("const float4 {name} = {from};"));
    Some((load, name))
}

fn vector_source(writer: &mut Writer<'_>, load: Scalar, lane: Var) -> Option<(String, String)> {
    let (buffer, place) = quarter(writer.plan, load, lane)?;
    let buffer = crate::teacher::scalar::Buffer(buffer);
    if !writer.read.contains(&buffer) {
        writer.read.push(buffer);
    }
    let from = writer.buffer(buffer).to_owned();
    let name = writer.unique(&format!("{from}_four"));
    let place = writer.index(&place);
    Some((
        name,
        format!("reinterpret_cast<const float4*>({from})[{place}]"),
    ))
}

/// The elements of vectors at lane `l`; `at` names which of several.
fn unpack(writer: &mut Writer<'_>, vectors: &[(Scalar, String)], at: &str) {
    for (load, name) in vectors {
        writer.set(*load, format!("(&{name}{at}.x)[l]"));
    }
}

/// One thread a row.
fn alone(writer: &mut Writer<'_>, kernel: &Rows) -> Launch {
    let count: i64 = kernel.outer.iter().product();
    let flat = writer.plan.arena.var(count);
    writer.call(flat, "row");
    thread_number(writer, "row", count);
    let row = coordinates(&kernel.outer, &flat.into());
    for pass in &kernel.passes {
        let reduction = writer.plan.reductions[pass.reduction.0].clone();
        let vars: Vec<Var> = reduction
            .extents
            .iter()
            .map(|extent| writer.plan.arena.var(*extent))
            .collect();
        let at: Vec<Index> = vars.iter().map(|var| (*var).into()).collect();
        let value = folded(writer.plan, pass, &kernel.passes, &row, &at);
        writer.define(&[value], &vars);
        let name = writer.unique(reduction.name);
        let scope = writer.scope();
        if reduction.fold == Fold::ArgMax {
            let best = writer.unique("best");
            writer.line(format!("float {best} = -INFINITY;"));
            writer.line(format!("int64_t {name} = 0;"));
            let opened = open_loops(writer, &vars);
            writer.define(&[value], &[]);
            let place = writer.index(&linear(&reduction.extents, &at));
            let value = writer.operand(value);
            writer.open(format!("if ({best} < {value}) {{"));
            writer.line(format!("{best} = {value};"));
            writer.line(format!("{name} = {place};"));
            writer.close();
            for _ in 0..opened {
                writer.close();
            }
        } else {
            writer.line(format!(
                "float {name} = {};",
                float(reduction.fold.neutral())
            ));
            let opened = open_loops(writer, &vars);
            writer.define(&[value], &[]);
            let value = writer.operand(value);
            writer.line(combine(reduction.fold, &name, &value));
            for _ in 0..opened {
                writer.close();
            }
        }
        writer.leave(scope);
        let finished = writer.plan.arena.finished(pass.reduction, reduction.kind);
        writer.set(finished, name);
    }
    let vars: Vec<Var> = kernel
        .cells
        .iter()
        .map(|extent| writer.plan.arena.var(*extent))
        .collect();
    let cell: Vec<Index> = vars.iter().map(|var| (*var).into()).collect();
    let at = (kernel.place)(&row, &cell);
    let value = stored(writer.plan, kernel, &at);
    writer.define(&[value], &vars);
    let opened = open_loops(writer, &vars);
    writer.define(&[value], &[]);
    let place = writer.index(&linear(&kernel.shape, &at));
    let value = writer.value(value);
    let out = writer.buffer(kernel.out).to_owned();
    writer.line(format!("{out}[{place}] = {value};"));
    for _ in 0..opened {
        writer.close();
    }
    Launch::over(count)
}

/// How threads share a row.
#[derive(Debug, Clone, Copy)]
struct Team {
    /// Elements of a row.
    length: i64,
    /// Elements that are loaded at once.
    width: i64,
    threads: i64,
    /// Rows of a block; more than one where a warp has a row.
    rows: i64,
}

impl Team {
    fn groups(self) -> i64 {
        self.length / self.width
    }

    fn items(self) -> i64 {
        (self.groups() + self.threads - 1) / self.threads
    }
}

/// Whether threads should share rows: neighbouring elements of one lie side by side, and there are many of them.
fn shared_out(writer: &mut Writer<'_>, kernel: &Rows) -> Option<Team> {
    let plan = &mut *writer.plan;
    if plan.strategy == Strategy::Plain {
        return None;
    }
    let count: i64 = kernel.outer.iter().product();
    let flat = plan.arena.var(count);
    let row = coordinates(&kernel.outer, &flat.into());
    let length = plan.reductions[kernel.passes.first()?.reduction.0].length();
    if length < 32 {
        return None;
    }
    let (mut along, mut loads) = (0, 0);
    for pass in &kernel.passes {
        let reduction = plan.reductions[pass.reduction.0].clone();
        let place = plan.arena.var(reduction.length());
        let at = coordinates(&reduction.extents, &place.into());
        let value = folded(plan, pass, &kernel.passes, &row, &at);
        along += contiguous(plan, &[value], place);
        loads += contiguous(plan, &[value], flat);
    }
    let few = count < 4096;
    if along == 0 && !(few && loads == 0) || loads > along {
        return None;
    }
    let width = if plan.strategy == Strategy::Tuned && length % 4 == 0 {
        4
    } else {
        1
    };
    let groups = length / width;
    let threads = match groups {
        0..=256 => 32,
        257..=1024 => 128,
        1025..=4096 => 256,
        _ => 512,
    };
    Some(Team {
        length,
        width,
        threads,
        rows: if threads == 32 { 8 } else { 1 },
    })
}

struct Phase {
    value: Scalar,
    /// Of this many elements; those of the team's length share its loop.
    length: i64,
}

fn together(writer: &mut Writer<'_>, kernel: &Rows, team: Team) -> Launch {
    let int = integer(writer.plan);
    let count: i64 = kernel.outer.iter().product();
    let flat = writer.plan.arena.var(count);
    writer.call(flat, "row");
    if team.rows > 1 {
        writer.line(format!(
            "const {int} row = blockIdx.x * {} + threadIdx.y;",
            team.rows
        ));
        if count % team.rows != 0 {
            writer.line(format!("if (row >= {count}) return;"));
        }
    } else {
        writer.line(format!("const {int} row = blockIdx.x;"));
    }
    for name in ["row", "n", "c", "l"] {
        writer.unique(name);
    }
    let row = coordinates(&kernel.outer, &flat.into());
    let group = writer.plan.arena.var(team.groups());
    let lane = writer.plan.arena.var(team.width);
    writer.call(group, "c");
    writer.call(lane, "l");
    let flat_cell = Index::from(group).times(team.width).plus(&lane.into());

    // All values first: loads that several loops need are made once.
    let mut phases = Vec::new();
    for pass in &kernel.passes {
        let reduction = writer.plan.reductions[pass.reduction.0].clone();
        let length = reduction.length();
        let place = if length == team.length {
            flat_cell.clone()
        } else {
            Index::from(writer.plan.arena.var(length))
        };
        let at = coordinates(&reduction.extents, &place);
        let value = folded(writer.plan, pass, &kernel.passes, &row, &at);
        phases.push((Phase { value, length }, place));
    }
    let cells: i64 = kernel.cells.iter().product();
    let place = if cells == team.length {
        flat_cell.clone()
    } else {
        Index::from(writer.plan.arena.var(cells))
    };
    let at = (kernel.place)(&row, &coordinates(&kernel.cells, &place));
    let value = stored(writer.plan, kernel, &at);
    let last = Phase {
        value,
        length: cells,
    };
    let kept = kept(writer, &phases, &last, (group, lane), team);
    let kept = keep(writer, kept, lane, team);

    for ((phase, place), pass) in phases.iter().zip(&kernel.passes) {
        let reduction = writer.plan.reductions[pass.reduction.0].clone();
        let name = writer.unique(reduction.name);
        let is_place = reduction.fold == Fold::ArgMax;
        if is_place {
            writer.line(format!("Best {name} = {{-INFINITY, 0}};"));
        } else {
            writer.line(format!(
                "float {name} = {};",
                float(reduction.fold.neutral())
            ));
        }
        let linear_place = place.clone();
        over_row(writer, phase, place, &kept, lane, team, |writer, value| {
            if is_place {
                let at = writer.index(&linear_place);
                writer.line(format!("take({name}, {value}, {at});"));
            } else {
                writer.line(combine(reduction.fold, &name, value));
            }
        });
        combine_threads(writer, reduction.fold, &name, team);
        let finished = writer.plan.arena.finished(pass.reduction, reduction.kind);
        let text = if is_place {
            format!("{name}.place")
        } else {
            name
        };
        writer.set(finished, text);
    }
    let out = writer.buffer(kernel.out).to_owned();
    if cells == 1 {
        writer.open("if (threadIdx.x == 0) {");
        writer.define(&[last.value], &[]);
        let value = writer.value(last.value);
        let place = writer.index(&linear(&kernel.shape, &at));
        writer.line(format!("{out}[{place}] = {value};"));
        writer.close();
    } else {
        let target = linear(&kernel.shape, &at);
        let wide_store = team.width == 4
            && cells == team.length
            && target.stride(lane) == Some(1)
            && target.aligned(4, lane)
            && writer.plan.rooms[kernel.out.0].kind == Kind::Float;
        store_row(
            writer,
            &last,
            &place,
            &kept,
            (lane, team),
            &out,
            &target,
            wide_store,
        );
    }
    let blocks = (count + team.rows - 1) / team.rows;
    let threads = if team.rows > 1 {
        format!("dim3(32, {})", team.rows)
    } else {
        team.threads.to_string()
    };
    Launch { blocks, threads }
}

/// Loads that more than one loop over the row makes, if they all fit into registers.
fn kept(
    writer: &Writer<'_>,
    phases: &[(Phase, Index)],
    last: &Phase,
    (group, lane): (Var, Var),
    team: Team,
) -> Vec<Scalar> {
    let plan = &*writer.plan;
    if plan.strategy != Strategy::Tuned {
        return Vec::new();
    }
    let mut times: Vec<(Scalar, usize)> = Vec::new();
    let of_the_row = phases.iter().map(|(phase, _)| phase).chain([last]);
    for phase in of_the_row.filter(|phase| phase.length == team.length) {
        let loads: Vec<Scalar> = if team.width == 4 {
            wide(plan, &[phase.value], lane)
        } else {
            let ordered = plan.arena.ordered(&[phase.value]);
            let plain = |one: &Scalar| {
                matches!(plan.arena.node(*one), Node::Load { looked_up, guard, index, buffer }
                    if looked_up.is_empty() && guard.is_empty() && plan.rooms[buffer.0].kind == Kind::Float
                        && index.depends_on(group))
            };
            ordered.into_iter().filter(plain).collect()
        };
        for load in loads {
            match times.iter_mut().find(|(known, _)| *known == load) {
                Some((_, count)) => *count += 1,
                None => times.push((load, 1)),
            }
        }
    }
    let shared = times.into_iter().filter(|(_, count)| *count > 1);
    let mut room = KEPT / (team.items() * team.width);
    let mut kept = Vec::new();
    for (load, _) in shared {
        if room > 0 {
            room -= 1;
            kept.push(load);
        }
    }
    kept
}

/// A name and how an element of it is written.
type Kept = Vec<(Scalar, String)>;

fn keep(writer: &mut Writer<'_>, loads: Vec<Scalar>, lane: Var, team: Team) -> Kept {
    let mut kept = Vec::new();
    let mut lines = Vec::new();
    for load in loads {
        if team.width == 4 {
            let Some((name, from)) = vector_source(writer, load, lane) else {
                continue;
            };
            writer.line(format!("float4 {name}[{}];", team.items()));
            lines.push(format!("{name}[n] = {from};"));
            kept.push((load, name));
        } else {
            let from = writer.value(load);
            let name = writer.unique("kept");
            writer.line(format!("float {name}[{}];", team.items()));
            lines.push(format!("{name}[n] = {from};"));
            kept.push((load, name));
        }
    }
    if !kept.is_empty() {
        open_row(writer, team, Unrolled::Yes);
        for line in lines {
            writer.line(line);
        }
        close_row(writer, team, Unrolled::Yes);
    }
    kept
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Unrolled {
    Yes,
    No,
}

/// A loop over the groups of a row that this thread has.
fn open_row(writer: &mut Writer<'_>, team: Team, unrolled: Unrolled) {
    let (threads, groups) = (team.threads, team.groups());
    if unrolled == Unrolled::No {
        writer.open(format!(
            "for (int c = threadIdx.x; c < {groups}; c += {threads}) {{"
        ));
        return;
    }
    writer.line("#pragma unroll");
    writer.open(format!("for (int n = 0; n < {}; ++n) {{", team.items()));
    writer.line(format!("const int c = threadIdx.x + n * {threads};"));
    if groups % threads != 0 {
        writer.open(format!("if (c < {groups}) {{"));
    }
}

fn close_row(writer: &mut Writer<'_>, team: Team, unrolled: Unrolled) {
    if unrolled == Unrolled::Yes && team.groups() % team.threads != 0 {
        writer.close();
    }
    writer.close();
}

/// Writes a loop over a row; `inside` gets the expression of each element.
fn over_row(
    writer: &mut Writer<'_>,
    phase: &Phase,
    place: &Index,
    kept: &Kept,
    lane: Var,
    team: Team,
    inside: impl FnOnce(&mut Writer<'_>, &str),
) {
    let value = phase.value;
    let vars: Vec<Var> = place.vars().into_iter().collect();
    writer.define(&[value], &vars);
    let scope = writer.scope();
    if phase.length != team.length {
        other_length(writer, phase, place, team, |writer| {
            let value = writer.operand(value);
            inside(writer, &value);
        });
        writer.leave(scope);
        return;
    }
    let unrolled = if kept.is_empty() {
        Unrolled::No
    } else {
        Unrolled::Yes
    };
    open_row(writer, team, unrolled);
    lanes_of(writer, value, kept, lane, team, |writer| {
        let value = writer.operand(value);
        inside(writer, &value);
    });
    close_row(writer, team, unrolled);
    writer.leave(scope);
}

/// The elements of a group, with its wide loads before them.
fn lanes_of(
    writer: &mut Writer<'_>,
    value: Scalar,
    kept: &Kept,
    lane: Var,
    team: Team,
    inside: impl FnOnce(&mut Writer<'_>),
) {
    if team.width == 1 {
        for (load, name) in kept {
            writer.set(*load, format!("{name}[n]"));
        }
        writer.define(&[value], &[]);
        inside(writer);
        return;
    }
    let mut vectors = Vec::new();
    for load in wide(writer.plan, &[value], lane) {
        if kept.iter().all(|(known, _)| *known != load) {
            vectors.extend(vector(writer, load, lane));
        }
    }
    writer.define(&[value], &[lane]);
    writer.line("#pragma unroll");
    writer.open("for (int l = 0; l < 4; ++l) {");
    unpack(writer, kept, "[n]");
    unpack(writer, &vectors, "");
    writer.define(&[value], &[]);
    inside(writer);
    writer.close();
}

fn other_length(
    writer: &mut Writer<'_>,
    phase: &Phase,
    place: &Index,
    team: Team,
    inside: impl FnOnce(&mut Writer<'_>),
) {
    let name = writer.unique("k");
    for var in place.vars() {
        writer.call(var, &name);
    }
    writer.open(format!(
        "for (int {name} = threadIdx.x; {name} < {}; {name} += {}) {{",
        phase.length, team.threads
    ));
    writer.define(&[phase.value], &[]);
    inside(writer);
    writer.close();
}

#[expect(clippy::too_many_arguments, reason = "the parts of one loop")]
fn store_row(
    writer: &mut Writer<'_>,
    last: &Phase,
    place: &Index,
    kept: &Kept,
    (lane, team): (Var, Team),
    out: &str,
    target: &Index,
    wide_store: bool,
) {
    if !wide_store {
        let target = target.clone();
        let out = out.to_owned();
        over_row(writer, last, place, kept, lane, team, |writer, value| {
            let place = writer.index(&target);
            writer.line(format!("{out}[{place}] = {value};"));
        });
        return;
    }
    let value = last.value;
    let vars: Vec<Var> = place.vars().into_iter().collect();
    writer.define(&[value], &vars);
    let unrolled = if kept.is_empty() {
        Unrolled::No
    } else {
        Unrolled::Yes
    };
    open_row(writer, team, unrolled);
    writer.line("float4 result;");
    lanes_of(writer, value, kept, lane, team, |writer| {
        let value = writer.value(value);
        writer.line(format!("(&result.x)[l] = {value};"));
    });
    let first = target.substituted(lane, &Index::default()).divided(4);
    let first = writer.index(&first);
    writer.line(format!(
        "reinterpret_cast<float4*>({out})[{first}] = result;"
    ));
    close_row(writer, team, unrolled);
}

/// What the threads of a row have found, put together for all of them.
fn combine_threads(writer: &mut Writer<'_>, fold: Fold, name: &str, team: Team) {
    let (warp, block, word) = match fold {
        Fold::Sum => (Helper::WarpSum, Helper::BlockSum, "sum"),
        Fold::Product => (Helper::WarpProduct, Helper::BlockProduct, "product"),
        Fold::Max => (Helper::WarpMax, Helper::BlockMax, "max"),
        Fold::Min => (Helper::WarpMin, Helper::BlockMin, "min"),
        Fold::ArgMax => (Helper::WarpArgMax, Helper::BlockArgMax, "best"),
    };
    writer.helpers.insert(warp);
    if team.rows > 1 {
        writer.line(format!("{name} = warp_{word}({name});"));
    } else {
        writer.helpers.insert(block);
        writer.line(format!("{name} = block_{word}<{}>({name});", team.threads));
    }
}

pub(in crate::teacher) fn scan(writer: &mut Writer<'_>, kernel: &Scan) -> Launch {
    let [before, length, after] = kernel.shape;
    let flat = writer.plan.arena.var(before * after);
    let along = writer.plan.arena.var(length);
    let at = [
        Index::from(flat).divided(after),
        along.into(),
        Index::from(flat).remainder(after),
    ];
    let value = (kernel.value)(&mut writer.plan.arena, &at);
    let value = writer.plan.resolved(value, &[]);
    let place = linear(&kernel.shape, &at);
    let out = writer.buffer(kernel.out).to_owned();
    writer.call(flat, "row");
    writer.call(along, "k");
    let (start, sign) = match kernel.how {
        Scanning::Sum => ("0.0", "+"),
        Scanning::Product => ("1.0", "*"),
    };
    if after > 1 || writer.plan.strategy == Strategy::Plain {
        thread_number(writer, "row", before * after);
        writer.line(format!("double running = {start};"));
        writer.open(format!("for (int k = 0; k < {length}; ++k) {{"));
        writer.define(&[value], &[]);
        let (value, place) = (writer.operand(value), writer.index(&place));
        writer.line(format!("running {sign}= {value};"));
        writer.line(format!("{out}[{place}] = float(running);"));
        writer.close();
        return Launch::over(before * after);
    }
    let int = integer(writer.plan);
    let chunk = THREADS * 4;
    let whole = length % chunk == 0;
    for name in [
        "row", "lane", "warp", "carry", "start", "first", "v", "j", "running", "parts",
    ] {
        writer.unique(name);
    }
    writer.line(format!("__shared__ float parts[{}];", THREADS / 32));
    writer.line(format!("const {int} row = blockIdx.x;"));
    writer.line("const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;");
    writer.line(format!("float carry = {start}f;"));
    writer.open(format!(
        "for (int start = 0; start < {length}; start += {chunk}) {{"
    ));
    writer.line("const int first = start + threadIdx.x * 4;");
    writer.line("float v[4];");
    writer.line("#pragma unroll");
    writer.open("for (int j = 0; j < 4; ++j) {");
    writer.line("const int k = first + j;");
    writer.line(format!("v[j] = {start}f;"));
    if !whole {
        writer.open(format!("if (k < {length}) {{"));
    }
    let scope = writer.scope();
    writer.define(&[value], &[]);
    let text = writer.value(value);
    writer.line(format!("v[j] = {text};"));
    writer.leave(scope);
    if !whole {
        writer.close();
    }
    writer.line(format!("if (j > 0) v[j] = v[j - 1] {sign} v[j];"));
    writer.close();
    writer.line("float running = v[3];");
    writer.open("for (int d = 1; d < 32; d <<= 1) {");
    writer.line("const float other = __shfl_up_sync(0xffffffffu, running, d);");
    writer.line(format!("if (lane >= d) running = other {sign} running;"));
    writer.close();
    writer.line("if (lane == 31) parts[warp] = running;");
    writer.line("__syncthreads();");
    writer.line("float before = carry;");
    writer.line(format!(
        "for (int w = 0; w < warp; ++w) before = before {sign} parts[w];"
    ));
    writer.line("const float other = __shfl_up_sync(0xffffffffu, running, 1);");
    writer.line(format!("if (lane > 0) before = before {sign} other;"));
    writer.line("#pragma unroll");
    writer.open("for (int j = 0; j < 4; ++j) {");
    writer.line("const int k = first + j;");
    let place = writer.index(&place);
    let guard = if whole {
        String::new()
    } else {
        format!("if (k < {length}) ")
    };
    writer.line(format!("{guard}{out}[{place}] = before {sign} v[j];"));
    writer.close();
    writer.line(format!(
        "for (int w = 0; w < {}; ++w) carry = carry {sign} parts[w];",
        THREADS / 32
    ));
    writer.line("__syncthreads();");
    writer.close();
    Launch {
        blocks: before,
        threads: THREADS.to_string(),
    }
}

/// What a file needs before its kernels.
pub(in crate::teacher) fn helper(helper: Helper) -> Option<String> {
    let text = match helper {
        Helper::Tanh => TANH.to_owned(),
        Helper::Log => LOG.to_owned(),
        Helper::WarpSum => warp("sum", "v + other"),
        Helper::WarpProduct => warp("product", "v * other"),
        Helper::WarpMax => warp("max", "fmaxf(v, other)"),
        Helper::WarpMin => warp("min", "fminf(v, other)"),
        Helper::BlockSum => block("sum", "0.0f"),
        Helper::BlockProduct => block("product", "1.0f"),
        Helper::BlockMax => block("max", "-INFINITY"),
        Helper::BlockMin => block("min", "INFINITY"),
        Helper::WarpArgMax => WARP_BEST.to_owned(),
        Helper::BlockArgMax => BLOCK_BEST.to_owned(),
        Helper::Vectorised(_) => return None,
    };
    Some(text)
}

fn warp(name: &str, combined: &str) -> String {
    format!(
        "__device__ __forceinline__ float warp_{name}(float v) {{
    for (int d = 16; d > 0; d >>= 1) {{
        const float other = __shfl_xor_sync(0xffffffffu, v, d);
        v = {combined};
    }}
    return v;
}}"
    )
}

fn block(name: &str, neutral: &str) -> String {
    format!(
        "template <int threads>
__device__ __forceinline__ float block_{name}(float v) {{
    __shared__ float parts[threads / 32];
    v = warp_{name}(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x % 32 < threads / 32 ? parts[threadIdx.x % 32] : {neutral};
    return warp_{name}(v);
}}"
    )
}

const TANH: &str = "// tanhf becomes an approximation under --use_fast_math.
__device__ __forceinline__ float exact_tanh(float x) {
    const float a = fabsf(x);
    const float large = 1.0f - 2.0f / (expf(2.0f * a) + 1.0f);
    const float s = x * x;
    float small = fmaf(-5.70498872745e-3f, s, 2.06390887954e-2f);
    small = fmaf(small, s, -5.37397155531e-2f);
    small = fmaf(small, s, 1.33314422036e-1f);
    small = fmaf(small, s, -3.33332819422e-1f);
    small = fmaf(small * s, a, a);
    return copysignf(a < 0.625f ? small : large, x);
}";

const LOG: &str = "// logf becomes an approximation under --use_fast_math.
__device__ __forceinline__ float exact_log(float x) {
    if (!(x > 0.0f) || x == INFINITY) return x == 0.0f ? -INFINITY : x < 0.0f ? NAN : x;
    const int e = (__float_as_int(x) - 0x3f2aaaab) & 0xff800000;
    const float f = __int_as_float(__float_as_int(x) - e) - 1.0f;
    const float s = f * f;
    float r = fmaf(-0.130310059f, s, -0.121484190f);
    float t = fmaf(0.140869141f, s, 0.139814854f);
    r = fmaf(r, s, -0.166846052f);
    t = fmaf(t, s, 0.200120345f);
    r = fmaf(r, s, -0.249996200f);
    r = fmaf(t, f, r);
    r = fmaf(r, f, 0.333331972f);
    r = fmaf(r, f, -0.5f);
    r = fmaf(r, s, f);
    return fmaf(float(e) * 1.1920929e-7f, 0.693147182f, r);
}";

const WARP_BEST: &str = "struct Best {
    float value;
    int64_t place;
};
// Of equals the first.
__device__ __forceinline__ void take(Best& best, float value, int64_t place) {
    if (value > best.value || (value == best.value && place < best.place)) best = {value, place};
}
__device__ __forceinline__ Best warp_best(Best best) {
    for (int d = 16; d > 0; d >>= 1) {
        const float value = __shfl_xor_sync(0xffffffffu, best.value, d);
        const int64_t place = __shfl_xor_sync(0xffffffffu, best.place, d);
        take(best, value, place);
    }
    return best;
}";

const BLOCK_BEST: &str = "template <int threads>
__device__ __forceinline__ Best block_best(Best best) {
    __shared__ float values[threads / 32];
    __shared__ int64_t places[threads / 32];
    best = warp_best(best);
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        values[threadIdx.x / 32] = best.value;
        places[threadIdx.x / 32] = best.place;
    }
    __syncthreads();
    const int warp = threadIdx.x % (threads / 32);
    return warp_best({values[warp], places[warp]});
}";
