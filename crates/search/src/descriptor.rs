//! Which cell of the archive a candidate belongs to, by what was measured of it.

use std::path::Path;

use warpsmith_agent::FencedFiles;
use warpsmith_judge::profile::parse_ptxas;
use warpsmith_schema::{ArchiveCell, Precision, ReferenceBound, Target, Verdict};

use crate::candidate::passed_us;

const UNKNOWN: &str = "unknown";

/// The cell of a candidate that passed.
pub(crate) fn cell_of(
    files: &FencedFiles,
    verdict: &Verdict,
    reference: Option<&ReferenceBound>,
) -> ArchiveCell {
    let resources = (verdict.target == Target::Cuda)
        .then(|| resources(verdict))
        .flatten();
    let bucket = |value: Option<u32>, edges: &[u32]| match value {
        Some(value) => bucket(value, edges),
        None => UNKNOWN.to_owned(),
    };
    let floor = reference
        .map(|one| one.floor_us.0)
        .filter(|us| us.is_finite() && *us > 0.0);
    let distance = floor.zip(passed_us(verdict)).map(|(floor, us)| us / floor);
    let precision = verdict.matched_precision.map(|matched| matched.mode);
    ArchiveCell {
        roofline: distance.map_or(UNKNOWN, roofline).to_owned(),
        launches: bucket(Some(launches(files)), &[1, 2, 4, 8]),
        registers: bucket(resources.map(|(registers, _)| registers), &[32, 64, 128]),
        shared: bucket(
            resources.map(|(_, shared)| shared),
            &[0, 16 << 10, 48 << 10],
        ),
        precision: match precision {
            Some(Precision::Tf32) => "tf32",
            Some(Precision::Fp32) | None => "fp32",
        }
        .to_owned(),
    }
}

/// How far from the roofline, in words.
fn roofline(distance: f64) -> &'static str {
    match distance {
        _ if distance < 1.25 => "1-1.25x",
        _ if distance < 1.5 => "1.25-1.5x",
        _ if distance < 2.0 => "1.5-2x",
        _ if distance < 4.0 => "2-4x",
        _ if distance < 8.0 => "4-8x",
        _ if distance < 16.0 => "8-16x",
        _ => "16x+",
    }
}

/// The first edge that a value does not exceed: `0`, `3-4`, `129+`.
fn bucket(value: u32, edges: &[u32]) -> String {
    let mut low = 0;
    for &edge in edges {
        if value <= edge {
            return if low >= edge {
                edge.to_string()
            } else {
                format!("{low}-{edge}")
            };
        }
        low = edge + 1;
    }
    format!("{low}+")
}

/// Kernels, parallel regions and library calls that the source has, each counted once.
fn launches(files: &FencedFiles) -> u32 {
    const STARTS: [&str; 4] = [
        "<<<",
        "#pragma omp parallel",
        "warpsmith_gemm(",
        "warpsmith_conv(",
    ];
    let all = files.values().map(|text| {
        let of = |start: &&str| text.matches(*start).count();
        STARTS.iter().map(of).sum::<usize>()
    });
    all.sum::<usize>().max(1) as u32
}

/// Registers and static shared memory of the kernels that have most, as the compiler's log in the evidence has them.
fn resources(verdict: &Verdict) -> Option<(u32, u32)> {
    let folder = Path::new(verdict.evidence.as_ref()?);
    let log = fs_err::read_to_string(folder.join("compile.log")).ok()?;
    let kernels = parse_ptxas(&log);
    let registers = kernels.iter().map(|kernel| kernel.registers).max()?;
    let shared = kernels.iter().map(|kernel| kernel.shared_bytes).max()?;
    Some((registers, shared))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_meet_without_gaps() {
        let of = |value| bucket(value, &[1, 2, 4, 8]);
        assert_eq!(
            [1, 2, 3, 4, 5, 9].map(of),
            ["0-1", "2", "3-4", "3-4", "5-8", "9+"]
        );
        assert_eq!(
            [0, 1, 16 << 10].map(|value| bucket(value, &[0, 16 << 10])),
            ["0", "1-16384", "1-16384"]
        );
    }

    #[test]
    fn launches_are_counted_in_the_source() {
        let files = |text: &str| FencedFiles::from([("kernels/a.cu".to_owned(), text.to_owned())]);
        assert_eq!(
            launches(&files("a<<<1, 2>>>(); b<<<1, 2>>>(); warpsmith_gemm(x);")),
            3
        );
        assert_eq!(launches(&files("for (;;) {}")), 1);
    }
}
