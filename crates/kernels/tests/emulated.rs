//! Kernels that run on a processor, thread by thread, against their twins: what a compiler and a machine without a GPU can tell.
//!
//! `emulated/` has what stands in for a device: headers in the place of those with its instructions. How kernels share out work,
//! where they look for it and what they wait for is their own.

#![expect(clippy::unwrap_used, reason = "a failure here is the answer")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use warpsmith_kernels::bf16;
use warpsmith_kernels::training::{Attention, Stretch};
use warpsmith_kernels::twin::training::{self as twin, Heads};

const KINDS: [Attention; 2] = [Attention::Warps, Attention::WarpGroups];

/// Compiles the kernels of a kind for heads of a size, without the text `left_out`.
fn compile(kind: Attention, head_dim: usize, folder: &Path, left_out: Option<&str>) -> PathBuf {
    fs::create_dir_all(folder).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (name, prefix) = match kind {
        Attention::Warps => ("packed_attention", "packed"),
        Attention::WarpGroups => ("hopper_attention", "hopper"),
    };
    let source = format!("{name}.cu");
    // A kernel's headers are looked for beside it first.
    for file in [source.as_str(), "packed_attention.cuh"] {
        fs::copy(root.join("cuda").join(file), folder.join(file)).unwrap();
    }
    for file in [
        "common.cuh",
        "tensor.cuh",
        "warpgroups.cuh",
        "attention.cpp",
    ] {
        fs::copy(root.join("tests/emulated").join(file), folder.join(file)).unwrap();
    }
    if let Some(left_out) = left_out {
        let text = fs::read_to_string(folder.join(&source)).unwrap();
        assert!(text.contains(left_out));
        fs::write(folder.join(&source), text.replace(left_out, "")).unwrap();
    }
    let program = folder.join("attention");
    let kernel = |name: &str| format!("{prefix}_{name}_{head_dim}");
    let output = Command::new("c++")
        .args(["-std=c++20", "-O2", "-w", "-o"])
        .arg(&program)
        .arg(format!("-DKERNELS=\"{source}\""))
        .arg(format!("-DHEAD_DIM={head_dim}"))
        .arg(format!("-DFORWARD={}", kernel("forward")))
        .arg(format!("-DBACK_TO_QUERIES={}", kernel("back_to_queries")))
        .arg(format!("-DBACK_TO_KEYS={}", kernel("back_to_keys")))
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

/// The length of the difference over the length of what was wanted.
fn off(seen: &[f64], wanted: &[f64]) -> f64 {
    assert_eq!(seen.len(), wanted.len());
    let length = |all: &mut dyn Iterator<Item = f64>| all.map(|one| one * one).sum::<f64>().sqrt();
    let difference = length(&mut seen.iter().zip(wanted).map(|(one, two)| one - two));
    difference / length(&mut wanted.iter().copied())
}

/// What the program says of itself then.
const UNDER_WAY: i32 = 3;

/// Bfloat16 keeps eight bits, and shares of attention are rounded to it on the way.
const ROUNDED: f64 = 0.005;

/// How far outputs, totals and slopes are off. `None` where a block ended with something still on its way.
/// `hasty` four warps are ahead of others where they may be.
fn run(
    program: &Path,
    kind: Attention,
    of: Heads,
    lengths: &[usize],
    hasty: usize,
) -> Option<[f64; 3]> {
    let mut random = StdRng::seed_from_u64(14);
    let rows: usize = lengths.iter().sum();
    let (queries, width) = (of.queries * of.size, (of.queries + 2 * of.keys) * of.size);
    let qkv = numbers(&mut random, rows * width);
    let slopes = numbers(&mut random, rows * queries);
    let (wanted, wanted_totals) = twin::attention(&exact(&qkv), of, lengths);
    let wanted_slopes = twin::attention_back(&exact(&qkv), of, lengths, &exact(&slopes));

    let mut stretches = Stretch::cut(lengths, kind.rows(of.size));
    // One that has nothing to do.
    stretches.push(Stretch::default());
    let mut input: Vec<u8> = Vec::new();
    for one in &stretches {
        for number in [one.row, one.count, one.begin, one.end] {
            input.extend(number.to_le_bytes());
        }
    }
    input.extend(bytes(&qkv).chain(bytes(&slopes)));
    let mut child = Command::new(program)
        .args([of.queries, of.keys, rows, stretches.len(), hasty].map(|number| number.to_string()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&input).unwrap();
    let output = child.wait_with_output().unwrap();
    match output.status.code() {
        Some(0) => {}
        Some(UNDER_WAY) => return None,
        _ => panic!("{}", output.status),
    }
    let (seen, rest) = output.stdout.split_at(2 * rows * queries);
    let (seen_totals, seen_slopes) = rest.split_at(4 * rows * of.queries);
    let narrow = |bytes: &[u8]| -> Vec<f64> {
        let pairs = bytes.chunks_exact(2);
        pairs
            .map(|pair| bf16::from_le_bytes([pair[0], pair[1]]).to_f64())
            .collect()
    };
    let totals: Vec<f64> = seen_totals
        .chunks_exact(4)
        .map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]).into())
        .collect();
    Some([
        off(&narrow(seen), &wanted),
        off(&totals, &wanted_totals),
        off(&narrow(seen_slopes), &wanted_slopes),
    ])
}

fn agrees(found: Option<[f64; 3]>) -> bool {
    found.is_some_and(|[outputs, totals, slopes]| {
        outputs < ROUNDED && totals < 1e-5 && slopes < ROUNDED
    })
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()))
}

#[test]
fn packed_sequences_attend_to_themselves() {
    thread::scope(|scope| {
        for kind in KINDS {
            scope.spawn(move || {
                for (queries, keys, size) in [(3, 1, 64), (2, 2, 128)] {
                    let folder = folder(&format!("{kind:?}-{size}"));
                    let program = compile(kind, size, &folder, None);
                    let of = Heads {
                        queries,
                        keys,
                        size,
                    };
                    for lengths in [&[1][..], &[64], &[128, 1, 31], &[300, 77], &[65, 129, 40]] {
                        for hasty in 0..2 {
                            let found = run(&program, kind, of, lengths, hasty);
                            println!("{kind:?}, {size}, {lengths:?}, {hasty}: {found:?}");
                            assert!(agrees(found), "{kind:?}, {size}, {lengths:?}: {found:?}");
                        }
                    }
                    fs::remove_dir_all(&folder).unwrap();
                }
            });
        }
    });
}

/// What this would not find is not tested here.
#[test]
fn a_kernel_that_does_not_wait_is_found_out() {
    let of = Heads {
        queries: 1,
        keys: 1,
        size: 64,
    };
    for (number, left_out) in [
        "wait_for_groups<Later>();",
        "wait_for_lots<1>();",
        "turns.await_place(step);",
        "turns.await_tiles(step);",
    ]
    .into_iter()
    .enumerate()
    {
        let folder = folder(&format!("careless-{number}"));
        let kind = Attention::WarpGroups;
        let program = compile(kind, of.size, &folder, Some(left_out));
        let mut found = (0..2).map(|hasty| run(&program, kind, of, &[900], hasty));
        assert!(!found.all(agrees), "without `{left_out}`");
        fs::remove_dir_all(&folder).unwrap();
    }
}
