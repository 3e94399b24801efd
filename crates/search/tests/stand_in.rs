//! A judge whose times follow from the source alone, and a task to search for.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::json;
use warpsmith_judge::profile::{Bound, OperatorTime, ProfileReport, ReferenceProfile, Roofline};
use warpsmith_judge::{CheckDepth, Judge, JudgeError};
use warpsmith_model::policy::{SamplingParams, ScriptPolicy};
use warpsmith_rollout::StopRequest;
use warpsmith_schema::{
    CountedAttempt, EpisodeMode, MatchedPrecision, Number, PlannedTask, PolicyVersion, Precision,
    Profile, RunHeader, Speedup, StageSeconds, Status, Submission, Target, Task, Times, Verdict,
};
use warpsmith_search::{
    SearchBudget, SearchError, SearchOutcome, SearchPlan, SearchPolicy, SearchResources,
    SearchStart, TokenPrice, search,
};
use warpsmith_store::RunFolder;

/// A kernel with parameters to tune; the judge below is quickest with tiles of 64, unrolled four times, by `dynamic`.
pub(crate) const KERNEL: &str = "constexpr int TILE = 16;\n#pragma omp parallel for schedule(static)\nfor (;;) {\n#pragma GCC unroll 1\nfor (;;) {}\n}\n";
pub(crate) const MODULE: &str = "import warpsmith_kernels\n";

#[derive(Clone, Default)]
pub(crate) struct StandIn {
    /// Every judgement, by hash of the submission.
    pub(crate) judged: Arc<Mutex<Vec<String>>>,
    /// From this judgement on the process is as good as dead: nothing is returned any more.
    pub(crate) dies_after: Option<u32>,
    pub(crate) count: Arc<AtomicU32>,
    /// As on a machine where nothing can be timed.
    pub(crate) fails: bool,
    /// Times of the finish are this many times longer than those before: the first were lucky.
    pub(crate) afresh: f64,
}

fn us(text: &str) -> f64 {
    let mut us = 100.0;
    for (part, factor) in [
        ("TILE = 32", 0.9),
        ("TILE = 64", 0.7),
        ("unroll 2", 0.95),
        ("unroll 4", 0.85),
        ("schedule(dynamic)", 0.8),
        ("num_threads(1)", 1.6),
        ("float4", 0.5),
    ] {
        if text.contains(part) {
            us *= factor;
        }
    }
    us
}

impl StandIn {
    fn verdict(submission: &Submission, factor: f64) -> Verdict {
        let mut all = String::new();
        for content in submission.files.values() {
            all.push_str(&String::from_utf8_lossy(content));
        }
        let status = if all.contains("broken") {
            Status::CompileFailed
        } else if all.contains("wrong") {
            Status::Mismatch
        } else {
            Status::Passed
        };
        let mut verdict =
            Verdict::unreached(status, Target::Cpu, Profile::Rl, "stand-in".to_owned());
        verdict.compiled = status != Status::CompileFailed;
        verdict.seconds = StageSeconds {
            compile: 1.0,
            verify: 0.5,
            time: 0.5,
            total: 2.0,
        };
        if status != Status::Passed {
            verdict.reason = Some(format!("error: it is {}", status.name()));
            verdict.progress.share_within_tolerance = Some(0.5);
            return verdict;
        }
        verdict.correct = true;
        let us = factor * us(&all);
        let speedup = Speedup {
            eager: Number(150.0 / us),
            compile: None,
        };
        verdict.times_us = Some(Times {
            candidate: Number(us),
            eager: Number(150.0),
            compile: None,
            spread: Number(0.01),
            samples: 100,
            single: Number(us),
            burst: None,
            constant: Number(1.0),
        });
        verdict.speedup = Some(speedup);
        verdict.matched_precision = Some(MatchedPrecision {
            mode: Precision::Fp32,
            eager_us: Number(150.0),
            compile_us: None,
            speedup,
        });
        verdict
    }
}

impl Judge for StandIn {
    fn survey(&mut self, _: &Task) -> Result<(), JudgeError> {
        Ok(())
    }

    fn judge(&mut self, _: &Task, submission: &Submission) -> Result<Verdict, JudgeError> {
        let number = self.count.fetch_add(1, Ordering::SeqCst);
        if self.dies_after.is_some_and(|last| number >= last) {
            return Err(JudgeError::Task {
                code: "killed".to_owned(),
                message: "killed".to_owned(),
            });
        }
        let says = |words: &str| {
            submission
                .files
                .values()
                .any(|text| String::from_utf8_lossy(text).contains(words))
        };
        if self.fails || says("machine fails") {
            return Err(JudgeError::Infrastructure {
                code: "noisy_machine",
                message: "noisy".to_owned(),
                hint: None,
            });
        }
        self.judged.lock().unwrap().push(submission.content_hash());
        Ok(Self::verdict(submission, 1.0))
    }

    fn judge_afresh(&mut self, _: &Task, submission: &Submission) -> Result<Verdict, JudgeError> {
        // A little noise that does not depend on the clock.
        let number = self.count.fetch_add(1, Ordering::SeqCst);
        let noise = 1.0 + 0.001 * f64::from(number % 3);
        Ok(Self::verdict(submission, self.afresh.max(1.0) * noise))
    }

    fn check(
        &mut self,
        _: &Task,
        _: &Submission,
        _: CheckDepth,
    ) -> Result<Option<Verdict>, JudgeError> {
        Ok(None)
    }

    fn profile(
        &mut self,
        task: &Task,
        _: Option<&Submission>,
    ) -> Result<ProfileReport, JudgeError> {
        Ok(ProfileReport {
            format: 1,
            task: task.name.clone(),
            target: Target::Cpu,
            device: "stand-in".to_owned(),
            torch: "2.11".to_owned(),
            reference: ReferenceProfile {
                operators: vec![OperatorTime {
                    name: "aten::sum".to_owned(),
                    calls: 1,
                    time_us: 150.0,
                    share: 1.0,
                    bytes: 1,
                    flops: 1,
                    gbps: 1.0,
                    gflops: 1.0,
                }],
                kernels: None,
                compile_kernels: None,
                compile_us: None,
                compile_why: None,
                total_us: 150.0,
                bytes: 1,
                min_bytes: 1,
                flops: 1,
                intensity: 1.0,
                bound: Bound::Memory,
                roofline: Roofline {
                    bandwidth_gbps: 1.0,
                    fp32_gflops: 1.0,
                    tf32_gflops: None,
                    half_gflops: None,
                    how: "stand-in".to_owned(),
                },
                floor_us: 30.0,
                headroom: 5.0,
            },
            solution: None,
        })
    }

    fn replacement(&self) -> Result<Box<dyn Judge>, JudgeError> {
        Ok(Box::new(self.clone()))
    }
}

pub(crate) fn plan(judgements: u32) -> SearchPlan {
    let task = Task::of_source("task", "# a task\n");
    let files = [("model_new.py", MODULE), ("kernels/k.cpp", KERNEL)];
    let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
    SearchPlan {
        target: Target::Cpu,
        seed: 7,
        islands: 2,
        migrate_every: 5,
        batch: 3,
        budget: SearchBudget {
            judgements: Some(judgements),
            time: None,
            dollars: None,
        },
        start: SearchStart {
            author: None,
            solutions: vec![("yours".to_owned(), files.into())],
        },
        sampling: SamplingParams::default(),
        finalists: 2,
        rounds: 3,
        head: RunHeader {
            verb: "evolve".to_owned(),
            resumed: false,
            policy: PolicyVersion {
                name: "script".to_owned(),
                hash: None,
                step: None,
            },
            target: Target::Cpu,
            device: "stand-in".to_owned(),
            mode: EpisodeMode::Single,
            profile: Profile::Rl,
            compile_mode: None,
            tasks: vec![PlannedTask::of(&task, None)],
            samples: judgements,
            counts: CountedAttempt::Best,
            scale: None,
            settings: BTreeMap::new(),
        },
        task: Arc::new(task),
    }
}

/// The lines of a script: what candidate of which number is told.
pub(crate) fn script(folder: &Path, name: &str, reply: impl Fn(u32) -> String) -> SearchPolicy {
    let lines: String = (1..=200)
        .map(|number| json!({ "text": reply(number), "sample": number }).to_string() + "\n")
        .collect();
    let path = folder.join(format!("{name}.jsonl"));
    fs_err::write(&path, lines).unwrap();
    SearchPolicy {
        name: name.to_owned(),
        policy: Arc::new(ScriptPolicy::open(&path).unwrap()),
        price: TokenPrice::default(),
    }
}

/// A reply with these words in its kernel.
pub(crate) fn whole(words: &str) -> String {
    format!(
        "write model_new.py\n```python\n{MODULE}```\n\nwrite kernels/k.cpp\n```cpp\n// {words}\nint {};\n```\n",
        words.replace(' ', "_")
    )
}

pub(crate) fn run(
    folder: &Path,
    plan: &SearchPlan,
    policies: Vec<SearchPolicy>,
    judge: &StandIn,
) -> Result<SearchOutcome, SearchError> {
    let folder = RunFolder::at(folder, &json!({ "verb": "evolve", "format": 2 })).unwrap();
    search(
        &folder,
        plan,
        SearchResources {
            policies,
            judges: vec![Box::new(judge.clone())],
            final_judge: &mut || Ok(Box::new(judge.clone())),
            stop: || StopRequest::Continue,
            on_progress: &mut |_| {},
        },
    )
}
