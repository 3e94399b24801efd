//! Where the time of an attempt goes, beside its code: the bottleneck in a sentence, the roofline, its kernels, the module's
//! graph, and machine code on a page of its own.

use maud::{Markup, html};
use warpsmith_judge::profile::{Bound, ProfileReport, ReferenceProfile, SolutionKernel};
use warpsmith_report::page::{UNKNOWN, code, percent, runtime, table, times};
use warpsmith_report::plot::{Graph, GraphNode, RooflineChart, RooflinePoint};
use warpsmith_schema::{Attempt, OpGraph, ValueSource, Verdict};

use super::examination::{Assembly, AttemptExamination, ExaminedKernel, Standing};
use super::frame::{columns, live};

/// Rows of a table.
const MOST: usize = 24;

/// `number` counts attempts from one. `address` is that of the attempt, without the page's name: `?task=…&sample=…&attempt=…`.
pub(super) fn part(
    run: &str,
    number: usize,
    attempt: &Attempt,
    address: &str,
    standing: &Standing,
) -> Markup {
    if !attempt.verdict.compiled {
        return html! {};
    }
    let body = html! {
        h4 { "Where the time goes" }
        @match standing {
            Standing::Done(found) => (found_out(run, attempt, address, found)),
            Standing::UnderWay => p { "This machine is measuring it. The page shows what comes of it." },
            Standing::Failed(failure) => {
                p.bad { "It could not be measured: " (failure.message) }
                @if let Some(hint) = &failure.hint { p { (hint) } }
                (ask(run, address))
            },
            Standing::NotAsked => (ask(run, address)),
        }
    };
    live(&format!("kernels-{number}"), &body)
}

fn ask(run: &str, address: &str) -> Markup {
    html! {
        form action={ "/runs/" (run) "/examine" (address) } method="post" {
            button type="submit" { "Measure it" }
            span.quiet { " by kernel, on this machine: about a minute, in which its device does nothing else" }
        }
    }
}

fn found_out(run: &str, attempt: &Attempt, address: &str, found: &AttemptExamination) -> Markup {
    let profile = &found.profile;
    let solution = profile.solution.as_ref();
    let failure = solution.and_then(|one| one.failure.as_ref());
    html! {
        @if let Some(failure) = failure { p.bad { "The solution did not run here (" (failure.stage) "): " (failure.message) } }
        (bottleneck(profile))
        div.plots {
            @if let Some(plot) = roofline(profile, &attempt.verdict) { div { (plot) } }
            @if let Some(graph) = &found.graph { div { (graph_of(graph, &found.kernels)) } }
        }
        @if let Some(solution) = solution.filter(|one| !one.kernels.is_empty()) { (kernels(&solution.kernels, found)) }
        (operators(&profile.reference))
        p.quiet {
            "Measured on " (profile.device) " with PyTorch " (profile.torch) ", " (profile.reference.roofline.how)
            ". Times of kernels are the solution's own account; the verdict's times decide."
        }
        @if found.assembly.iter().any(|one| one.text.is_some()) {
            p { "Machine code: " a href={ "/runs/" (run) "/assembly" (address) } {
                @for (number, one) in found.assembly.iter().filter(|one| one.text.is_some()).enumerate() {
                    @if number > 0 { ", " } (one.kind)
                }
            } }
        }
        @for one in &found.assembly { @if let Some(why) = &one.why { p.quiet { "No " (one.kind) ": " (why) } } }
    }
}

/// Which kernel it is, what limits it, and what there is to gain.
fn bottleneck(profile: &ProfileReport) -> Markup {
    let reference = &profile.reference;
    let solution = profile
        .solution
        .as_ref()
        .filter(|one| one.failure.is_none());
    let first = solution.and_then(|one| one.kernels.first());
    let bound = match reference.bound {
        Bound::Memory => "memory: its traffic takes longer than its arithmetic",
        Bound::Compute => "arithmetic, which takes longer than its traffic",
        Bound::Overhead => "launching operators, more than by what they do",
    };
    html! {
        @if let Some(kernel) = first {
            p {
                strong { "The bottleneck is " code { (kernel.name) } ": " (percent(Some(kernel.share))) " of the time in kernels" }
                ", " (runtime(Some(kernel.time_us))) " of each call."
                @if let Some(headroom) = solution.and_then(|one| one.headroom) {
                    " A call takes " (times(Some(headroom))) " the least that this machine could take (" (runtime(Some(reference.floor_us))) ")."
                }
            }
        }
        p { "The original is limited by " (bound) ". It takes " (runtime(Some(reference.total_us))) ", " (times(Some(reference.headroom))) " the least possible." }
    }
}

/// The judge's times, over what no implementation can avoid.
fn roofline(profile: &ProfileReport, verdict: &Verdict) -> Option<Markup> {
    let reference = &profile.reference;
    let us = verdict.times_us.as_ref()?;
    let flops = reference.flops as f64;
    if reference.flops == 0 || reference.min_bytes == 0 || reference.roofline.bandwidth_gbps <= 0.0
    {
        return None;
    }
    let point = |name, us: f64| RooflinePoint {
        name,
        gflops: flops / us / 1e3,
    };
    let mut points = vec![point("ours", us.candidate.0), point("eager", us.eager.0)];
    points.extend(us.compile.map(|us| point("compile", us.0)));
    let roofline = RooflineChart {
        name: "Roofline: what this machine can reach, and what is reached",
        bandwidth_gbps: reference.roofline.bandwidth_gbps,
        gflops: reference.roofline.fp32_gflops,
        intensity: flops / reference.min_bytes as f64,
        points,
    };
    Some(html! { (roofline) })
}

fn kernels(all: &[SolutionKernel], found: &AttemptExamination) -> Markup {
    let number =
        |value: Option<u32>| value.map_or_else(|| UNKNOWN.to_owned(), |value| value.to_string());
    let counted = found
        .profile
        .solution
        .as_ref()
        .and_then(|one| one.ncu.as_ref());
    let moved = |name: &str| -> Option<f64> {
        let counters = counted
            .into_iter()
            .flatten()
            .find(|one| one.name.contains(name));
        let of = |what: &str| counters?.metrics.get(what).copied();
        let counted = of("dram_bytes_read")
            .zip(of("dram_bytes_written"))
            .map(|(read, written)| read + written);
        let planned = || {
            found
                .kernels
                .iter()
                .find(|one| name.contains(&one.name))?
                .bytes
        };
        counted.or_else(|| planned().map(|bytes| bytes as f64))
    };
    let rows: Vec<Vec<Markup>> = all
        .iter()
        .take(MOST)
        .map(|kernel| {
            let bytes = moved(&kernel.name);
            let rate = bytes.map(|bytes| bytes * kernel.calls.max(1.0) / kernel.time_us / 1e3);
            vec![
                html! { code { (kernel.name) } },
                html! { (runtime(Some(kernel.time_us))) },
                html! { (percent(Some(kernel.share))) " " meter min="0" max="1" value=(kernel.share) aria-label="share of the time" {} },
                html! { (format!("{:.0}", kernel.calls)) },
                html! { (size(bytes)) },
                html! { @match rate.filter(|rate| rate.is_finite()) { Some(rate) => (format!("{rate:.1}")), None => (UNKNOWN) } },
                html! { (number(kernel.registers)) },
                html! { (percent(kernel.occupancy)) },
            ]
        })
        .collect();
    let head = columns(
        &[
            "kernel",
            "time",
            "share",
            "calls",
            "bytes",
            "GB/s",
            "registers",
            "occupancy",
        ],
        &["kernel"],
    );
    table("Kernels of this attempt, the slowest first", &head, &rows)
}

fn operators(reference: &ReferenceProfile) -> Markup {
    let rows: Vec<Vec<Markup>> = reference
        .operators
        .iter()
        .take(MOST)
        .map(|one| {
            vec![
                html! { code { (one.name) } },
                html! { (runtime(Some(one.time_us))) },
                html! { (percent(Some(one.share))) },
                html! { (one.calls) },
                html! { (size(Some(one.bytes as f64))) },
                html! { (format!("{:.1}", one.gbps)) },
                html! { (format!("{:.1}", one.gflops)) },
            ]
        })
        .collect();
    let head = columns(
        &[
            "operator", "time", "share", "calls", "bytes", "GB/s", "GFLOP/s",
        ],
        &["operator"],
    );
    table(
        "Operators of the original, eager, the slowest first",
        &head,
        &rows,
    )
}

/// `8.4 MB`
fn size(bytes: Option<f64>) -> String {
    match bytes {
        None => UNKNOWN.to_owned(),
        Some(bytes) if bytes < 1e4 => format!("{bytes:.0} B"),
        Some(bytes) if bytes < 1e6 => format!("{:.1} kB", bytes / 1e3),
        Some(bytes) => format!("{:.1} MB", bytes / 1e6),
    }
}

/// Operators in the colours of the kernels that compute them.
fn graph_of(graph: &OpGraph, kernels: &[ExaminedKernel]) -> Markup {
    let mut left: Vec<Vec<(&str, Option<u32>)>> = kernels
        .iter()
        .map(|kernel| {
            kernel
                .operators
                .iter()
                .map(|(op, line)| (op.as_str(), *line))
                .collect()
        })
        .collect();
    // Each operator of a kernel stands for one of the graph, the first of its name and line that is left.
    let mut kernel_of = |op: &str, line: Option<u32>| -> Option<usize> {
        left.iter_mut().position(|operators| {
            let found = operators.iter().position(|one| *one == (op, line));
            found.map(|place| operators.remove(place)).is_some()
        })
    };
    let mut place_of = vec![None; graph.values.len()];
    let mut nodes: Vec<GraphNode> = Vec::new();
    for (number, value) in graph.values.iter().enumerate() {
        let ValueSource::Applied {
            op, inputs, result, ..
        } = &value.from
        else {
            continue;
        };
        let inputs: Vec<usize> = inputs
            .iter()
            .flatten()
            .filter_map(|input| *place_of.get(*input)?)
            .collect();
        place_of[number] = Some(nodes.len());
        let shape: Vec<String> = value.shape.iter().map(u64::to_string).collect();
        let line = value
            .line
            .map_or_else(String::new, |line| format!(", line {line}"));
        nodes.push(GraphNode {
            name: op.clone(),
            about: format!("{}{line}", shape.join(" × ")),
            inputs,
            kernel: if *result == 0 {
                kernel_of(op, value.line)
            } else {
                None
            },
        });
    }
    let graph = Graph {
        name: "What the module computes, and which kernel does it",
        nodes,
        kernels: kernels.iter().map(|kernel| kernel.name.as_str()).collect(),
    };
    html! { (graph) }
}

/// The page of an attempt's machine code.
pub(super) fn assembly(all: &[Assembly]) -> Markup {
    html! {
        @for one in all {
            h2 { (one.kind) }
            @match (&one.text, &one.why) {
                (Some(text), _) => (code("kernel.s", text)),
                (None, why) => p { (why.as_deref().unwrap_or(UNKNOWN)) },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread::sleep;
    use std::time::Duration;

    use serde_json::{Value, json};
    use warpsmith_schema::{Failure, Target, Task, Trajectory};

    use super::super::examination::Examiner;
    use super::*;

    fn examination() -> AttemptExamination {
        let found: Value = json!({
            "profile": {
                "format": 1, "task": "gate", "target": "cpu", "device": "a processor", "torch": "2.11",
                "reference": {
                    "operators": [{ "name": "aten::mul", "calls": 1, "time_us": 80.0, "share": 1.0, "bytes": 4096, "flops": 1024, "gbps": 0.1, "gflops": 0.1 }],
                    "kernels": null, "compile_kernels": null, "compile_us": null, "compile_why": null,
                    "total_us": 100.0, "bytes": 8192, "min_bytes": 4096, "flops": 2048, "intensity": 0.5, "bound": "memory",
                    "roofline": { "bandwidth_gbps": 10.0, "fp32_gflops": 100.0, "tf32_gflops": null, "half_gflops": null, "how": "measured" },
                    "floor_us": 20.0, "headroom": 5.0,
                },
                "solution": {
                    "untrusted": true, "failure": null, "total_us": 60.0, "gbps": 1.0, "headroom": 3.0, "ncu": null, "ncu_why": null,
                    "sanitizer": null, "sanitizer_why": null, "build_log": "",
                    "kernels": [
                        { "name": "<mul>_kernel", "calls": 1.0, "time_us": 45.0, "share": 0.75, "threads": null, "blocks": null, "registers": 40, "spill_bytes": null, "shared_bytes": null, "stack_bytes": null, "occupancy": 0.5 },
                        { "name": "add", "calls": 1.0, "time_us": 15.0, "share": 0.25, "threads": null, "blocks": null, "registers": null, "spill_bytes": null, "shared_bytes": null, "stack_bytes": null, "occupancy": null },
                    ],
                },
            },
            "graph": { "values": [
                { "shape": [4, 4], "dtype": "float32", "from": { "kind": "input", "position": 0 } },
                { "shape": [4, 4], "dtype": "float32", "line": 7, "from": { "kind": "applied", "op": "mul", "inputs": [0, 0], "arguments": {}, "result": 0 } },
                { "shape": [4, 4], "dtype": "float32", "line": 8, "from": { "kind": "applied", "op": "add", "inputs": [1, 0], "arguments": {}, "result": 0 } },
            ], "returns": [2] },
            "kernels": [{ "name": "mul_k", "what": "each", "bytes": 45_000, "operators": [["mul", 7]] }],
            "assembly": [{ "kind": "x86", "text": "vmulps <ymm0>", "why": null }, { "kind": "PTX", "text": null, "why": "no nvcc" }],
        });
        serde_json::from_value(found).unwrap()
    }

    fn timed() -> (Trajectory, Attempt) {
        let task = Task {
            id: "t".into(),
            name: "t".into(),
            source: "class Model:\n    pass\n".into(),
            level: None,
            problem_id: None,
            origin: String::new(),
            graph: None,
        };
        let policy = warpsmith_schema::PolicyVersion {
            name: "p".into(),
            hash: None,
            step: None,
        };
        let mode = warpsmith_schema::EpisodeMode::Single;
        let trajectory = Trajectory::begin(&task, Target::Cpu, &policy, 1, mode);
        let (status, profile) = (
            warpsmith_schema::Status::Passed,
            warpsmith_schema::Profile::Rl,
        );
        let mut verdict = Verdict::unreached(status, Target::Cpu, profile, String::new());
        verdict.compiled = true;
        let times = json!({ "candidate": 60.0, "eager": 100.0, "compile": 80.0, "spread": 0.0, "samples": 3, "single": 60, "burst": null, "constant": 0 });
        verdict.times_us = Some(serde_json::from_value(times).unwrap());
        let files = [("model_new.py".to_owned(), "pass\n".to_owned())].into();
        (
            trajectory,
            Attempt {
                message: 0,
                files,
                verdict,
            },
        )
    }

    #[test]
    fn an_attempt_is_measured_when_asked_and_its_bottleneck_is_named() {
        let run = tempfile::tempdir().unwrap();
        let (trajectory, attempt) = timed();
        let shown = |examiner: &Examiner| {
            let standing = examiner.standing(run.path(), &attempt);
            part("r", 1, &attempt, "?task=t&sample=1&attempt=1", &standing).into_string()
        };
        let wait = |examiner: &Examiner| {
            for _ in 0..500 {
                if !matches!(examiner.standing(run.path(), &attempt), Standing::UnderWay) {
                    return;
                }
                sleep(Duration::from_millis(10));
            }
        };
        // What cannot be measured says why, and may be tried again.
        let failing = Examiner::new(Arc::new(|_, _, _| Err(Failure::panicked())));
        assert!(shown(&failing).contains("Measure it"));
        failing.begin(run.path(), &trajectory, &attempt);
        wait(&failing);
        let page = shown(&failing);
        assert!(
            page.contains("could not be measured") && page.contains("Measure it"),
            "{page}"
        );

        let examiner = Examiner::new(Arc::new(|_, _, _| Ok(examination())));
        examiner.begin(run.path(), &trajectory, &attempt);
        wait(&examiner);
        // Another process knows it too.
        let page = shown(&Examiner::new(Arc::new(|_, _, _| Err(Failure::panicked()))));
        assert_eq!(page, shown(&examiner));
        for text in [
            "The bottleneck is <code>&lt;mul&gt;_kernel</code>: 75 % of the time",
            "3.00x the least that this machine could take (20.0 us)",
            "limited by memory",
            "ours reaches 0.034 GFLOP/s, 1 % of it",
            "compile reaches",
            "<td data-label=\"registers\">40</td>",
            "2 operators, 1 of them in 1 kernels",
            ">mul_k<",
            "href=\"/runs/r/assembly?task=t&amp;sample=1&amp;attempt=1\"",
            "No PTX: no nvcc",
        ] {
            assert!(page.contains(text), "{text}: {page}");
        }
        assert!(
            assembly(&examination().assembly)
                .into_string()
                .contains("&lt;ymm0&gt;")
        );
    }

    #[test]
    fn what_did_not_compile_has_no_kernels() {
        let (_, mut attempt) = timed();
        attempt.verdict.compiled = false;
        assert_eq!(
            part("r", 1, &attempt, "", &Standing::NotAsked).into_string(),
            ""
        );
    }
}
