//! Attention on a GPU: a block for a tile of queries goes through all tiles of keys. Four threads share a row.

use super::LaunchConfig;
use super::launch::blocks;
use crate::attention::AttentionKernel;
use crate::emit::attention::Places;
use crate::emit::{KernelWriter, float, integer};

/// Threads of a row, which are neighbours in a warp.
const SHARE: i64 = 4;
/// Of shared memory that needs no special request.
const MAX_SHARED_BYTES: i64 = 48 << 10;

/// Queries, and keys, of a tile: as many as fit. None where even few do not.
pub(crate) fn tile(depth: i64, width: i64) -> Option<i64> {
    tiles(depth, width).next()
}

/// All that fit, the largest first.
fn tiles(depth: i64, width: i64) -> impl Iterator<Item = i64> {
    let bytes = move |tile: i64| 4 * tile * (2 * depth + 1 + padded(width) + tile + 1);
    [32, 16, 8]
        .into_iter()
        .filter(move |tile| bytes(*tile) <= MAX_SHARED_BYTES)
}

fn padded(width: i64) -> i64 {
    (width + SHARE - 1) / SHARE * SHARE
}

pub(crate) fn attention(writer: &mut KernelWriter<'_>, kernel: &AttentionKernel) -> LaunchConfig {
    let AttentionKernel {
        batch,
        queries,
        keys,
        depth,
        width,
        ..
    } = *kernel;
    let fitting: Vec<i64> = tiles(depth, width).collect();
    let usual = fitting.first().copied().unwrap_or(8);
    let tile = writer
        .plan
        .knobs
        .choose("queries of a tile", usual, &fitting);
    let (threads, lanes) = (SHARE * tile, padded(width));
    let (own, count) = (tile / SHARE, lanes / SHARE);
    let rows = (queries + tile - 1) / tile;
    let int = integer(writer.plan);
    for name in [
        "part", "top", "sum", "result", "weights", "score", "start", "last", "share",
    ] {
        writer.unique(name);
    }
    let places = Places::new(writer, kernel);
    writer.line(format!(
        "__shared__ float tile_q[{tile}][{depth}], tile_k[{tile}][{}], tile_v[{tile}][{lanes}], tile_w[{tile}][{}];",
        depth + 1,
        tile + 1
    ));
    writer.line(format!("const {int} item = blockIdx.x / {rows};"));
    writer.line(format!("const int first = blockIdx.x % {rows} * {tile};"));
    writer.line(format!(
        "const int r = threadIdx.x / {SHARE}, part = threadIdx.x % {SHARE};"
    ));
    writer.open(format!(
        "for (int i = threadIdx.x; i < {}; i += {threads}) {{",
        tile * depth
    ));
    writer.line(format!(
        "const int qi = first + i / {depth}, di = i % {depth};"
    ));
    writer.line(format!("tile_q[i / {depth}][di] = 0.0f;"));
    writer.open(format!("if (qi < {queries}) {{"));
    let scale = float(kernel.scale);
    places.fill(
        writer,
        &format!("tile_q[i / {depth}][di]"),
        (&kernel.query, [places.query, places.depth]),
        Some(&scale),
    );
    writer.close();
    writer.close();
    writer.line("float top = -INFINITY, sum = 0.0f;");
    writer.line(format!("float tile_o[{count}] = {{}};"));
    let last = if kernel.causal {
        format!("first + {tile} < {keys} ? first + {tile} : {keys}")
    } else {
        keys.to_string()
    };
    writer.line(format!("const int last = {last};"));
    writer.open(format!(
        "for (int start = 0; start < last; start += {tile}) {{"
    ));
    writer.line("__syncthreads();");
    for (to, body, var, extent, stride) in [
        ("tile_k", &kernel.key, places.depth, depth, depth),
        ("tile_v", &kernel.value, places.width, width, lanes),
    ] {
        writer.open(format!(
            "for (int i = threadIdx.x; i < {}; i += {threads}) {{",
            tile * stride
        ));
        writer.line(format!(
            "const int ki = start + i / {stride}, di = i % {stride};"
        ));
        writer.line(format!("{to}[i / {stride}][di] = 0.0f;"));
        let beside = if extent < stride {
            format!(" && di < {extent}")
        } else {
            String::new()
        };
        writer.open(format!("if (ki < {keys}{beside}) {{"));
        places.fill(
            writer,
            &format!("{to}[i / {stride}][di]"),
            (body, [places.key, var]),
            None,
        );
        writer.close();
        writer.close();
    }
    writer.line("__syncthreads();");
    writer.line(format!("float score[{own}] = {{}};"));
    writer.open(format!("for (int di = 0; di < {depth}; ++di) {{"));
    writer.line("const float x = tile_q[r][di];");
    writer.line("#pragma unroll");
    writer.line(format!(
        "for (int j = 0; j < {own}; ++j) score[j] += x * tile_k[part + {SHARE} * j][di];"
    ));
    writer.close();
    writer.line("float best = top, more = 0.0f;");
    writer.line("#pragma unroll");
    writer.open(format!("for (int j = 0; j < {own}; ++j) {{"));
    writer.line(format!(
        "const int qi = first + r, ki = start + part + {SHARE} * j;"
    ));
    let seen = if kernel.causal { " && ki <= qi" } else { "" };
    writer.open(format!("if (qi < {queries} && ki < {keys}{seen}) {{"));
    places.mask(writer, kernel, "score[j]");
    writer.close();
    writer.line("else score[j] = -INFINITY;");
    writer.line("best = fmaxf(best, score[j]);");
    writer.close();
    writer.line("for (int di = 1; di < 4; di <<= 1) best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, di));");
    writer.line("#pragma unroll");
    writer.open(format!("for (int j = 0; j < {own}; ++j) {{"));
    writer.line("const float e = score[j] == -INFINITY ? 0.0f : expf(score[j] - best);");
    writer.line(format!("tile_w[r][part + {SHARE} * j] = e;"));
    writer.line("more += e;");
    writer.close();
    writer.line("const float before = top == -INFINITY ? 0.0f : expf(top - best);");
    writer.line("sum = sum * before + more;");
    writer.line("top = best;");
    writer.line("__syncthreads();");
    writer.line("#pragma unroll");
    writer.line(format!(
        "for (int j = 0; j < {count}; ++j) tile_o[j] *= before;"
    ));
    writer.open(format!("for (int c = 0; c < {tile}; ++c) {{"));
    writer.line("const float x = tile_w[r][c];");
    writer.line("#pragma unroll");
    writer.line(format!(
        "for (int j = 0; j < {count}; ++j) tile_o[j] += x * tile_v[c][part + {SHARE} * j];"
    ));
    writer.close();
    writer.close();
    writer.line("for (int di = 1; di < 4; di <<= 1) sum += __shfl_xor_sync(0xffffffffu, sum, di);");
    // Who sees nothing gets nothing, as in PyTorch.
    writer.line("const float share = sum > 0.0f ? 1.0f / sum : 0.0f;");
    writer.line(format!("if (first + r >= {queries}) return;"));
    let out = writer.buffer(kernel.out).to_owned();
    writer.open(format!("for (int j = 0; j < {count}; ++j) {{"));
    writer.line(format!("const int di = part + {SHARE} * j;"));
    writer.line(format!(
        "if (di < {width}) {out}[(item * {queries} + first + r) * {width} + di] = tile_o[j] * share;"
    ));
    writer.close();
    LaunchConfig {
        blocks: blocks(&[batch, rows], 1),
        threads: threads.to_string(),
        max_threads: threads,
    }
}
