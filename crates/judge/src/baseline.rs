//! Eager and compiled baselines, timed by the same method in a process no candidate ever entered, and kept on disk.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fs_err as fs;
use serde::{Deserialize, Serialize};
use serde_json::json;
use warpsmith_schema::{Precision, Profile, Target};

use crate::JudgeError;
use crate::process::PythonProcess;
use crate::runner::{CallFailure, attach, has_gate};
use crate::session::{
    MeasurementError, MeasurementPlan, OutputHandling, Regime, Session, prepare_inputs,
};
use crate::timing::{self, CallOverhead, HonestGaps, TimeEstimate, TimingSamples};
use crate::trusted::TrustedProcess;

/// The baselines of one task in one math mode, one entry a shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Baselines {
    pub(crate) regimes: Vec<Regime>,
    /// What a candidate's call costs with nothing in it.
    pub(crate) constant: Vec<CallOverhead>,
    pub(crate) eager: Vec<TimeEstimate>,
    pub(crate) compile: Option<Vec<TimeEstimate>>,
    /// Why `torch.compile` has no time, where it has none.
    pub(crate) compile_failure: Option<String>,
    pub(crate) raw_eager: Vec<TimingSamples>,
    pub(crate) raw_compile: Vec<TimingSamples>,
    /// What the trusted process took for the reference then, on a CPU: a machine on which it takes longer or shorter now is
    /// another.
    #[serde(default)]
    pub(crate) reference_us: Vec<f64>,
}

/// Of measuring. Bump it when that changes: older numbers are then not comparable.
pub(crate) const METHOD: u32 = 15;

/// How far apart the reference's time may be, then and now.
const DRIFT_SHARE: f64 = 0.25;
const DRIFT_US: f64 = 20.0;
const DRIFT_TRIES: usize = 3;

/// Whether the machine is as it was when these were measured. Others may be in the way for a moment, so the one of a few runs
/// that comes closest counts.
pub(crate) fn still_hold(
    baselines: &Baselines,
    trusted: &mut TrustedProcess,
) -> Result<bool, JudgeError> {
    for (variant, &then) in baselines.reference_us.iter().enumerate() {
        let mut held = false;
        for _ in 0..DRIFT_TRIES {
            held = held || agree(then, trusted.reference_us(variant)?);
        }
        if !held {
            return Ok(false);
        }
    }
    Ok(true)
}

fn agree(then_us: f64, now_us: f64) -> bool {
    (then_us - now_us).abs() <= DRIFT_SHARE * then_us.max(now_us) + DRIFT_US
}

/// Of a single call that decides, the constant may be this share.
const CONSTANT_SHARE: f64 = 0.5;

/// Above this spread a baseline is not worth keeping.
const CACHED_SPREAD: f64 = 0.3;

impl Baselines {
    /// Why these times mean nothing, where they do not: a constant is most of what it is taken from, or a time is below what
    /// writing the output can take.
    pub(crate) fn fault(&self, floors_us: &[f64]) -> Option<JudgeError> {
        let compiled = self.raw_compile.iter().zip(self.compile.iter().flatten());
        let timed = self.raw_eager.iter().zip(&self.eager).chain(compiled);
        let mut each = timed.zip((0..self.eager.len()).cycle());
        each.find_map(|((raw, estimate), variant)| {
            let single_us = timing::median(&raw.singles);
            let constant_us = self.constant.get(variant)?.single_us;
            let what = if estimate.burst_us.is_none() && constant_us > CONSTANT_SHARE * single_us {
                format!("an empty call takes {constant_us:.0} of its {single_us:.0} us")
            } else if estimate.time_us < *floors_us.get(variant)? {
                format!(
                    "{:.1} us is less than writing the output takes",
                    estimate.time_us
                )
            } else {
                return None;
            };
            Some(JudgeError::Infrastructure {
                code: "noisy_machine",
                message: format!("a baseline cannot be measured: {what}"),
                hint: Some("stop other work on this machine and judge again".to_owned()),
            })
        })
    }

    pub(crate) fn is_quiet(&self) -> bool {
        let all = self.eager.iter().chain(self.compile.iter().flatten());
        all.map(|estimate| estimate.spread)
            .all(|spread| spread <= CACHED_SPREAD)
    }
}

/// What a baseline depends on; all of it names the file it is kept in.
pub(crate) struct BaselineKey<'a> {
    pub(crate) task_hash: &'a str,
    pub(crate) target: Target,
    pub(crate) device: &'a str,
    pub(crate) torch: &'a str,
    pub(crate) threads: usize,
    pub(crate) precision: Precision,
    pub(crate) mode: &'a str,
}

impl BaselineKey<'_> {
    pub(crate) fn file(&self, dir: &Path) -> PathBuf {
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("method {METHOD}\0").as_bytes());
        // An unoptimised supervisor samples slowly: its constant is another.
        hasher.update(&[u8::from(cfg!(debug_assertions))]);
        let parts = [
            self.task_hash,
            self.target.name(),
            self.device,
            self.torch,
            &self.threads.to_string(),
            match self.precision {
                Precision::Fp32 => "fp32",
                Precision::Tf32 => "tf32",
            },
            self.mode,
        ];
        for part in parts {
            hasher.update(part.as_bytes()).update(b"\0");
        }
        dir.join(format!("{}.json", &hasher.finalize().to_hex()[..32]))
    }
}

pub(crate) fn load(file: &PathBuf) -> Option<Baselines> {
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}

pub(crate) fn save(file: &PathBuf, baselines: &Baselines) -> Result<(), JudgeError> {
    let doing = || format!("keep the baseline `{}`", file.display());
    if let Some(parent) = file.parent() {
        fs::create_dir_all(parent).map_err(JudgeError::io(doing()))?;
    }
    let text = serde_json::to_vec(baselines)
        .map_err(|error| JudgeError::infrastructure("json", error.to_string()))?;
    let temporary = file.with_extension(format!("tmp{}", std::process::id()));
    fs::write(&temporary, text).map_err(JudgeError::io(doing()))?;
    fs::rename(&temporary, file).map_err(JudgeError::io(doing()))
}

/// Below this spread a baseline is not measured again.
const QUIET_SPREAD: f64 = 0.12;

/// Calls behind the gate, of eager mode and of nothing.
const GATED_CALLS: usize = 12;

/// Runs of a noisy baseline, and of one that others disturb.
const TRIES: usize = 2;
const CROWDED_TRIES: usize = 3;

/// What to measure.
pub(crate) struct BaselineRequest<'a> {
    pub(crate) source: &'a str,
    pub(crate) target: Target,
    pub(crate) threads: usize,
    pub(crate) precision: Precision,
    /// A mode of `torch.compile`, or `None` for eager alone.
    pub(crate) compile: Option<&'a str>,
}

/// Measures eager, compiled and the constant.
pub(crate) fn measure(
    process: &mut PythonProcess,
    trusted: &mut TrustedProcess,
    session: &mut Session,
    wanted: &BaselineRequest<'_>,
) -> Result<Baselines, JudgeError> {
    load_reference(process, session, wanted)?;
    let mut baselines = Baselines {
        regimes: session.regimes(),
        constant: Vec::new(),
        eager: Vec::new(),
        compile: None,
        compile_failure: None,
        raw_eager: Vec::new(),
        raw_compile: Vec::new(),
        reference_us: Vec::new(),
    };
    let mut compiled = Vec::new();
    for index in 0..session.loaded.variants.len() {
        let variant = session.variant(index).clone();
        let modules = json!({
            "outputs": variant.outputs, "tf32": wanted.precision == Precision::Tf32,
            "compile": wanted.compile.is_some() && baselines.compile_failure.is_none(), "mode": wanted.compile,
        });
        process.request("modules", modules, Duration::from_mins(1))?;
        prepare_inputs(
            process.channel(),
            &variant.inputs,
            session.loaded.mutates_inputs,
        )
        .map_err(|failure| call_error("prepare", failure))?;
        // A candidate's calls may follow other work than a baseline's: each has a constant of its own.
        let (care, of_nothing) = (session.baseline_outputs(index), session.null_outputs(index));
        let mut nothing = |care: OutputHandling| -> Result<CallOverhead, MeasurementError> {
            let waking = measure_module(process, trusted, session, ("null_single", care), index)?;
            if wanted.target == Target::Cpu {
                return Ok(timing::call_overhead(&waking, &waking)); // there is no device to wake
            }
            let bursts = measure_module(process, trusted, session, ("null", care), index)?;
            Ok(timing::call_overhead(&waking, &bursts))
        };
        let constant = nothing(of_nothing).map_err(|stopped| measurement_error("null", stopped))?;
        let own = if care == of_nothing {
            constant
        } else {
            nothing(care).map_err(|stopped| measurement_error("null", stopped))?
        };
        process.request(
            "drop",
            json!({ "modules": ["null", "null_single"] }),
            Duration::from_mins(1),
        )?;
        if wanted.target == Target::Cpu {
            let taken = trusted.reference_us(index)?;
            baselines.reference_us.push(taken);
        }
        let mut raw_of =
            |module: &str| measure_module(process, trusted, session, (module, care), index);
        let raw = raw_of("eager").map_err(|stopped| measurement_error("eager", stopped))?;
        baselines
            .eager
            .push(timing::estimate(&raw, &own, HonestGaps::ANY));
        baselines.raw_eager.push(raw);
        baselines.constant.push(constant);
        if wanted.compile.is_some() && baselines.compile_failure.is_none() {
            match raw_of("compile") {
                Ok(raw) => {
                    compiled.push(timing::estimate(&raw, &own, HonestGaps::ANY));
                    baselines.raw_compile.push(raw);
                }
                // A module that torch.compile cannot do is a fact about the task, not a failure of the judge.
                Err(MeasurementError::Call(failure)) => {
                    baselines.compile_failure = Some(describe(failure));
                }
                Err(stopped) => return Err(measurement_error("compile", stopped)),
            }
        }
    }
    if wanted.compile.is_some() && baselines.compile_failure.is_none() {
        baselines.compile = Some(compiled);
    }
    Ok(baselines)
}

fn load_reference(
    process: &mut PythonProcess,
    session: &mut Session,
    wanted: &BaselineRequest<'_>,
) -> Result<(), JudgeError> {
    let weights = session.loaded.weights_bytes;
    let (body, fds) = attach(&session.regions, weights, wanted.target, wanted.threads);
    let (attached, _) = process.request_with("attach", body, &fds, Duration::from_mins(2))?;
    session.regions.gate &= has_gate(&attached);
    let loaded = &session.loaded;
    let body = json!({ "source": wanted.source, "init": loaded.init, "state": loaded.state });
    process
        .request_with("reference", body, &[], Duration::from_mins(2))
        .map(drop)
}

fn measure_module(
    process: &mut PythonProcess,
    trusted: &mut TrustedProcess,
    session: &mut Session,
    (module, care): (&str, OutputHandling),
    variant: usize,
) -> Result<TimingSamples, MeasurementError> {
    let plan = MeasurementPlan {
        single_calls: session.baseline_singles(variant, care),
        bursts: match module {
            "null" => session.null_bursts(variant),
            "null_single" => session.waking_bursts(variant),
            _ => session.bursts(variant, Profile::Full),
        },
        gated_calls: match module {
            "null_single" | "eager" if session.is_gated(variant) => GATED_CALLS,
            _ => 0,
        },
        // Of the null module bursts alone are wanted.
        bursts_among: if module == "null" { 4 } else { usize::MAX },
        budget: Duration::from_secs(5),
        outputs: care,
        // Of the constant the quick calls count, which any core may give.
        rotate_cores: module == "null_single",
        sampled_intervals: 0,
    };
    // A noisy run is repeated and the quietest one counts: a baseline that was too slow would flatter every candidate.
    let mut best: Option<TimingSamples> = None;
    for turn in 0..CROWDED_TRIES {
        if turn >= TRIES && best.as_ref().is_some_and(|best| best.crowded_by.is_none()) {
            break;
        }
        let runner = &mut process.runner();
        let raw = session.measure(trusted, runner, module, variant, &plan, &|_| false)?;
        let calmer = best.as_ref().is_none_or(|best| {
            (raw.crowded_by.is_some(), raw.spread()) < (best.crowded_by.is_some(), best.spread())
        });
        let quiet = raw.spread() <= QUIET_SPREAD && raw.crowded_by.is_none();
        if calmer {
            best = Some(raw);
        }
        if quiet {
            break;
        }
    }
    let best =
        best.ok_or_else(|| JudgeError::infrastructure("baseline", "nothing was measured"))?;
    match best.crowded_by {
        Some(cores) => Err(JudgeError::crowded("a baseline", cores).into()),
        None => Ok(best),
    }
}

fn call_error(doing: &str, failure: CallFailure) -> JudgeError {
    match failure {
        CallFailure::Judge(error) => error,
        other => JudgeError::infrastructure(
            "baseline",
            format!("baseline, {doing}: {}", describe(other)),
        ),
    }
}

fn measurement_error(module: &str, stopped: MeasurementError) -> JudgeError {
    match stopped {
        MeasurementError::Judge(error) => error,
        MeasurementError::Call(failure) => call_error(module, failure),
        MeasurementError::Busy(waited) => JudgeError::infrastructure(
            "baseline",
            format!("the device was busy for {waited:.0} us"),
        ),
        MeasurementError::Comparison(check) => {
            JudgeError::infrastructure("baseline", format!("{module}: {}", check.message))
        }
    }
}

fn describe(failure: CallFailure) -> String {
    match failure {
        CallFailure::Channel(error) => error.to_string(),
        CallFailure::Structure(text) | CallFailure::Shared(text) => text,
        CallFailure::Judge(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(task_hash: &str) -> BaselineKey<'_> {
        BaselineKey {
            task_hash,
            target: Target::Cpu,
            device: "a",
            torch: "2.11",
            threads: 2,
            precision: Precision::Fp32,
            mode: "default",
        }
    }

    /// Everything a baseline depends on must name another file: a number from elsewhere is not comparable.
    #[test]
    fn each_part_of_a_key_names_another_file() {
        let dir = Path::new("/baselines");
        let keys = [
            key("one"),
            key("two"),
            BaselineKey {
                target: Target::Cuda,
                ..key("one")
            },
            BaselineKey {
                device: "b",
                ..key("one")
            },
            BaselineKey {
                torch: "2.12",
                ..key("one")
            },
            BaselineKey {
                threads: 4,
                ..key("one")
            },
            BaselineKey {
                precision: Precision::Tf32,
                ..key("one")
            },
            BaselineKey {
                mode: "eager only",
                ..key("one")
            },
        ];
        let files: std::collections::BTreeSet<PathBuf> =
            keys.iter().map(|key| key.file(dir)).collect();
        assert_eq!(files.len(), keys.len());
    }
}
