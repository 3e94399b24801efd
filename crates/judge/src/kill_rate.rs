//! How many wrong variants of a task the checks before timing refuse.
//!
//! A mutant of the task's graph is interpreted by the trusted process, which never runs a candidate, on draws like a
//! judgement's, and compared as a candidate's outputs are. It is measured on demand and kept with the task: judgements only
//! look it up. Timed calls, which are compared too, do not count.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs_err as fs;
use serde::{Deserialize, Serialize};
use serde_json::json;
use warpsmith_schema::{
    MUTANTS_VERSION, Mutant, MutantKind, Mutants, OpGraph, Profile, Target, Task,
};

use crate::JudgeError;
use crate::judge::{Supervisor, check_plan, task_hash};
use crate::trusted::MutantReports;

/// For one task. Where it is not enough nothing is kept.
const LIMIT: Duration = Duration::from_mins(10);

/// What became of a task's mutants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KillRate {
    pub mutants: Vec<TriedMutant>,
    /// Why nothing was measured: the graph does not compute what the task does.
    pub objection: Option<String>,
    /// Whether all mutants were tried on all draws.
    pub complete: bool,
    pub seconds: f64,
}

/// A mutant and its end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TriedMutant {
    pub kind: MutantKind,
    /// The value of the graph that it computes otherwise.
    pub place: usize,
    pub what: String,
    /// Why no input can tell it from the original, where the graph says so.
    pub equivalent: Option<String>,
    pub fate: MutantFate,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "snake_case")]
pub enum MutantFate {
    /// Refused on a draw of this transform.
    Killed { transform: String },
    /// It passed every check. `near` is its largest error over the limit, `identical` that every bit was the original's.
    Survived { near: f64, identical: bool },
    /// It cannot be computed.
    Broken { message: String },
}

/// How many of one kind ended how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct KillCount {
    pub killed: u32,
    pub survived: u32,
    /// They survived, and the graph says why nothing can kill them.
    pub equivalent: u32,
    /// They cannot be computed, and count as nothing.
    pub broken: u32,
}

impl KillCount {
    /// Of those that something could kill.
    pub fn rate(self) -> Option<f64> {
        let counted = self.killed + self.survived;
        (counted > 0).then(|| f64::from(self.killed) / f64::from(counted))
    }

    pub fn add(&mut self, other: Self) {
        self.killed += other.killed;
        self.survived += other.survived;
        self.equivalent += other.equivalent;
        self.broken += other.broken;
    }

    fn of(mutant: &TriedMutant) -> Self {
        let mut count = Self::default();
        match &mutant.fate {
            MutantFate::Killed { .. } => count.killed = 1,
            MutantFate::Broken { .. } => count.broken = 1,
            MutantFate::Survived { .. } if mutant.equivalent.is_some() => count.equivalent = 1,
            MutantFate::Survived { .. } => count.survived = 1,
        }
        count
    }
}

impl KillRate {
    /// The share that the verdict carries; none where nothing or not everything was measured.
    pub fn rate(&self) -> Option<f64> {
        let measured = self.objection.is_none() && self.complete;
        measured.then(|| self.count().rate()).flatten()
    }

    pub fn count(&self) -> KillCount {
        let mut all = KillCount::default();
        self.mutants
            .iter()
            .for_each(|mutant| all.add(KillCount::of(mutant)));
        all
    }

    pub fn by_kind(&self) -> BTreeMap<MutantKind, KillCount> {
        let mut found: BTreeMap<MutantKind, KillCount> = BTreeMap::new();
        for mutant in &self.mutants {
            found
                .entry(mutant.kind)
                .or_default()
                .add(KillCount::of(mutant));
        }
        found
    }

    fn of(mutants: Vec<Mutant>, reports: MutantReports) -> Self {
        let tried = mutants
            .into_iter()
            .zip(reports.trials)
            .map(|(mutant, trial)| TriedMutant {
                kind: mutant.kind,
                place: mutant.place,
                what: mutant.what,
                equivalent: mutant.equivalent,
                fate: match (trial.broken, trial.killed_by) {
                    (Some(message), _) => MutantFate::Broken { message },
                    (None, Some(transform)) => MutantFate::Killed { transform },
                    (None, None) => MutantFate::Survived {
                        near: trial.near,
                        identical: trial.identical,
                    },
                },
            });
        Self {
            mutants: tried.collect(),
            objection: (!reports.faithful).then_some(reports.message),
            complete: reports.complete,
            seconds: reports.seconds,
        }
    }
}

/// All that a rate depends on but the machine: draws are the harness's, mistakes the compiler's.
struct KillRateKey<'a> {
    task_hash: &'a str,
    target: Target,
    torch: &'a str,
    harness: &'a Path,
}

impl KillRateKey<'_> {
    fn file(&self, dir: &Path) -> PathBuf {
        let mut hasher = blake3::Hasher::new();
        let harness = self
            .harness
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        for part in [
            self.task_hash,
            self.target.name(),
            self.torch,
            &harness,
            &MUTANTS_VERSION.to_string(),
        ] {
            hasher.update(part.as_bytes()).update(b"\0");
        }
        dir.join(format!("{}.json", &hasher.finalize().to_hex()[..32]))
    }
}

impl Supervisor {
    fn kill_rate_file(&self, task: &Task) -> PathBuf {
        let key = KillRateKey {
            task_hash: &task_hash(task),
            target: self.config().target,
            torch: &self.config().python.torch.version,
            harness: self.harness_dir(),
        };
        key.file(&self.config().caches.kill_rates())
    }

    /// What was measured before of this task, by these draws.
    pub(crate) fn known_kill_rate(&self, task: &Task) -> Option<KillRate> {
        serde_json::from_slice(&fs::read(self.kill_rate_file(task)).ok()?).ok()
    }

    /// Tries every mutant of the task's graph, unless that is known.
    pub(crate) fn kill_rate(
        &mut self,
        task: &Task,
        graph: &OpGraph,
        mutants: &dyn Mutants,
    ) -> Result<KillRate, JudgeError> {
        if let Some(known) = self.known_kill_rate(task) {
            return Ok(known);
        }
        let mutants = mutants.of(graph);
        let lease = self.load_for_mutants(task)?;
        let (session, trusted) = self.session_and_trusted()?;
        // The profile with the fewest: every judgement makes these.
        let checks = check_plan(Profile::Verify, &session.loaded);
        let told: Vec<_> = mutants
            .iter()
            .map(|mutant| json!({"graph": mutant.graph, "stale": mutant.stale}))
            .collect();
        let body = json!({
            "graph": graph, "mutants": told, "checks": checks, "seed": session.seed, "limit_s": LIMIT.as_secs_f64(),
        });
        let reports = trusted.mutants(body, 2 * LIMIT)?;
        self.let_go(lease)?;
        let rate = KillRate::of(mutants, reports);
        if rate.complete {
            self.keep_kill_rate(task, &rate)?;
        }
        Ok(rate)
    }

    fn keep_kill_rate(&self, task: &Task, rate: &KillRate) -> Result<(), JudgeError> {
        let file = self.kill_rate_file(task);
        let doing = || format!("keep the kill rate `{}`", file.display());
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder).map_err(JudgeError::io(doing()))?;
        }
        let text = serde_json::to_vec(rate)
            .map_err(|error| JudgeError::infrastructure("json", error.to_string()))?;
        let temporary = file.with_extension(format!("tmp{}", std::process::id()));
        fs::write(&temporary, text).map_err(JudgeError::io(doing()))?;
        fs::rename(&temporary, &file).map_err(JudgeError::io(doing()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(fate: MutantFate, equivalent: Option<&str>) -> TriedMutant {
        TriedMutant {
            kind: MutantKind::TailCut,
            place: 0,
            what: String::new(),
            equivalent: equivalent.map(str::to_owned),
            fate,
        }
    }

    #[test]
    fn a_rate_counts_what_could_be_killed() {
        let killed = || MutantFate::Killed {
            transform: "plain".to_owned(),
        };
        let survived = || MutantFate::Survived {
            near: 0.5,
            identical: false,
        };
        let broken = MutantFate::Broken {
            message: String::new(),
        };
        let mut rate = KillRate {
            mutants: vec![
                tried(killed(), None),
                // The reason was wrong: it is no excuse, and the mutant counts.
                tried(killed(), Some("a reason")),
                tried(survived(), None),
                tried(survived(), Some("a reason")),
                tried(broken, None),
            ],
            objection: None,
            complete: true,
            seconds: 1.0,
        };
        assert_eq!(
            rate.count(),
            KillCount {
                killed: 2,
                survived: 1,
                equivalent: 1,
                broken: 1
            }
        );
        assert_eq!(rate.rate(), Some(2.0 / 3.0));
        rate.complete = false;
        assert_eq!(rate.rate(), None);
        rate.complete = true;
        rate.objection = Some("another graph".to_owned());
        assert_eq!(rate.rate(), None);
    }
}
