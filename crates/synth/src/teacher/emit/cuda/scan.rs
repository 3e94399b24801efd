//! Running sums and products.

use super::{Launch, THREADS, integer, thread_number};
use crate::teacher::emit::Writer;
use crate::teacher::index::{Index, linear};
use crate::teacher::plan::{Scan, Scanning, Strategy};

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
