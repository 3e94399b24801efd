//! How long each kernel of a layer takes by itself.

use std::error::Error;
use std::io::Write;
use std::time::Instant;

use warpsmith_kernels::training::gpu::{
    CrossEntropyRows, DeviceParameters, FlashAttnBwd, FlashAttnFwd, PARTIALS, RopeTables,
    ScoreGrad, SequenceBlocks, cos_sin_table,
};
use warpsmith_kernels::training::{AdamW, AdamWStep, ModelShape};
use warpsmith_kernels::{GemmWrite, Gpu, GpuError, WriteMode, bf16};

/// Of LoRA.
const RANK: usize = 32;

pub(crate) fn measure(
    out: &mut impl Write,
    shape: &ModelShape,
    (sequences, length): (usize, usize),
    repeats: usize,
) -> Result<(), Box<dyn Error>> {
    let gpu = Gpu::open(0)?;
    let rows = sequences * length;
    let (hidden, feed_forward) = (shape.hidden, shape.feed_forward);
    let (width, queries) = (shape.qkv_width(), shape.query_width());
    let mut time = |name: &str,
                    work: f64,
                    run: &mut dyn FnMut() -> Result<(), GpuError>|
     -> Result<(), Box<dyn Error>> {
        run()?;
        gpu.synchronize()?;
        let start = Instant::now();
        for _ in 0..repeats {
            run()?;
        }
        gpu.synchronize()?;
        let each = start.elapsed().as_secs_f64() / repeats as f64;
        let rate = work / each / 1e12;
        Ok(writeln!(
            out,
            "| {hidden} | {rows} | {name} | {:.1} us | {rate:.2} |",
            each * 1e6
        )?)
    };

    // Values of a size that training has, and no two neighbours alike: constant data takes less power. The results are not read.
    let some = |count: usize| {
        let one = |place: usize| bf16::from_f32((place * 7919 % 997) as f32 / 4985.0 - 0.1);
        gpu.upload(&(0..count).map(one).collect::<Vec<_>>())
    };
    let (mut normed, mut other) = (some(rows * hidden)?, some(rows * hidden)?);
    let (residual, mut added) = (
        gpu.upload(&vec![0.5f32; rows * hidden])?,
        gpu.zeros::<f32>(rows * hidden)?,
    );
    let weight = gpu.upload(&vec![1.0f32; hidden])?;
    let row_bytes = (rows * hidden) as f64;
    time(
        "RMS norm with residual, TB/s",
        row_bytes * 12.0,
        &mut || {
            gpu.rms_norm_residual_fwd(
                &mut normed,
                Some(&mut added),
                &residual,
                Some(&other),
                &weight.as_view(),
                rows,
                1e-5,
            )
        },
    )?;
    let mut norm_partials = gpu.zeros::<f32>(PARTIALS * hidden)?;
    time("RMS norm backward, TB/s", row_bytes * 18.0, &mut || {
        let d_residual = (&mut added, WriteMode::Accumulate);
        gpu.rms_norm_residual_bwd(
            &mut normed,
            d_residual,
            &mut other,
            &mut norm_partials.as_view_mut(),
            &residual,
            &weight.as_view(),
            rows,
            1e-5,
        )
    })?;
    let (mut gate_up, mut hidden_out) =
        (some(2 * rows * feed_forward)?, some(rows * feed_forward)?);
    time(
        "SwiGLU, TB/s",
        (rows * feed_forward) as f64 * 6.0,
        &mut || gpu.swiglu_fwd(&mut hidden_out, &gate_up, (rows, feed_forward)),
    )?;
    time(
        "SwiGLU backward, TB/s",
        (rows * feed_forward) as f64 * 12.0,
        &mut || gpu.swiglu_bwd(&mut gate_up, &mut hidden_out, (rows, feed_forward)),
    )?;

    let mut qkv = some(rows * width)?;
    let positions: Vec<u32> = (0..rows).map(|row| (row % length) as u32).collect();
    let (positions, cos_sin) = (
        gpu.upload(&positions)?,
        gpu.upload(&cos_sin_table(&shape.rope_frequencies, length))?,
    );
    let tables = RopeTables {
        bias: None,
        head_norms: None,
        cos_sin: &cos_sin,
        positions: &positions,
    };
    let rope_bytes = (rows * (shape.heads + shape.kv_heads) * shape.head_dim) as f64 * 4.0;
    time("RoPE, TB/s", rope_bytes, &mut || {
        gpu.rope_qk_fwd(&mut qkv, None, &tables, shape, rows)
    })?;
    let mut d_qkv = some(rows * width)?;
    time("RoPE backward, TB/s", rope_bytes, &mut || {
        gpu.rope_qk_bwd(&mut d_qkv, None, &tables, shape, rows)
    })?;

    let (mut attn_out, d_attn_out) = (some(rows * queries)?, some(rows * queries)?);
    let (mut lse, mut delta) = (
        gpu.zeros::<f32>(rows * shape.heads)?,
        gpu.zeros::<f32>(rows * shape.heads)?,
    );
    // One product over the half that is not masked.
    let product = (rows * queries * length) as f64;
    for kind in gpu.flash_attn_kinds()? {
        let mut blocks = SequenceBlocks::new(&gpu, kind, rows, shape.head_dim)?;
        blocks.load(&gpu, &vec![length; sequences])?;
        let name = format!("attention by {kind:?}, Tflop/s");
        time(&name, 2.0 * product, &mut || {
            let mut layer = FlashAttnFwd {
                out: &mut attn_out,
                lse: &mut lse,
                qkv: &qkv,
                blocks: &blocks,
            };
            gpu.flash_attn_varlen_fwd(&mut layer, shape, rows)
        })?;
        let name =
            format!("attention backward by {kind:?}, Tflop/s (5 products count, 7 are computed)");
        time(&name, 5.0 * product, &mut || {
            let mut layer = FlashAttnBwd {
                d_qkv: &mut d_qkv,
                delta: &mut delta,
                d_out: &d_attn_out,
                out: &attn_out,
                lse: &lse,
                qkv: &qkv,
                blocks: &blocks,
            };
            gpu.flash_attn_varlen_bwd(&mut layer, shape, rows)
        })?;
    }

    for (name, inputs, outputs, projections) in [
        ("qkv", hidden, width, 3),
        ("attention output", queries, hidden, 1),
        ("gate and up", hidden, 2 * feed_forward, 2),
        ("down", feed_forward, hidden, 1),
    ] {
        let (x, matrix, mut y) = (
            some(rows * inputs)?,
            some(inputs * outputs)?,
            some(rows * outputs)?,
        );
        let mut d_x = some(rows * inputs)?;
        let mut grad = gpu.zeros::<f32>(inputs * outputs)?;
        let flops = 2.0 * (rows * inputs * outputs) as f64;
        time(&format!("{name}, Tflop/s"), flops, &mut || {
            gpu.linear(&mut y, &x, &matrix, (rows, inputs))
        })?;
        time(
            &format!("{name}, input gradient, Tflop/s"),
            flops,
            &mut || gpu.linear_bwd_input(&mut d_x, &y, &matrix, (rows, inputs)),
        )?;
        time(
            &format!("{name}, weight gradient, Tflop/s"),
            flops,
            &mut || {
                gpu.linear_bwd_weight((&mut grad, WriteMode::Overwrite), &y, &x, (rows, inputs))
            },
        )?;
        // The same with LoRA.
        let inner = RANK * projections;
        let (a, b, mut inner_rows) = (
            some(inner * inputs)?,
            some(outputs * inner)?,
            some(rows * inner)?,
        );
        let (mut d_a, mut d_b) = (
            gpu.zeros::<f32>(inner * inputs)?,
            gpu.zeros::<f32>(outputs * inner)?,
        );
        let (reading, writing) = ((2 * rows * inputs) as f64, (2 * rows * outputs) as f64);
        let mut time_lora =
            |what: &str, bytes: f64, run: &mut dyn FnMut() -> Result<(), GpuError>| {
                time(&format!("{name}, LoRA, {what}, TB/s"), bytes, run)
            };
        time_lora("by A", reading, &mut || {
            gpu.linear(&mut inner_rows, &x, &a, (rows, inputs))
        })?;
        time_lora("by B", writing, &mut || {
            gpu.linear(&mut y, &inner_rows, &b, (rows, inner))
        })?;
        time_lora("base accumulated", writing, &mut || {
            gpu.linear_with(&mut y, &x, &matrix, (rows, inputs), GemmWrite::ACCUMULATE)
        })?;
        time_lora("input gradient by B", writing, &mut || {
            gpu.linear_bwd_input(&mut inner_rows, &y, &b, (rows, inner))
        })?;
        time_lora("input gradient by A", reading, &mut || {
            gpu.linear_bwd_input(&mut d_x, &inner_rows, &a, (rows, inputs))
        })?;
        time_lora("base input gradient accumulated", reading, &mut || {
            let sizes = (rows, inputs);
            gpu.linear_bwd_input_with(&mut d_x, &y, &matrix, sizes, GemmWrite::ACCUMULATE)
        })?;
        time_lora("gradient of B", writing, &mut || {
            let to = (&mut d_b, WriteMode::Overwrite);
            gpu.linear_bwd_weight(to, &y, &inner_rows, (rows, inner))
        })?;
        time_lora("gradient of A", reading, &mut || {
            let to = (&mut d_a, WriteMode::Overwrite);
            gpu.linear_bwd_weight(to, &inner_rows, &x, (rows, inputs))
        })?;
    }

    let (chunk, vocabulary) = (2048, shape.vocabulary);
    let (x, matrix) = (some(chunk * hidden)?, some(vocabulary * hidden)?);
    let (mut logits, mut d_logits) = (
        gpu.zeros::<f32>(chunk * vocabulary)?,
        some(chunk * vocabulary)?,
    );
    let mut d_x = some(chunk * hidden)?;
    let mut grad = gpu.zeros::<f32>(vocabulary * hidden)?;
    let flops = 2.0 * (chunk * vocabulary * hidden) as f64;
    time("2048 rows of logits, Tflop/s", flops, &mut || {
        gpu.linear(&mut logits, &x, &matrix, (chunk, hidden))
    })?;
    time("gradient of hidden states, Tflop/s", flops, &mut || {
        gpu.linear_bwd_input(&mut d_x, &d_logits, &matrix, (chunk, hidden))
    })?;
    time("gradient of the LM head, Tflop/s", flops, &mut || {
        gpu.linear_bwd_weight(
            (&mut grad, WriteMode::Accumulate),
            &d_logits,
            &x,
            (chunk, hidden),
        )
    })?;
    let targets = gpu.zeros::<u32>(chunk)?;
    let upstream = gpu.upload(&vec![
        ScoreGrad {
            logprob: -1e-4,
            entropy: 0.0
        };
        chunk
    ])?;
    let (mut logprobs, mut entropies) = (gpu.zeros::<f32>(chunk)?, gpu.zeros::<f32>(chunk)?);
    time(
        "cross-entropy of 2048 rows, TB/s",
        (chunk * vocabulary) as f64 * 10.0,
        &mut || {
            let mut cross_entropy = CrossEntropyRows {
                logprobs: logprobs.as_view_mut(),
                entropies: entropies.as_view_mut(),
                logits: &logits,
                targets: targets.as_view(),
                vocabulary,
            };
            gpu.cross_entropy_fused(
                &mut cross_entropy,
                Some((&mut d_logits, upstream.as_view())),
            )
        },
    )?;

    let all = 134_515_008;
    let mut parameters = DeviceParameters::new(&gpu, &vec![0.1; all], 0)?;
    let step = AdamWStep {
        adamw: AdamW::default(),
        learning_rate: 1e-3,
        step: 1,
    };
    gpu.write_adamw_step(&mut parameters, step)?;
    time("AdamW, TB/s", all as f64 * 34.0, &mut || {
        gpu.adamw_fused(&mut parameters)
    })
}
