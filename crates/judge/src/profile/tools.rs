//! NVIDIA's own tools on a solution: Nsight Compute's counters and compute-sanitizer. Both run the driver inside the
//! sandbox, so what they report passed through the candidate's hands; where one is missing or refused, the report says why.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use warpsmith_schema::Target;

use super::ProfileContext;
use super::report::{NcuKernel, SanitizerReport};
use super::solution::{SolutionJob, ToolWrapper, read_small};
use crate::JudgeError;

const NCU_LIMIT: Duration = Duration::from_mins(4);
const SANITIZER_LIMIT: Duration = Duration::from_mins(5);
const LOG_KEPT: usize = 16 << 10;

/// Nsight Compute's name of each counter, and ours.
const METRICS: [(&str, &str); 8] = [
    ("gpu__time_duration.sum", "duration_ns"),
    (
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        "dram_throughput_percent",
    ),
    (
        "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "sm_throughput_percent",
    ),
    (
        "sm__warps_active.avg.pct_of_peak_sustained_active",
        "achieved_occupancy_percent",
    ),
    ("lts__t_sector_hit_rate.pct", "l2_hit_percent"),
    ("dram__bytes_read.sum", "dram_bytes_read"),
    ("dram__bytes_write.sum", "dram_bytes_written"),
    ("launch__registers_per_thread", "registers"),
];
/// Why warps wait. `selected` and `not_selected` are left out: those warps could run.
const STALLS: [&str; 15] = [
    "barrier",
    "branch_resolving",
    "dispatch_stall",
    "drain",
    "imc_miss",
    "lg_throttle",
    "long_scoreboard",
    "math_pipe_throttle",
    "membar",
    "mio_throttle",
    "no_instruction",
    "short_scoreboard",
    "sleeping",
    "tex_throttle",
    "wait",
];
const STALL_HEAD: &str = "smsp__average_warps_issue_stalled_";
const STALL_TAIL: &str = "_per_issue_active.ratio";

type ToolOutcome<T> = (Option<T>, Option<String>);

fn unavailable<T>(why: impl Into<String>) -> ToolOutcome<T> {
    (None, Some(why.into()))
}

/// Counters by kernel, or why there are none.
pub(super) fn ncu(job: &SolutionJob<'_>) -> Result<ToolOutcome<Vec<NcuKernel>>, JudgeError> {
    if job.bench.request.target == Target::Cpu {
        return Ok(unavailable("Nsight Compute profiles CUDA kernels"));
    }
    let Some(program) = find("ncu", job.bench) else {
        return Ok(unavailable(
            "`ncu` (Nsight Compute) is not on the PATH or in the CUDA toolkit",
        ));
    };
    let plain: Vec<String> = METRICS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let stalls = STALLS
        .iter()
        .map(|reason| format!("{STALL_HEAD}{reason}{STALL_TAIL}"));
    let all: Vec<String> = plain.iter().cloned().chain(stalls).collect();
    let mut why = None;
    // Not every device has every reason to wait, and some versions refuse the whole list for one unknown name.
    for metrics in [all, plain] {
        match count(job, &program, &metrics.join(","))? {
            (Some(kernels), _) => return Ok((Some(kernels), None)),
            (None, refusal) => why = why.or(refusal),
        }
        if why.as_deref().is_some_and(|why| !why.contains("metric")) {
            break;
        }
    }
    Ok((None, why))
}

fn count(
    job: &SolutionJob<'_>,
    program: &Path,
    metrics: &str,
) -> Result<ToolOutcome<Vec<NcuKernel>>, JudgeError> {
    let out = tempfile::tempdir().map_err(JudgeError::io("make an output folder"))?;
    let log = out.path().join("ncu.csv");
    let mut arguments: Vec<OsString> = [
        "--csv",
        "--page",
        "raw",
        "--print-units",
        "base",
        "--clock-control",
        "none",
        "--profile-from-start",
        "off",
        "--launch-count",
        "64",
        "--metrics",
        metrics,
        "--log-file",
    ]
    .map(OsString::from)
    .to_vec();
    arguments.push(log.clone().into());
    let wrapper = ToolWrapper {
        program,
        arguments,
        environment: Vec::new(),
        read: folders(program, job.bench),
    };
    let output = job.run(Some(&wrapper), out.path(), true, NCU_LIMIT)?;
    let text = read_text(&log);
    let kernels = parse_ncu(&text);
    if kernels.is_empty() {
        let (stdout, stderr) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        let why = complaint(&format!("{text}\n{stdout}\n{stderr}"));
        return Ok(unavailable(why.unwrap_or_else(|| {
            format!("`ncu` gave no counters ({:?})", output.exit)
        })));
    }
    Ok((Some(kernels), None))
}

/// A tool's log; empty where it left none.
fn read_text(log: &Path) -> String {
    let bytes = read_small(log).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What went wrong by the tool's own account.
fn complaint(printed: &str) -> Option<String> {
    let lines: Vec<&str> = printed
        .lines()
        .filter(|line| line.starts_with("==ERROR=="))
        .collect();
    let permission = lines.iter().any(|line| line.contains("ERR_NVGPUCTRPERM"));
    let advice = "; as administrator load the driver with NVreg_RestrictProfilingToAdminUsers=0";
    (!lines.is_empty()).then(|| {
        format!(
            "{}{}",
            clip(&lines.join("\n"), 1000),
            if permission { advice } else { "" }
        )
    })
}

/// Memory errors first, then races between threads of a block.
pub(super) fn sanitizer(
    job: &SolutionJob<'_>,
) -> Result<ToolOutcome<Vec<SanitizerReport>>, JudgeError> {
    if !job.bench.request.sanitize {
        return Ok((None, None));
    }
    if job.bench.request.target == Target::Cpu {
        return Ok(unavailable("compute-sanitizer checks CUDA kernels"));
    }
    let Some(program) = find("compute-sanitizer", job.bench) else {
        return Ok(unavailable(
            "`compute-sanitizer` is not on the PATH or in the CUDA toolkit",
        ));
    };
    let mut reports = Vec::new();
    for tool in ["memcheck", "racecheck"] {
        let out = tempfile::tempdir().map_err(JudgeError::io("make an output folder"))?;
        let log = out.path().join("sanitizer.log");
        let mut arguments: Vec<OsString> = [
            "--tool",
            tool,
            "--report-api-errors",
            "no",
            "--print-limit",
            "50",
            "--log-file",
        ]
        .map(OsString::from)
        .to_vec();
        arguments.push(log.clone().into());
        let wrapper = ToolWrapper {
            program: &program,
            arguments,
            // Each tensor its own allocation: a step over the end of one is then seen.
            environment: vec![("PYTORCH_NO_CUDA_MEMORY_CACHING".into(), "1".into())],
            read: folders(&program, job.bench),
        };
        let output = job.run(Some(&wrapper), out.path(), true, SANITIZER_LIMIT)?;
        let mut text = read_text(&log);
        let errors = parse_sanitizer(&text);
        if errors.is_none() {
            let printed = String::from_utf8_lossy(&output.stderr);
            text = format!(
                "{text}ended without a summary ({:?})\n{printed}",
                output.exit
            );
        }
        reports.push(SanitizerReport {
            tool: tool.to_owned(),
            errors,
            log: clip(&text, LOG_KEPT),
        });
    }
    Ok((Some(reports), None))
}

/// The program by this name on the PATH, else in the toolkit.
pub(super) fn find(name: &str, bench: &ProfileContext<'_>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let toolkit = bench
        .toolchain
        .nvcc
        .iter()
        .map(|nvcc| nvcc.cuda_home.join("bin"));
    std::env::split_paths(&path)
        .chain(toolkit)
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}

/// What a tool reads: the toolkit, NVIDIA's own folder, and where the program itself lies.
pub(super) fn folders(program: &Path, bench: &ProfileContext<'_>) -> Vec<PathBuf> {
    let mut read = vec![PathBuf::from("/opt/nvidia")];
    read.extend(
        bench
            .toolchain
            .nvcc
            .iter()
            .map(|nvcc| nvcc.cuda_home.clone()),
    );
    read.extend(program.parent().map(PathBuf::from));
    read.extend(
        program
            .canonicalize()
            .ok()
            .and_then(|real| real.parent().map(PathBuf::from)),
    );
    read
}

/// Reads `ncu --csv`, a row per launch (`--page raw`) or a row per counter (the other pages), averaged by kernel.
fn parse_ncu(text: &str) -> Vec<NcuKernel> {
    let mut rows = text
        .lines()
        .filter(|line| line.starts_with('"'))
        .map(csv_row);
    let Some(header) = rows
        .by_ref()
        .find(|row| row.iter().any(|cell| cell == "Kernel Name"))
    else {
        return Vec::new();
    };
    let column = |name: &str| header.iter().position(|cell| cell == name);
    let (Some(name), Some(id)) = (column("Kernel Name"), column("ID")) else {
        return Vec::new();
    };
    let long = column("Metric Name").zip(column("Metric Value"));
    let mut sums: Vec<KernelSums> = Vec::new();
    // The row of units below the header has no ID.
    for row in rows.filter(|row| row.len() == header.len() && !row[id].is_empty()) {
        let place = sums
            .iter()
            .position(|kernel| kernel.name == row[name])
            .unwrap_or_else(|| {
                sums.push(KernelSums {
                    name: row[name].clone(),
                    ..KernelSums::default()
                });
                sums.len() - 1
            });
        let kernel = &mut sums[place];
        if !kernel.ids.contains(&row[id]) {
            kernel.ids.push(row[id].clone());
        }
        match long {
            Some((metric, value)) => kernel.add(&row[metric], &row[value]),
            None => header
                .iter()
                .zip(&row)
                .for_each(|(metric, value)| kernel.add(metric, value)),
        }
    }
    sums.into_iter()
        .map(KernelSums::finish)
        .filter(|kernel| !kernel.metrics.is_empty())
        .collect()
}

#[derive(Default)]
struct KernelSums {
    name: String,
    ids: Vec<String>,
    metrics: BTreeMap<String, (f64, u64)>,
    stalls: BTreeMap<String, f64>,
}

impl KernelSums {
    fn add(&mut self, metric: &str, value: &str) {
        let Ok(value) = value.replace(',', "").parse::<f64>() else {
            return;
        };
        if !value.is_finite() {
            return;
        }
        if let Some((_, ours)) = METRICS.iter().find(|(name, _)| *name == metric) {
            let (sum, count) = self.metrics.entry((*ours).to_owned()).or_default();
            *sum += value;
            *count += 1;
        }
        if let Some(reason) = metric
            .strip_prefix(STALL_HEAD)
            .and_then(|rest| rest.strip_suffix(STALL_TAIL))
        {
            *self.stalls.entry(reason.to_owned()).or_default() += value;
        }
    }

    fn finish(self) -> NcuKernel {
        let top = self
            .stalls
            .into_iter()
            .filter(|(_, value)| *value > 0.0)
            .max_by(|one, two| one.1.total_cmp(&two.1));
        NcuKernel {
            name: self.name,
            launches: self.ids.len() as u64,
            metrics: self
                .metrics
                .into_iter()
                .map(|(name, (sum, count))| (name, sum / count as f64))
                .collect(),
            top_stall: top.map(|(reason, _)| reason),
        }
    }
}

/// The cells of one line; quotes inside a quoted cell are doubled.
fn csv_row(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut quoted = false;
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match (letter, quoted) {
            ('"', true) if letters.peek() == Some(&'"') => {
                letters.next();
                cells
                    .iter_mut()
                    .last()
                    .into_iter()
                    .for_each(|cell| cell.push('"'));
            }
            ('"', _) => quoted = !quoted,
            (',', false) => cells.push(String::new()),
            _ => cells
                .iter_mut()
                .last()
                .into_iter()
                .for_each(|cell| cell.push(letter)),
        }
    }
    cells
}

/// The count in a tool's summary line.
fn parse_sanitizer(log: &str) -> Option<u64> {
    let summary = |line: &str| {
        let (_, rest) = line
            .split_once("ERROR SUMMARY:")
            .or_else(|| line.split_once("RACECHECK SUMMARY:"))?;
        rest.split_whitespace().next()?.parse().ok()
    };
    log.lines().rev().find_map(summary)
}

fn clip(text: &str, limit: usize) -> String {
    let text = text.trim();
    match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{}\n[…]", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAW: &str = r#"==PROF== Connected to process 41 (/usr/bin/python3.12)
==PROF== Profiling "softmax" - 0: 0%....50%....100% - 3 passes
"ID","Process ID","Process Name","Kernel Name","Block Size","CC","dram__bytes_read.sum","dram__throughput.avg.pct_of_peak_sustained_elapsed","gpu__time_duration.sum","smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio","smsp__average_warps_issue_stalled_wait_per_issue_active.ratio"
"","","","","","","byte","%","nsecond","inst","inst"
"0","41","python3.12","void softmax<4, ""x"">(float *, const float *)","(128, 1, 1)","9.0","33,554,432","71.50","12,000","9.25","1.10"
"1","41","python3.12","void softmax<4, ""x"">(float *, const float *)","(128, 1, 1)","9.0","33,554,432","72.50","14,000","9.75","1.00"
"2","41","python3.12","scale(float *)","(256, 1, 1)","9.0","n/a","nan","1,000","",""
"#;

    #[test]
    fn raw_ncu_output_is_averaged_by_kernel() {
        let found = parse_ncu(RAW);
        assert_eq!(found.len(), 2);
        assert_eq!(
            found[0].name,
            r#"void softmax<4, "x">(float *, const float *)"#
        );
        assert_eq!(
            (found[0].launches, found[0].top_stall.as_deref()),
            (2, Some("long_scoreboard"))
        );
        let metric = |name: &str| found[0].metrics.get(name).copied();
        assert_eq!(metric("dram_throughput_percent"), Some(72.0));
        assert_eq!(metric("duration_ns"), Some(13_000.0));
        assert_eq!(metric("dram_bytes_read"), Some(33_554_432.0));
        assert_eq!(metric("l2_hit_percent"), None);
        assert_eq!(
            found[1].metrics,
            BTreeMap::from([("duration_ns".to_owned(), 1000.0)]),
            "n/a and nan are left out"
        );
        assert_eq!(found[1].top_stall, None);
    }

    #[test]
    fn long_ncu_output_is_read_too() {
        let text = r#""ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","scale","Command line profiler metrics","gpu__time_duration.sum","nsecond","2,048"
"0","scale","Command line profiler metrics","launch__registers_per_thread","register/thread","40"
"#;
        let found = parse_ncu(text);
        assert_eq!((found[0].name.as_str(), found[0].launches), ("scale", 1));
        let metrics = [("duration_ns", 2048.0), ("registers", 40.0)]
            .map(|(name, value)| (name.to_owned(), value));
        assert_eq!(found[0].metrics, BTreeMap::from(metrics));
    }

    #[test]
    fn ncu_without_counters_says_why() {
        let text = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters\n";
        assert!(parse_ncu(text).is_empty());
        let why = complaint(text).unwrap_or_default();
        assert!(
            why.contains("permission") && why.contains("NVreg_RestrictProfilingToAdminUsers=0"),
            "{why}"
        );
        assert_eq!(complaint("nothing of note"), None);
    }

    #[test]
    fn sanitizer_summaries_are_read() {
        let memory = "========= COMPUTE-SANITIZER\n========= Invalid __global__ write of size 4 bytes\n========= ERROR SUMMARY: 3 errors\n";
        assert_eq!(parse_sanitizer(memory), Some(3));
        let races = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n";
        assert_eq!(parse_sanitizer(races), Some(0));
        assert_eq!(
            parse_sanitizer(
                "========= Error: Target application terminated before first instrumented API call"
            ),
            None
        );
    }
}
