//! The attention kernels of training, emulated on the CPU thread by thread, against the CPU backend. This needs only a C++ compiler.
//!
//! `emulated/` replaces the headers that have the device's instructions. How the kernels divide the work, what they read and what they
//! wait for is their own code.

#![expect(clippy::unwrap_used, reason = "a failure here is the answer")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use warpsmith_kernels::bf16;
use warpsmith_kernels::training::AttentionShape;
use warpsmith_kernels::training::cpu::{AttentionOutput, attention, attention_bwd};
use warpsmith_kernels::training::gpu::{FlashAttnKind, SequenceBlock};

const KINDS: [FlashAttnKind; 2] = [FlashAttnKind::Mma, FlashAttnKind::Wgmma];

/// Compiles the kernels of a kind for one head dimension, with the text `deleted` removed from the source.
fn compile(kind: FlashAttnKind, head_dim: usize, folder: &Path, deleted: Option<&str>) -> PathBuf {
    fs::create_dir_all(folder).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let name = match kind {
        FlashAttnKind::Mma => "flash_attn_varlen",
        FlashAttnKind::Wgmma => "flash_attn_varlen_sm90",
    };
    let source = format!("{name}.cu");
    // The compiler looks for headers beside the source first.
    for file in [source.as_str(), "flash_attn_varlen.cuh"] {
        fs::copy(root.join("cuda").join(file), folder.join(file)).unwrap();
    }
    for file in [
        "primitives.cuh",
        "tile_load.cuh",
        "wgmma.cuh",
        "attention.cpp",
    ] {
        fs::copy(root.join("tests/emulated").join(file), folder.join(file)).unwrap();
    }
    if let Some(deleted) = deleted {
        let text = fs::read_to_string(folder.join(&source)).unwrap();
        assert!(text.contains(deleted));
        fs::write(folder.join(&source), text.replace(deleted, "")).unwrap();
    }
    let program = folder.join("attention");
    let kernel = |pass: &str| format!("{name}_{pass}_{head_dim}");
    let output = Command::new("c++")
        .args(["-std=c++20", "-O2", "-w", "-o"])
        .arg(&program)
        .arg(format!("-DKERNELS=\"{source}\""))
        .arg(format!("-DHEAD_DIM={head_dim}"))
        .arg(format!("-DFWD={}", kernel("fwd")))
        .arg(format!("-DBWD_DQ={}", kernel("bwd_dq")))
        .arg(format!("-DBWD_DKV={}", kernel("bwd_dkv")))
        .arg(folder.join("attention.cpp"))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    program
}

fn numbers(random: &mut StdRng, count: usize) -> Vec<bf16> {
    let one = |_| bf16::from_f32(random.random_range(-1.5..1.5));
    (0..count).map(one).collect()
}

fn exact(from: &[bf16]) -> Vec<f64> {
    from.iter().map(|one| one.to_f64()).collect()
}

fn bytes(numbers: &[bf16]) -> impl Iterator<Item = u8> {
    numbers.iter().flat_map(|one| one.to_le_bytes())
}

/// The norm of the difference over the norm of what was expected.
fn relative_error(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let norm = |all: &mut dyn Iterator<Item = f64>| all.map(|one| one * one).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(expected).map(|(one, two)| one - two));
    difference / norm(&mut expected.iter().copied())
}

/// Exit status of the emulator where a block ended with something still in flight.
const IN_FLIGHT: i32 = 3;

/// bfloat16 has eight bits of precision, and probabilities are rounded to it on the way.
const ROUNDED: f64 = 0.005;

/// Relative errors of outputs, lse and gradients. `None` where a block ended with something still in flight. `fast_warpgroup` runs ahead
/// of the other wherever it may.
fn run(
    program: &Path,
    kind: FlashAttnKind,
    shape: AttentionShape,
    lengths: &[usize],
    fast_warpgroup: usize,
) -> Option<[f64; 3]> {
    let mut random = StdRng::seed_from_u64(14);
    let rows: usize = lengths.iter().sum();
    let (queries, width) = (shape.heads * shape.head_dim, shape.qkv_width());
    let qkv = numbers(&mut random, rows * width);
    let d_out = numbers(&mut random, rows * queries);
    let (out, lse) = attention(&exact(&qkv), shape, lengths);
    let forward = AttentionOutput {
        out: &out,
        lse: &lse,
    };
    let d_qkv = attention_bwd(&exact(&qkv), shape, lengths, &forward, &exact(&d_out));

    let mut blocks = SequenceBlock::split(lengths, kind.block_rows(shape.head_dim));
    // Padding.
    blocks.push(SequenceBlock::default());
    let mut input: Vec<u8> = Vec::new();
    for block in &blocks {
        for number in [block.row, block.count, block.begin, block.end] {
            input.extend(number.to_le_bytes());
        }
    }
    input.extend(bytes(&qkv).chain(bytes(&d_out)));
    let sizes = [
        shape.heads,
        shape.kv_heads,
        rows,
        blocks.len(),
        fast_warpgroup,
    ];
    let mut child = Command::new(program)
        .args(sizes.map(|number| number.to_string()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&input).unwrap();
    let output = child.wait_with_output().unwrap();
    match output.status.code() {
        Some(0) => {}
        Some(IN_FLIGHT) => return None,
        _ => panic!("{}", output.status),
    }
    let (found_out, rest) = output.stdout.split_at(2 * rows * queries);
    let (found_lse, found_d_qkv) = rest.split_at(4 * rows * shape.heads);
    let from_bf16 = |bytes: &[u8]| -> Vec<f64> {
        let pairs = bytes.chunks_exact(2);
        pairs
            .map(|pair| bf16::from_le_bytes([pair[0], pair[1]]).to_f64())
            .collect()
    };
    let found_lse: Vec<f64> = found_lse
        .chunks_exact(4)
        .map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]).into())
        .collect();
    Some([
        relative_error(&from_bf16(found_out), &out),
        relative_error(&found_lse, &lse),
        relative_error(&from_bf16(found_d_qkv), &d_qkv),
    ])
}

fn agrees(found: Option<[f64; 3]>) -> bool {
    found.is_some_and(|[out, lse, d_qkv]| out < ROUNDED && lse < 1e-5 && d_qkv < ROUNDED)
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()))
}

#[test]
fn packed_sequences_attend_to_themselves() {
    thread::scope(|scope| {
        for kind in KINDS {
            scope.spawn(move || {
                for (heads, kv_heads, head_dim) in [(3, 1, 64), (2, 2, 128)] {
                    let folder = folder(&format!("{kind:?}-{head_dim}"));
                    let program = compile(kind, head_dim, &folder, None);
                    let shape = AttentionShape {
                        heads,
                        kv_heads,
                        head_dim,
                    };
                    for lengths in [&[1][..], &[64], &[128, 1, 31], &[300, 77], &[65, 129, 40]] {
                        for fast in 0..2 {
                            let found = run(&program, kind, shape, lengths, fast);
                            let what = format!("{kind:?}, {head_dim}, {lengths:?}, {fast}");
                            assert!(agrees(found), "{what}: {found:?}");
                        }
                    }
                    fs::remove_dir_all(&folder).unwrap();
                }
            });
        }
    });
}

/// The emulator notices a missing wait: without that the test above would prove less.
#[test]
fn a_kernel_that_does_not_wait_is_found_out() {
    let shape = AttentionShape {
        heads: 1,
        kv_heads: 1,
        head_dim: 64,
    };
    for (number, deleted) in [
        "cp_async_wait<InFlight>();",
        "wgmma_wait<1>();",
        "pipeline.producer_acquire(step);",
        "pipeline.consumer_wait(step);",
    ]
    .into_iter()
    .enumerate()
    {
        let folder = folder(&format!("careless-{number}"));
        let kind = FlashAttnKind::Wgmma;
        let program = compile(kind, shape.head_dim, &folder, Some(deleted));
        let mut found = (0..2).map(|fast| run(&program, kind, shape, &[900], fast));
        assert!(!found.all(agrees), "without `{deleted}`");
        fs::remove_dir_all(&folder).unwrap();
    }
}
