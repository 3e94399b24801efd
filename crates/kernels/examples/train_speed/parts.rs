//! How long each kernel of a layer takes by itself.

use std::error::Error;
use std::io::Write;
use std::time::Instant;

use warpsmith_kernels::training::{
    AdamW, Adding, Attended, AttendedBack, PARTS, Parameters, Scored, Shape, Stretches, Turning,
    Wanted, turns,
};
use warpsmith_kernels::{Gpu, GpuError, Sum, bf16};

/// Of low-rank matrices.
const RANK: usize = 32;

pub(crate) fn measure(
    out: &mut impl Write,
    shape: &Shape,
    (sequences, length): (usize, usize),
    repeats: usize,
) -> Result<(), Box<dyn Error>> {
    let gpu = Gpu::open(0)?;
    let rows = sequences * length;
    let (hidden, wide) = (shape.hidden, shape.feed_forward);
    let (width, queries) = (shape.qkv_width(), shape.query_width());
    let mut time = |name: &str,
                    work: f64,
                    run: &mut dyn FnMut() -> Result<(), GpuError>|
     -> Result<(), Box<dyn Error>> {
        run()?;
        gpu.wait()?;
        let start = Instant::now();
        for _ in 0..repeats {
            run()?;
        }
        gpu.wait()?;
        let each = start.elapsed().as_secs_f64() / repeats as f64;
        let rate = work / each / 1e12;
        Ok(writeln!(
            out,
            "| {hidden} | {rows} | {name} | {:.1} us | {rate:.2} |",
            each * 1e6
        )?)
    };

    // Numbers of a size that training has, and no two neighbours alike: what does not change takes less power. Nobody reads
    // results.
    let some = |count: usize| {
        let one = |place: usize| bf16::from_f32((place * 7919 % 997) as f32 / 4985.0 - 0.1);
        gpu.upload(&(0..count).map(one).collect::<Vec<_>>())
    };
    let (mut narrow, mut other) = (some(rows * hidden)?, some(rows * hidden)?);
    let (residual, mut added) = (
        gpu.upload(&vec![0.5f32; rows * hidden])?,
        gpu.zeros::<f32>(rows * hidden)?,
    );
    let weight = gpu.upload(&vec![1.0f32; hidden])?;
    let row_bytes = (rows * hidden) as f64;
    time("add and norm, TB/s", row_bytes * 12.0, &mut || {
        gpu.training_add_norm(
            &mut narrow,
            Some(&mut added),
            &residual,
            Some(&other),
            &weight.as_view(),
            rows,
            1e-5,
        )
    })?;
    let mut norm_parts = gpu.zeros::<f32>(PARTS * hidden)?;
    time("norm back, TB/s", row_bytes * 18.0, &mut || {
        let slopes = (&mut added, Adding::OnTop);
        gpu.training_norm_back(
            &mut narrow,
            slopes,
            &mut other,
            &mut norm_parts.as_view_mut(),
            &residual,
            &weight.as_view(),
            rows,
            1e-5,
        )
    })?;
    let (mut both, mut gated) = (some(2 * rows * wide)?, some(rows * wide)?);
    time("gate, TB/s", (rows * wide) as f64 * 6.0, &mut || {
        gpu.swiglu(&mut gated, &both, (rows, wide))
    })?;
    time("gate back, TB/s", (rows * wide) as f64 * 12.0, &mut || {
        gpu.training_swiglu_back(&mut both, &mut gated, (rows, wide))
    })?;

    let mut qkv = some(rows * width)?;
    let positions: Vec<u32> = (0..rows).map(|row| (row % length) as u32).collect();
    let (positions, turns) = (
        gpu.upload(&positions)?,
        gpu.upload(&turns(&shape.frequencies, length))?,
    );
    let turning = Turning {
        bias: None,
        norms: None,
        turns: &turns,
        positions: &positions,
    };
    let turned = (rows * (shape.heads + shape.kv_heads) * shape.head_dim) as f64 * 4.0;
    time("turn, TB/s", turned, &mut || {
        gpu.training_turn(&mut qkv, None, &turning, shape, rows)
    })?;
    let mut slopes = some(rows * width)?;
    time("turn back, TB/s", turned, &mut || {
        gpu.training_turn_back(&mut slopes, None, &turning, shape, rows)
    })?;

    let (mut attended, attended_slopes) = (some(rows * queries)?, some(rows * queries)?);
    let (mut log_totals, mut agreements) = (
        gpu.zeros::<f32>(rows * shape.heads)?,
        gpu.zeros::<f32>(rows * shape.heads)?,
    );
    // One product over the half that is seen.
    let product = (rows * queries * length) as f64;
    for kind in gpu.attentions()? {
        let mut stretches = Stretches::new(&gpu, kind, rows, shape.head_dim)?;
        stretches.load(&gpu, &vec![length; sequences])?;
        let name = format!("attention by {kind:?}, Tflop/s");
        time(&name, 2.0 * product, &mut || {
            let mut layer = Attended {
                out: &mut attended,
                log_totals: &mut log_totals,
                qkv: &qkv,
                stretches: &stretches,
            };
            gpu.packed_attention(&mut layer, shape, rows)
        })?;
        let name = format!("back, by {kind:?}, Tflop/s (of 5 products, 7 are made)");
        time(&name, 5.0 * product, &mut || {
            let mut layer = AttendedBack {
                slopes: &mut slopes,
                agreements: &mut agreements,
                out_slopes: &attended_slopes,
                out: &attended,
                log_totals: &log_totals,
                qkv: &qkv,
                stretches: &stretches,
            };
            gpu.packed_attention_back(&mut layer, shape, rows)
        })?;
    }

    for (name, inputs, outputs, parts) in [
        ("qkv", hidden, width, 3),
        ("attention output", queries, hidden, 1),
        ("gate and up", hidden, 2 * wide, 2),
        ("down", wide, hidden, 1),
    ] {
        let (x, matrix, mut y) = (
            some(rows * inputs)?,
            some(inputs * outputs)?,
            some(rows * outputs)?,
        );
        let mut x_slopes = some(rows * inputs)?;
        let mut gradient = gpu.zeros::<f32>(inputs * outputs)?;
        let flops = 2.0 * (rows * inputs * outputs) as f64;
        time(&format!("{name}, Tflop/s"), flops, &mut || {
            gpu.linear(&mut y, &x, &matrix, (rows, inputs))
        })?;
        time(
            &format!("{name} back to inputs, Tflop/s"),
            flops,
            &mut || gpu.linear_back_to_inputs(&mut x_slopes, &y, &matrix, (rows, inputs)),
        )?;
        time(
            &format!("{name} back to weights, Tflop/s"),
            flops,
            &mut || {
                gpu.linear_back_to_weights((&mut gradient, Adding::Anew), &y, &x, (rows, inputs))
            },
        )?;
        // The same with low-rank matrices beside it.
        let inner = RANK * parts;
        let (a, b, mut between) = (
            some(inner * inputs)?,
            some(outputs * inner)?,
            some(rows * inner)?,
        );
        let (mut a_slopes, mut b_slopes) = (
            gpu.zeros::<f32>(inner * inputs)?,
            gpu.zeros::<f32>(outputs * inner)?,
        );
        let (reading, writing) = ((2 * rows * inputs) as f64, (2 * rows * outputs) as f64);
        let mut beside = |what: &str, bytes: f64, run: &mut dyn FnMut() -> Result<(), GpuError>| {
            time(&format!("{name}, low rank, {what}, TB/s"), bytes, run)
        };
        beside("by A", reading, &mut || {
            gpu.linear(&mut between, &x, &a, (rows, inputs))
        })?;
        beside("by B", writing, &mut || {
            gpu.linear(&mut y, &between, &b, (rows, inner))
        })?;
        beside("whole on top", writing, &mut || {
            gpu.linear_sum(&mut y, &x, &matrix, (rows, inputs), Sum::ON_TOP)
        })?;
        beside("back by B", writing, &mut || {
            gpu.linear_back_to_inputs(&mut between, &y, &b, (rows, inner))
        })?;
        beside("back by A", reading, &mut || {
            gpu.linear_back_to_inputs(&mut x_slopes, &between, &a, (rows, inputs))
        })?;
        beside("whole back on top", reading, &mut || {
            let sizes = (rows, inputs);
            gpu.linear_back_to_inputs_sum(&mut x_slopes, &y, &matrix, sizes, Sum::ON_TOP)
        })?;
        beside("back to B", writing, &mut || {
            let to = (&mut b_slopes, Adding::Anew);
            gpu.linear_back_to_weights(to, &y, &between, (rows, inner))
        })?;
        beside("back to A", reading, &mut || {
            let to = (&mut a_slopes, Adding::Anew);
            gpu.linear_back_to_weights(to, &between, &x, (rows, inputs))
        })?;
    }

    let (chunk, vocabulary) = (2048, shape.vocabulary);
    let (x, matrix) = (some(chunk * hidden)?, some(vocabulary * hidden)?);
    let (mut logits, mut logit_slopes) = (
        gpu.zeros::<f32>(chunk * vocabulary)?,
        some(chunk * vocabulary)?,
    );
    let mut x_slopes = some(chunk * hidden)?;
    let mut gradient = gpu.zeros::<f32>(vocabulary * hidden)?;
    let flops = 2.0 * (chunk * vocabulary * hidden) as f64;
    time("2048 rows of logits, Tflop/s", flops, &mut || {
        gpu.linear(&mut logits, &x, &matrix, (chunk, hidden))
    })?;
    time("back to rows, Tflop/s", flops, &mut || {
        gpu.linear_back_to_inputs(&mut x_slopes, &logit_slopes, &matrix, (chunk, hidden))
    })?;
    time("back to the head, Tflop/s", flops, &mut || {
        gpu.linear_back_to_weights(
            (&mut gradient, Adding::OnTop),
            &logit_slopes,
            &x,
            (chunk, hidden),
        )
    })?;
    let targets = gpu.zeros::<u32>(chunk)?;
    let wanted = gpu.upload(&vec![
        Wanted {
            logprob: -1e-4,
            entropy: 0.0
        };
        chunk
    ])?;
    let (mut logprobs, mut entropies) = (gpu.zeros::<f32>(chunk)?, gpu.zeros::<f32>(chunk)?);
    time(
        "2048 rows scored, TB/s",
        (chunk * vocabulary) as f64 * 10.0,
        &mut || {
            let mut scored = Scored {
                logprobs: logprobs.as_view_mut(),
                entropies: entropies.as_view_mut(),
                logits: &logits,
                targets: targets.as_view(),
                vocabulary,
            };
            gpu.training_score(&mut scored, Some((&mut logit_slopes, wanted.as_view())))
        },
    )?;

    let all = 134_515_008;
    let mut parameters = Parameters::new(&gpu, &vec![0.1; all], 0)?;
    let settings = AdamW {
        rate: 1e-3,
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.01,
        longest: 1.0,
        step: 1,
    };
    gpu.set_adamw(&mut parameters, settings)?;
    time("update, TB/s", all as f64 * 34.0, &mut || {
        gpu.training_update(&mut parameters)
    })
}
