//! A profile for people.

use warpsmith_judge::profile::{
    Bound, KernelTime, ProfileReport, ReferenceProfile, SanitizerReport, SolutionKernel,
    SolutionProfile,
};

const NAME_WIDTH: usize = 56;
const ROWS: usize = 12;

/// The report as aligned tables and a sentence on each half.
pub fn render_profile(report: &ProfileReport) -> String {
    let mut lines = vec![
        format!(
            "{} on {} ({}), torch {}",
            report.task,
            report.device,
            report.target.name(),
            report.torch
        ),
        machine(report),
        String::new(),
    ];
    reference(&report.reference, &mut lines);
    if let Some(found) = &report.solution {
        lines.push(String::new());
        solution(found, &report.reference, &mut lines);
    }
    lines.push(String::new());
    lines.join("\n")
}

fn machine(report: &ProfileReport) -> String {
    let roofline = &report.reference.roofline;
    let rate = |name: &str, gflops: Option<f64>| {
        gflops.map(|gflops| format!(", {} {name}", flops_rate(gflops)))
    };
    format!(
        "machine: {:.1} GB/s, {} fp32{}{} ({})",
        roofline.bandwidth_gbps,
        flops_rate(roofline.fp32_gflops),
        rate("tf32", roofline.tf32_gflops).unwrap_or_default(),
        rate("bf16", roofline.half_gflops).unwrap_or_default(),
        roofline.how
    )
}

fn reference(found: &ReferenceProfile, lines: &mut Vec<String>) {
    lines.push(format!(
        "reference: {} a call, {}",
        micros(found.total_us),
        sentence(found)
    ));
    lines.push(format!(
        "floor: {} ({} once, {}), {:.1}x below",
        micros(found.floor_us),
        bytes(found.min_bytes),
        operations(found.flops),
        found.headroom
    ));
    let mut rows = vec![
        [
            "operator", "calls", "time", "share", "bytes", "GB/s", "GFLOP/s",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    rows.extend(found.operators.iter().take(ROWS).map(|operator| {
        vec![
            short(&operator.name),
            operator.calls.to_string(),
            micros(operator.time_us),
            percent(operator.share),
            bytes(operator.bytes),
            format!("{:.1}", operator.gbps),
            format!("{:.1}", operator.gflops),
        ]
    }));
    table(&rows, lines);
    rest(found.operators.len(), "operators", lines);
    if let Some(kernels) = &found.kernels {
        kernel_table("kernels of the reference", kernels, lines);
    }
    match (&found.compile_kernels, found.compile_us, &found.compile_why) {
        (Some(kernels), Some(total), _) => {
            kernel_table(
                &format!("kernels of torch.compile ({} a call)", micros(total)),
                kernels,
                lines,
            );
        }
        (_, _, Some(why)) if found.kernels.is_some() => lines.push(format!("torch.compile: {why}")),
        _ => {}
    }
}

/// What limits the reference, with the numbers that say so.
fn sentence(found: &ReferenceProfile) -> String {
    let reached = |amount: f64| {
        if found.total_us > 0.0 {
            amount / 1e3 / found.total_us
        } else {
            0.0
        }
    };
    match found.bound {
        Bound::Memory => format!(
            "memory-bound: {} at {:.1} GB/s of {:.1} GB/s",
            bytes(found.bytes),
            reached(found.bytes as f64),
            found.roofline.bandwidth_gbps
        ),
        Bound::Compute => format!(
            "compute-bound: {} at {} of {} ({:.1} operations a byte)",
            operations(found.flops),
            flops_rate(reached(found.flops as f64)),
            flops_rate(found.roofline.fp32_gflops),
            found.intensity
        ),
        Bound::Overhead => format!(
            "overhead-bound: {} operators, most of the time goes between them; {} would take {}",
            found
                .operators
                .iter()
                .map(|operator| operator.calls)
                .sum::<u64>(),
            bytes(found.min_bytes),
            micros(found.floor_us)
        ),
    }
}

fn kernel_table(title: &str, kernels: &[KernelTime], lines: &mut Vec<String>) {
    lines.push(title.to_owned());
    let mut rows = vec![
        ["kernel", "calls", "time", "share"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(kernels.iter().take(ROWS).map(|kernel| {
        vec![
            short(&kernel.name),
            calls(kernel.calls),
            micros(kernel.time_us),
            percent(kernel.share),
        ]
    }));
    table(&rows, lines);
    rest(kernels.len(), "kernels", lines);
}

fn solution(found: &SolutionProfile, reference: &ReferenceProfile, lines: &mut Vec<String>) {
    if let Some(failure) = &found.failure {
        lines.push(format!("solution: no profile ({})", failure.stage));
        lines.extend(
            failure
                .message
                .lines()
                .map(|line| format!("  {}", tame(line))),
        );
    } else {
        measured(found, reference, lines);
    }
    found
        .sanitizer
        .iter()
        .flatten()
        .for_each(|tool| sanitizer(tool, lines));
    lines.extend(
        found
            .sanitizer_why
            .iter()
            .map(|why| format!("  sanitizer: {why}")),
    );
}

fn measured(found: &SolutionProfile, reference: &ReferenceProfile, lines: &mut Vec<String>) {
    let total = found.total_us.unwrap_or(0.0);
    let factor = if total > 0.0 {
        reference.total_us / total
    } else {
        0.0
    };
    lines.push(format!(
        "solution: {} a call, {:.2}x the reference's speed, {} at {:.1} GB/s of {:.1} GB/s, {}",
        micros(total),
        factor,
        bytes(reference.min_bytes),
        found.gbps.unwrap_or(0.0),
        reference.roofline.bandwidth_gbps,
        above_floor(found.headroom.unwrap_or(0.0))
    ));
    lines.push(
        "  (by its own account, taken in its own process; `warpsmith judge` decides)".to_owned(),
    );
    solution_table(&found.kernels, lines);
    for kernel in found.ncu.iter().flatten() {
        let numbers: Vec<String> = kernel
            .metrics
            .iter()
            .map(|(name, value)| format!("{name} {value:.1}"))
            .collect();
        let stall = kernel
            .top_stall
            .as_deref()
            .map(|reason| format!(", waits most for {}", short(reason)))
            .unwrap_or_default();
        lines.push(format!(
            "  ncu {}: {}{stall}",
            short(&kernel.name),
            numbers.join(", ")
        ));
    }
    let cuda = reference.kernels.is_some();
    lines.extend(
        found
            .ncu_why
            .iter()
            .filter(|_| cuda)
            .map(|why| format!("  ncu: {}", tame(why))),
    );
}

fn above_floor(headroom: f64) -> String {
    if headroom < 1.0 {
        "below the floor (it leaves work out, or the machine was busy when it was measured)"
            .to_owned()
    } else {
        format!("{headroom:.1}x above the floor")
    }
}

fn solution_table(kernels: &[SolutionKernel], lines: &mut Vec<String>) {
    let resources = kernels.iter().any(|kernel| kernel.registers.is_some());
    let mut header = vec!["kernel", "calls", "time", "share"];
    if resources {
        header.extend([
            "threads",
            "registers",
            "spills",
            "stack",
            "shared",
            "occupancy",
        ]);
    }
    let mut rows = vec![header.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    let count =
        |value: Option<u32>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
    rows.extend(kernels.iter().take(ROWS).map(|kernel| {
        let mut row = vec![
            short(&kernel.name),
            calls(kernel.calls),
            micros(kernel.time_us),
            percent(kernel.share),
        ];
        if resources {
            row.extend(
                [
                    kernel.threads,
                    kernel.registers,
                    kernel.spill_bytes,
                    kernel.stack_bytes,
                    kernel.shared_bytes,
                ]
                .map(count),
            );
            row.push(kernel.occupancy.map_or_else(|| "-".to_owned(), percent));
        }
        row
    }));
    table(&rows, lines);
    rest(kernels.len(), "kernels", lines);
}

fn sanitizer(report: &SanitizerReport, lines: &mut Vec<String>) {
    match report.errors {
        Some(0) => lines.push(format!("  {}: clean", report.tool)),
        found => {
            let count = found.map_or_else(
                || "did not finish".to_owned(),
                |count| format!("{count} errors"),
            );
            lines.push(format!("  {}: {count}", report.tool));
            lines.extend(
                report
                    .log
                    .lines()
                    .take(40)
                    .map(|line| format!("    {}", tame(line))),
            );
        }
    }
}

/// The first column to the left, numbers to the right.
fn table(rows: &[Vec<String>], lines: &mut Vec<String>) {
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).map(width).collect();
    for row in rows {
        let mut line = String::from(" ");
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let padding = " ".repeat(width - cell.chars().count());
            let parts = if column == 0 {
                [" ", cell, &padding]
            } else {
                ["  ", &padding, cell]
            };
            line.extend(parts);
        }
        lines.push(line.trim_end().to_owned());
    }
}

fn rest(count: usize, what: &str, lines: &mut Vec<String>) {
    if count > ROWS {
        lines.push(format!("  … and {} more {what}", count - ROWS));
    }
}

/// Text from a candidate, with nothing left that could steer a terminal.
fn tame(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).collect()
}

fn short(name: &str) -> String {
    let mut clean: Vec<char> = tame(name).chars().take(NAME_WIDTH + 1).collect();
    if clean.len() > NAME_WIDTH {
        clean.truncate(NAME_WIDTH - 1);
        clean.push('…');
    }
    clean.into_iter().collect()
}

fn calls(count: f64) -> String {
    if (count - count.round()).abs() < 0.01 {
        format!("{count:.0}")
    } else {
        format!("{count:.1}")
    }
}

fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

fn micros(time: f64) -> String {
    match time {
        time if time >= 1e6 => format!("{:.2} s", time / 1e6),
        time if time >= 1e3 => format!("{:.2} ms", time / 1e3),
        time => format!("{time:.1} us"),
    }
}

fn bytes(count: u64) -> String {
    scaled(count as f64, "B")
}

fn operations(count: u64) -> String {
    scaled(count as f64, "FLOP")
}

fn flops_rate(gflops: f64) -> String {
    scaled(gflops * 1e9, "FLOP/s")
}

fn scaled(value: f64, unit: &str) -> String {
    let (factor, prefix) = match value {
        value if value >= 1e12 => (1e12, "T"),
        value if value >= 1e9 => (1e9, "G"),
        value if value >= 1e6 => (1e6, "M"),
        value if value >= 1e3 => (1e3, "k"),
        _ => return format!("{value:.0} {unit}"),
    };
    format!("{:.1} {prefix}{unit}", value / factor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpsmith_judge::profile::{OperatorTime, Roofline};
    use warpsmith_schema::Target;

    fn report() -> ProfileReport {
        let operator = OperatorTime {
            name: "aten::_softmax".to_owned(),
            calls: 1,
            time_us: 1350.0,
            share: 1.0,
            bytes: 12_100_000,
            flops: 3_000_000,
            gbps: 8.96,
            gflops: 2.2,
        };
        ProfileReport {
            format: 1,
            task: "softmax".to_owned(),
            target: Target::Cpu,
            device: "a processor".to_owned(),
            torch: "2.11".to_owned(),
            reference: ReferenceProfile {
                operators: vec![operator],
                kernels: None,
                compile_kernels: None,
                compile_us: None,
                compile_why: None,
                total_us: 1360.0,
                bytes: 12_100_000,
                min_bytes: 12_100_000,
                flops: 3_000_000,
                intensity: 0.25,
                bound: Bound::Memory,
                roofline: Roofline {
                    bandwidth_gbps: 11.2,
                    fp32_gflops: 98.0,
                    tf32_gflops: None,
                    half_gflops: None,
                    how: "measured".to_owned(),
                },
                floor_us: 1080.0,
                headroom: 1.26,
            },
            solution: None,
        }
    }

    #[test]
    fn a_sentence_names_the_limit() {
        let text = render_profile(&report());
        assert!(
            text.contains("memory-bound: 12.1 MB at 8.9 GB/s of 11.2 GB/s"),
            "{text}"
        );
        assert!(
            text.contains("machine: 11.2 GB/s, 98.0 GFLOP/s fp32 (measured)"),
            "{text}"
        );
    }

    #[test]
    fn columns_are_aligned_and_names_are_tame() {
        let mut report = report();
        report.solution = Some(SolutionProfile {
            untrusted: true,
            failure: None,
            kernels: vec![SolutionKernel {
                name: "\u{1b}[31mrows".to_owned() + &"x".repeat(99),
                calls: 1.0,
                time_us: 900.0,
                share: 1.0,
                threads: Some(128),
                blocks: Some(64),
                registers: Some(64),
                spill_bytes: None,
                shared_bytes: Some(0),
                stack_bytes: None,
                occupancy: Some(0.5),
            }],
            total_us: Some(1000.0),
            gbps: Some(12.1),
            headroom: Some(0.93),
            ncu: None,
            ncu_why: Some("not here".to_owned()),
            sanitizer: None,
            sanitizer_why: None,
            build_log: String::new(),
        });
        let text = render_profile(&report);
        assert!(!text.contains('\u{1b}') && text.contains('…'));
        assert!(
            text.contains("own account") && text.contains("50.0%"),
            "{text}"
        );
        let place = |line: &str| line.chars().count();
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| line.contains("occupancy") || line.contains("50.0%"))
            .collect();
        assert_eq!(place(lines[0]), place(lines[1]), "{text}");
    }
}
