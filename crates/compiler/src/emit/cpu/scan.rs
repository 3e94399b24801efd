//! Scans: elements of a line one after another, lines side by side.

use super::lane_count;
use crate::emit::{KernelWriter, c_type};
use crate::index::{Index, linear};
use crate::plan::{ScanKernel, ScanOp};
use crate::scalar::ScalarType;

/// A statement that takes the next element in.
fn ran_over(how: ScanOp, into: &str, value: &str) -> String {
    match how {
        ScanOp::Sum => format!("{into} += {value};"),
        ScanOp::Product => format!("{into} *= {value};"),
        ScanOp::Max => format!("{into} = {into} < {value} ? {value} : {into};"),
        ScanOp::Min => format!("{into} = {value} < {into} ? {value} : {into};"),
        ScanOp::LogSum => format!(
            "{into} = {into} < {value} ? {value} + log1p(exp({into} - {value})) : {into} + log1p(exp({value} - {into}));"
        ),
    }
}

pub(crate) fn scan(writer: &mut KernelWriter<'_>, kernel: &ScanKernel) {
    let [before, length, after] = kernel.shape;
    let vars = [before, length, after].map(|extent| writer.plan.arena.var(extent));
    let at = vars.map(Index::from);
    let value = (kernel.value)(&mut writer.plan.arena, &at);
    let value = writer.plan.resolve(value, &[]);
    let place = linear(&kernel.shape, &at);
    let out = writer.buffer(kernel.out).to_owned();
    for (var, name) in vars.iter().zip(["row", "k", "i"]) {
        writer.name_variable(*var, name);
    }
    let start = match kernel.op {
        ScanOp::Sum => "0.0",
        ScanOp::Product => "1.0",
        ScanOp::Max | ScanOp::LogSum => "-INFINITY",
        ScanOp::Min => "INFINITY",
    };
    // In double: every element carries the rounding of all before it.
    let (running, kind) = match kernel.kind {
        ScalarType::Float => ("double", c_type(kernel.kind)),
        ScalarType::Int | ScalarType::Bool => ("int64_t", "int64_t"),
    };
    if after == 1 {
        writer.line("#pragma omp parallel for schedule(static)");
        writer.open(format!("for (int64_t row = 0; row < {before}; ++row) {{"));
        writer.line(format!("{running} running = {start};"));
        writer.open(format!("for (int64_t k = 0; k < {length}; ++k) {{"));
        writer.define(&[value], &[]);
        let (value, place) = (writer.operand(value), writer.index(&place));
        writer.line(ran_over(kernel.op, "running", &value));
        writer.line(format!("{out}[{place}] = {kind}(running);"));
        writer.close();
        writer.close();
        return;
    }
    let width = lane_count(writer, after);
    let blocks = (after + width - 1) / width;
    writer.line("#pragma omp parallel for schedule(static)");
    writer.open(format!(
        "for (int64_t block = 0; block < {}; ++block) {{",
        before * blocks
    ));
    if before > 1 {
        writer.line(format!("const int64_t row = block / {blocks};"));
    }
    writer.line(format!("const int64_t first = block % {blocks} * {width};"));
    writer.line(format!(
        "const int64_t last = first + {width} < {after} ? first + {width} : {after};"
    ));
    writer.line(format!("{running} running[{width}];"));
    writer.line(format!(
        "for (int64_t i = first; i < last; ++i) running[i - first] = {start};"
    ));
    writer.open(format!("for (int64_t k = 0; k < {length}; ++k) {{"));
    writer.line("#pragma omp simd");
    writer.open("for (int64_t i = first; i < last; ++i) {");
    writer.define(&[value], &[]);
    let (value, place) = (writer.operand(value), writer.index(&place));
    writer.line(ran_over(kernel.op, "running[i - first]", &value));
    writer.line(format!("{out}[{place}] = {kind}(running[i - first]);"));
    writer.close();
    writer.close();
    writer.close();
}
