//! Attention on a processor: for a tile of queries all tiles of keys, with the maximum and the sum of each row on the way.

use super::SimdFunction;
use crate::attention::AttentionKernel;
use crate::emit::attention::Places;
use crate::emit::{Helper, KernelWriter, float};

/// Queries and keys of a tile; queries that share a pass; numbers of a vector.
const QUERIES: i64 = 64;
const KEYS: i64 = 32;
const SHARED: i64 = 4;
const LANES: i64 = 16;

pub(crate) fn attention(writer: &mut KernelWriter<'_>, kernel: &AttentionKernel) {
    let AttentionKernel {
        batch,
        queries,
        keys,
        depth,
        width,
        ..
    } = *kernel;
    let q_tile = writer
        .plan
        .knobs
        .choose("queries of a tile", QUERIES, &[32, 128, 16]);
    let k_tile = writer.plan.knobs.choose("keys of a tile", KEYS, &[64, 128]);
    let shared = writer
        .plan
        .knobs
        .choose("queries of a pass", SHARED, &[8, 2]);
    let blocks = (queries + q_tile - 1) / q_tile;
    let lanes = (width + LANES - 1) / LANES * LANES;
    for name in [
        "rows", "columns", "tops", "sums", "weights", "result", "r", "end", "start",
    ] {
        writer.unique(name);
    }
    let places = Places::new(writer, kernel);
    let exp = SimdFunction::ExpNegative;
    writer.helpers.extend(exp.calls().map(Helper::Simd));
    writer.helpers.insert(Helper::Simd(exp));
    let exp = exp.name();
    writer.line(format!(
        "typedef float vector __attribute__((vector_size({}), aligned(4)));",
        4 * LANES
    ));
    writer.line("#pragma omp parallel for schedule(dynamic)");
    writer.open(format!(
        "for (int64_t block = 0; block < {}; ++block) {{",
        batch * blocks
    ));
    writer.line(format!(
        "const int64_t item = block / {blocks}, first = block % {blocks} * {q_tile};"
    ));
    writer.line(format!(
        "const int64_t rows = first + {q_tile} < {queries} ? {q_tile} : {queries} - first;"
    ));
    writer.line(format!(
        "static thread_local float tile_q[{q_tile}][{depth}], tile_k[{depth}][{k_tile}], tile_v[{k_tile}][{lanes}], tile_w[{q_tile}][{k_tile}], tile_o[{q_tile}][{lanes}];"
    ));
    writer.line(format!("float tops[{q_tile}], sums[{q_tile}];"));
    writer.open(format!("for (int64_t r = 0; r < {q_tile}; ++r) {{"));
    writer.line("const int64_t qi = first + r;");
    writer.line("tops[r] = -INFINITY;");
    writer.line("sums[r] = 0.0f;");
    writer.line(format!(
        "for (int64_t di = 0; di < {lanes}; ++di) tile_o[r][di] = 0.0f;"
    ));
    writer.line(format!(
        "for (int64_t di = 0; di < {depth} && r >= rows; ++di) tile_q[r][di] = 0.0f;"
    ));
    writer.open(format!(
        "for (int64_t di = 0; di < {depth} && r < rows; ++di) {{"
    ));
    let scale = float(kernel.scale);
    places.fill(
        writer,
        "tile_q[r][di]",
        (&kernel.query, [places.query, places.depth]),
        Some(&scale),
    );
    writer.close();
    writer.close();
    let end = if kernel.causal {
        format!("first + rows < {keys} ? first + rows : {keys}")
    } else {
        keys.to_string()
    };
    writer.line(format!("const int64_t end = {end};"));
    writer.open(format!(
        "for (int64_t start = 0; start < end; start += {k_tile}) {{"
    ));
    writer.line(format!(
        "const int64_t columns = start + {k_tile} < end ? {k_tile} : end - start;"
    ));
    // Beyond the last key whatever was there before is weighed with zero: it must be a number.
    writer.open(format!("if (columns < {k_tile}) {{"));
    writer.line(format!("for (int64_t di = 0; di < {depth}; ++di) for (int64_t c = columns; c < {k_tile}; ++c) tile_k[di][c] = 0.0f;"));
    writer.line(format!("for (int64_t c = columns; c < {k_tile}; ++c) for (int64_t di = 0; di < {lanes}; ++di) tile_v[c][di] = 0.0f;"));
    writer.close();
    writer.open("for (int64_t c = 0; c < columns; ++c) {");
    writer.line("const int64_t ki = start + c;");
    writer.open(format!("for (int64_t di = 0; di < {depth}; ++di) {{"));
    places.fill(
        writer,
        "tile_k[di][c]",
        (&kernel.key, [places.key, places.depth]),
        None,
    );
    writer.close();
    writer.open(format!("for (int64_t di = 0; di < {width}; ++di) {{"));
    places.fill(
        writer,
        "tile_v[c][di]",
        (&kernel.value, [places.key, places.width]),
        None,
    );
    writer.close();
    writer.close();
    writer.open(format!("for (int64_t r = 0; r < rows; r += {shared}) {{"));
    writer.line(format!("vector sum[{shared}][{}] = {{}};", k_tile / LANES));
    writer.open(format!("for (int64_t di = 0; di < {depth}; ++di) {{"));
    writer.line("const vector* line = reinterpret_cast<const vector*>(tile_k[di]);");
    product(
        writer,
        (shared, k_tile / LANES),
        "tile_q[r + s][di]",
        "line[v]",
    );
    writer.close();
    writer.line("__builtin_memcpy(tile_w[r], sum, sizeof(sum));");
    writer.close();
    writer.open("for (int64_t r = 0; r < rows; ++r) {");
    if kernel.mask.is_some() || kernel.causal {
        writer.open("for (int64_t c = 0; c < columns; ++c) {");
        writer.line("const int64_t qi = first + r, ki = start + c;");
        places.mask(writer, kernel, "tile_w[r][c]");
        if kernel.causal {
            writer.line("if (ki > qi) tile_w[r][c] = -INFINITY;");
        }
        writer.close();
    }
    writer.line(format!(
        "for (int64_t c = columns; c < {k_tile}; ++c) tile_w[r][c] = -INFINITY;"
    ));
    writer.line("float top = tops[r], more = 0.0f;");
    writer.line("#pragma omp simd reduction(max : top)");
    writer.line(format!(
        "for (int64_t c = 0; c < {k_tile}; ++c) top = top < tile_w[r][c] ? tile_w[r][c] : top;"
    ));
    // Nothing seen so far.
    writer.open("if (top == -INFINITY) {");
    writer.line(format!(
        "for (int64_t c = 0; c < {k_tile}; ++c) tile_w[r][c] = 0.0f;"
    ));
    writer.line("continue;");
    writer.close();
    writer.line("#pragma omp simd reduction(+ : more)");
    writer.open(format!("for (int64_t c = 0; c < {k_tile}; ++c) {{"));
    writer.line(format!("tile_w[r][c] = {exp}(tile_w[r][c] - top);"));
    writer.line("more += tile_w[r][c];");
    writer.close();
    writer.line(format!("const float before = {exp}(tops[r] - top);"));
    writer.line("tops[r] = top;");
    writer.line("sums[r] = sums[r] * before + more;");
    writer.line("#pragma omp simd");
    writer.line(format!(
        "for (int64_t di = 0; di < {lanes}; ++di) tile_o[r][di] *= before;"
    ));
    writer.close();
    writer.open(format!("for (int64_t r = 0; r < rows; r += {shared}) {{"));
    writer.open(format!(
        "for (int64_t di = 0; di < {lanes}; di += {LANES}) {{"
    ));
    writer.line(format!("vector sum[{shared}][1] = {{}};"));
    writer.open("for (int64_t c = 0; c < columns; ++c) {");
    writer.line("const vector line = *reinterpret_cast<const vector*>(&tile_v[c][di]);");
    product(writer, (shared, 1), "tile_w[r + s][c]", "line");
    writer.close();
    writer.line("#pragma GCC unroll 8");
    writer.line(format!("for (int s = 0; s < {shared}; ++s) *reinterpret_cast<vector*>(&tile_o[r + s][di]) += sum[s][0];"));
    writer.close();
    writer.close();
    writer.close();
    writer.open("for (int64_t r = 0; r < rows; ++r) {");
    // Who sees nothing gets nothing, as in PyTorch.
    writer.line("const float share = sums[r] > 0.0f ? 1.0f / sums[r] : 0.0f;");
    let out = writer.buffer(kernel.out).to_owned();
    writer.line(format!(
        "for (int64_t di = 0; di < {width}; ++di) {out}[(item * {queries} + first + r) * {width} + di] = tile_o[r][di] * share;"
    ));
    writer.close();
    writer.close();
}

/// Adds to `sum[s][v]` the product of a number for each query and a vector for each group of lanes.
fn product(
    writer: &mut KernelWriter<'_>,
    (shared, vectors): (i64, i64),
    number: &str,
    vector: &str,
) {
    writer.line("#pragma GCC unroll 8");
    writer.line(format!("for (int s = 0; s < {shared}; ++s)"));
    writer.line("#pragma GCC unroll 8");
    writer.line(format!(
        "    for (int v = 0; v < {vectors}; ++v) sum[s][v] += {number} * {vector};"
    ));
}
