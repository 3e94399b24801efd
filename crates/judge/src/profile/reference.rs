//! The trusted half: the machine's roofline and the reference by operator.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fs_err as fs;
use serde::Deserialize;
use serde_json::{Value, json};
use warpsmith_schema::Target;

use super::ProfileContext;
use super::report::{Bound, KernelTime, OperatorTime, ReferenceProfile, Roofline};
use crate::JudgeError;
use crate::process::{ProcessLaunch, PythonProcess};
use crate::zygote::{WorkerLimits, device_environment};

const ROOFLINE_LIMIT: Duration = Duration::from_mins(2);
const REFERENCE_LIMIT: Duration = Duration::from_mins(10);
/// Below this much time per operator, dispatching and launching are a good part of it.
const DISPATCH_US: f64 = 10.0;

/// What Python may take between two operators.
const GAP_US: f64 = 50.0;

/// The process that runs the reference.
pub(super) struct ReferenceProcess {
    process: PythonProcess,
    torch: String,
}

/// What the process measured.
#[derive(Debug, Deserialize)]
pub(super) struct MeasuredReference {
    times_us: Vec<f64>,
    operators: Vec<MeasuredOperator>,
    half_flops: u64,
    min_bytes: u64,
    kernels: Option<Vec<MeasuredKernel>>,
    compile_kernels: Option<Vec<MeasuredKernel>>,
    compile_us: Option<f64>,
    compile_why: Option<String>,
    /// Inputs, weights and constructor arguments, as saved for a solution.
    pub(super) job: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct MeasuredOperator {
    name: String,
    calls: u64,
    time_us: f64,
    bytes: u64,
    flops: u64,
}

#[derive(Debug, Deserialize)]
struct MeasuredKernel {
    name: String,
    calls: f64,
    time_us: f64,
}

impl ReferenceProcess {
    pub(super) fn start(bench: &ProfileContext<'_>) -> Result<Self, JudgeError> {
        let request = bench.request;
        let variable = |name: &str| (name.to_owned(), std::env::var(name).unwrap_or_default());
        let mut environment = device_environment(request.target, request.device);
        environment.extend([variable("PATH"), variable("HOME")]);
        let threads = WorkerLimits::of_this_machine().threads.to_string();
        let compile = request.caches.compile();
        environment.extend([
            ("OMP_NUM_THREADS".to_owned(), threads),
            (
                "TORCHINDUCTOR_CACHE_DIR".to_owned(),
                compile.display().to_string(),
            ),
            (
                "TRITON_CACHE_DIR".to_owned(),
                compile.join("triton").display().to_string(),
            ),
        ]);
        let mut process = PythonProcess::start(ProcessLaunch {
            name: "profiling",
            target: warpsmith_schema::Target::Cpu,
            script: "profiling.py",
            arguments: Vec::new(),
            environment,
            python: &request.python,
            harness: &bench.harness.dir,
        })?;
        let hello = process.await_hello()?;
        let torch = hello["torch"].as_str().unwrap_or_default().to_owned();
        Ok(Self { process, torch })
    }

    pub(super) fn torch(&self) -> &str {
        &self.torch
    }

    /// What the machine reaches, measured once per device and `PyTorch`. `again` measures once more and keeps the better:
    /// a busy machine looks slower than it is, never faster.
    pub(super) fn roofline(
        &mut self,
        bench: &ProfileContext<'_>,
        again: bool,
    ) -> Result<Roofline, JudgeError> {
        let kept = self.roofline_path(bench);
        let known = fs::read(&kept)
            .ok()
            .and_then(|bytes| serde_json::from_slice::<Roofline>(&bytes).ok())
            .filter(|known| known.bandwidth_gbps > 0.0 && known.fp32_gflops > 0.0);
        if let (Some(known), false) = (&known, again) {
            return Ok(known.clone());
        }
        let target = bench.request.target.name();
        let reply =
            self.process
                .request("roofline", json!({ "target": target }), ROOFLINE_LIMIT)?;
        let measured: Roofline = parse_reply(reply)?;
        let roofline = known.map_or(measured.clone(), |known| better(&known, measured));
        let doing = "keep the machine's roofline";
        if let Some(folder) = kept.parent() {
            fs::create_dir_all(folder).map_err(JudgeError::io(doing))?;
        }
        let text = serde_json::to_vec(&roofline).unwrap_or_default();
        let temporary = kept.with_extension(format!("tmp{}", std::process::id()));
        fs::write(&temporary, text).map_err(JudgeError::io(doing))?;
        fs::rename(&temporary, &kept).map_err(JudgeError::io(doing))?;
        Ok(roofline)
    }

    fn roofline_path(&self, bench: &ProfileContext<'_>) -> PathBuf {
        let mut hasher = blake3::Hasher::new();
        let device = bench.gpu.as_ref().map_or_else(
            || bench.device_name(),
            |gpu| format!("{} {}", gpu.uuid, gpu.driver),
        );
        let threads = WorkerLimits::of_this_machine().threads.to_string();
        for part in [bench.request.target.name(), &device, &threads, &self.torch] {
            hasher.update(part.as_bytes()).update(b"\0");
        }
        let name = format!("roofline-{}.json", &hasher.finalize().to_hex()[..16]);
        bench.request.caches.baselines().join(name)
    }

    /// Profiles the reference; with `job`, leaves its inputs and weights there.
    pub(super) fn profile(
        &mut self,
        bench: &ProfileContext<'_>,
        job: Option<&Path>,
    ) -> Result<MeasuredReference, JudgeError> {
        let request = bench.request;
        let body = json!({
            "source": request.task.source, "target": request.target.name(), "folder": job, "compile": true,
        });
        parse_reply(self.process.request("reference", body, REFERENCE_LIMIT)?)
    }
}

/// Each rate at its best.
fn better(known: &Roofline, measured: Roofline) -> Roofline {
    let best = |one: Option<f64>, two: Option<f64>| one.into_iter().chain(two).reduce(f64::max);
    Roofline {
        bandwidth_gbps: known.bandwidth_gbps.max(measured.bandwidth_gbps),
        fp32_gflops: known.fp32_gflops.max(measured.fp32_gflops),
        tf32_gflops: best(known.tf32_gflops, measured.tf32_gflops),
        half_gflops: best(known.half_gflops, measured.half_gflops),
        how: measured.how,
    }
}

fn parse_reply<T: serde::de::DeserializeOwned>(reply: Value) -> Result<T, JudgeError> {
    serde_json::from_value(reply).map_err(|error| {
        JudgeError::infrastructure(
            "protocol",
            format!("the profiling process answered oddly: {error}"),
        )
    })
}

/// Sets what was taken against what the machine can do.
pub(super) fn conclude(
    taken: &MeasuredReference,
    roofline: Roofline,
    target: Target,
) -> ReferenceProfile {
    let total_us = lower_quartile(&taken.times_us);
    let busy_us: f64 = taken
        .operators
        .iter()
        .map(|operator| operator.time_us)
        .sum();
    let bytes = taken.operators.iter().map(|operator| operator.bytes).sum();
    let flops: u64 = taken.operators.iter().map(|operator| operator.flops).sum();
    let calls: u64 = taken.operators.iter().map(|operator| operator.calls).sum();
    let compute_us = compute_us(flops, taken.half_flops, &roofline);
    // A kernel's own time where it is known; on the CPU an operator's time is its own.
    let device_us = match (&taken.kernels, target) {
        (Some(kernels), Target::Cuda) => kernels.iter().map(|kernel| kernel.time_us).sum(),
        _ => busy_us,
    };
    let load = ModuleLoad {
        // On the CPU operators follow each other at once: a longer gap is another program's time, not this one's.
        total_us: match target {
            Target::Cpu => total_us.min(busy_us + GAP_US * calls as f64),
            Target::Cuda => total_us,
        },
        busy_us: device_us,
        memory_us: traffic_us(bytes, &roofline),
        compute_us,
        operators: calls,
    };
    let floor_us = traffic_us(taken.min_bytes, &roofline).max(compute_us);
    ReferenceProfile {
        operators: taken
            .operators
            .iter()
            .map(|operator| operator_time(operator, busy_us))
            .collect(),
        kernels: taken.kernels.as_deref().map(kernel_times),
        compile_kernels: taken.compile_kernels.as_deref().map(kernel_times),
        compile_us: taken.compile_us,
        compile_why: match (target, &taken.compile_why) {
            (Target::Cpu, _) => Some("compiled kernels are traced on CUDA only".to_owned()),
            (Target::Cuda, why) => why.clone(),
        },
        total_us,
        bytes,
        min_bytes: taken.min_bytes,
        flops,
        intensity: ratio(flops as f64, taken.min_bytes as f64),
        bound: classify(&load),
        roofline,
        floor_us,
        headroom: ratio(total_us, floor_us),
    }
}

/// The times that decide what limits a module.
struct ModuleLoad {
    total_us: f64,
    /// Spent inside operators or kernels.
    busy_us: f64,
    /// Its traffic at full bandwidth.
    memory_us: f64,
    /// Its arithmetic at full rate.
    compute_us: f64,
    operators: u64,
}

/// Overhead where the machine could do the work in under half the time and the rest is spent between operators, or in
/// operators too short to be anything but dispatch; else whichever resource takes longer.
fn classify(load: &ModuleLoad) -> Bound {
    let needed = load.memory_us.max(load.compute_us);
    let short = load.total_us < DISPATCH_US * load.operators.max(1) as f64;
    if needed < load.total_us / 2.0 && (load.busy_us < load.total_us / 2.0 || short) {
        Bound::Overhead
    } else if load.compute_us > load.memory_us {
        Bound::Compute
    } else {
        Bound::Memory
    }
}

fn traffic_us(bytes: u64, roofline: &Roofline) -> f64 {
    ratio(bytes as f64 / 1e3, roofline.bandwidth_gbps)
}

fn compute_us(flops: u64, half: u64, roofline: &Roofline) -> f64 {
    let full = flops.saturating_sub(half) as f64 / 1e3;
    let half_rate = roofline.half_gflops.unwrap_or(roofline.fp32_gflops);
    ratio(full, roofline.fp32_gflops) + ratio(half as f64 / 1e3, half_rate)
}

fn operator_time(operator: &MeasuredOperator, busy_us: f64) -> OperatorTime {
    OperatorTime {
        name: operator.name.clone(),
        calls: operator.calls,
        time_us: operator.time_us,
        share: ratio(operator.time_us, busy_us),
        bytes: operator.bytes,
        flops: operator.flops,
        gbps: ratio(operator.bytes as f64 / 1e3, operator.time_us),
        gflops: ratio(operator.flops as f64 / 1e3, operator.time_us),
    }
}

fn kernel_times(kernels: &[MeasuredKernel]) -> Vec<KernelTime> {
    let all: f64 = kernels.iter().map(|kernel| kernel.time_us).sum();
    let one = |kernel: &MeasuredKernel| KernelTime {
        name: kernel.name.clone(),
        calls: kernel.calls,
        time_us: kernel.time_us,
        share: ratio(kernel.time_us, all),
    };
    kernels.iter().map(one).collect()
}

/// Zero where there is nothing to divide by.
pub(super) fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// The lower quartile: other programs on the machine only ever make a call slower.
pub(super) fn lower_quartile(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 4).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(
        total_us: f64,
        busy_us: f64,
        memory_us: f64,
        compute_us: f64,
        operators: u64,
    ) -> ModuleLoad {
        ModuleLoad {
            total_us,
            busy_us,
            memory_us,
            compute_us,
            operators,
        }
    }

    #[test]
    fn modules_are_sorted_by_what_limits_them() {
        let table = [
            (
                load(1000.0, 990.0, 800.0, 10.0, 1),
                Bound::Memory,
                "a stream",
            ),
            (
                load(1000.0, 990.0, 50.0, 900.0, 1),
                Bound::Compute,
                "a GEMM",
            ),
            (
                load(1000.0, 990.0, 100.0, 20.0, 2),
                Bound::Memory,
                "a slow kernel is not overhead",
            ),
            (
                load(50.0, 40.0, 2.0, 1.0, 10),
                Bound::Overhead,
                "ten tiny operators",
            ),
            (
                load(300.0, 30.0, 20.0, 1.0, 12),
                Bound::Overhead,
                "the device waits to be told",
            ),
            (
                load(5.0, 4.0, 1.0, 0.0, 1),
                Bound::Overhead,
                "one tiny operator",
            ),
        ];
        for (load, bound, what) in table {
            assert_eq!(classify(&load), bound, "{what}");
        }
    }

    #[test]
    fn the_floor_is_the_slower_of_traffic_and_arithmetic() {
        let roofline = Roofline {
            bandwidth_gbps: 10.0,
            fp32_gflops: 100.0,
            tf32_gflops: None,
            half_gflops: Some(400.0),
            how: String::new(),
        };
        let taken = |flops: u64, half_flops: u64| MeasuredReference {
            times_us: vec![900.0, 400.0, 350.0, 500.0],
            operators: vec![
                MeasuredOperator {
                    name: "aten::mm".to_owned(),
                    calls: 1,
                    time_us: 300.0,
                    bytes: 2_000_000,
                    flops,
                },
                MeasuredOperator {
                    name: "aten::relu".to_owned(),
                    calls: 1,
                    time_us: 100.0,
                    bytes: 1_000_000,
                    flops: 0,
                },
            ],
            half_flops,
            min_bytes: 1_000_000,
            kernels: None,
            compile_kernels: None,
            compile_us: None,
            compile_why: None,
            job: None,
        };
        let stream = conclude(&taken(1_000_000, 0), roofline.clone(), Target::Cpu);
        assert_eq!(
            (stream.total_us, stream.bytes, stream.min_bytes),
            (400.0, 3_000_000, 1_000_000)
        );
        assert!(
            (stream.floor_us - 100.0).abs() < 1e-9,
            "1 MB at 10 GB/s: {}",
            stream.floor_us
        );
        assert!((stream.headroom - 4.0).abs() < 1e-9);
        assert!((stream.intensity - 1.0).abs() < 1e-9);
        assert_eq!(stream.bound, Bound::Memory);
        assert!((stream.operators[0].share - 0.75).abs() < 1e-9);
        assert!((stream.operators[0].gbps - 20.0 / 3.0).abs() < 1e-9);

        let product = conclude(&taken(40_000_000, 0), roofline.clone(), Target::Cpu);
        assert!(
            (product.floor_us - 400.0).abs() < 1e-9,
            "40 MFLOP at 100 GFLOP/s"
        );
        assert_eq!(product.bound, Bound::Compute);

        let half = conclude(&taken(40_000_000, 40_000_000), roofline, Target::Cpu);
        assert!(
            (half.floor_us - 100.0).abs() < 1e-9,
            "at the half-precision rate"
        );
    }

    #[test]
    fn a_better_measurement_of_the_machine_wins() {
        let of = |bandwidth_gbps, half_gflops| Roofline {
            bandwidth_gbps,
            fp32_gflops: 50.0,
            tf32_gflops: None,
            half_gflops,
            how: String::new(),
        };
        let merged = better(&of(8.0, Some(9.0)), of(20.0, None));
        assert_eq!(merged, of(20.0, Some(9.0)));
    }

    #[test]
    fn nothing_to_divide_by_is_zero() {
        assert_eq!((ratio(1.0, 0.0), lower_quartile(&[])), (0.0, 0.0));
    }
}
