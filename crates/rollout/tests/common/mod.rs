//! A run without a judge and without a model: verdicts follow from what is submitted, replies from a script.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::json;
use warpsmith_agent::{PromptStyle, SingleSettings};
use warpsmith_judge::profile::{Bound, ProfileReport, ReferenceProfile, Roofline};
use warpsmith_judge::{CheckDepth, Judge, JudgeError};
use warpsmith_model::policy::{SamplingParams, ScriptPolicy, SharedPolicy};
use warpsmith_rollout::{EpisodeKind, RolloutPlan, RolloutResources, StopRequest};
use warpsmith_schema::{
    CountedAttempt, EpisodeMode, Number, PlannedTask, Profile, RunHeader, Speedup, Status,
    Submission, Target, Task, Times, Verdict,
};

pub(crate) fn task(number: u32) -> Task {
    Task {
        id: format!("task{number}"),
        name: format!("task{number}"),
        source: format!("# task {number}\n"),
        level: Some(1),
        problem_id: Some(number),
        origin: "a test".to_owned(),
        graph: None,
    }
}

/// What a test does when a judge is asked.
pub(crate) type Hook = Arc<dyn Fn() -> Result<(), JudgeError> + Send + Sync>;

/// How long a submission takes, in microseconds.
pub(crate) type TimeOf = Arc<dyn Fn(&Submission) -> f64 + Send + Sync>;

/// In place of the judge: passes what does not say that it is wrong, after a while, and notes every judgement in a file.
#[derive(Clone, Default)]
pub(crate) struct StandIn {
    pub(crate) takes: Duration,
    pub(crate) notes: Option<PathBuf>,
    pub(crate) on_judge: Option<Hook>,
    /// How long a submission takes; else what its hash says.
    pub(crate) times: Option<TimeOf>,
    /// Who goes on after a panic, if not one like this.
    pub(crate) replaced_by: Option<Box<StandIn>>,
}

/// A task may say that it is broken.
fn sound(task: &Task) -> Result<(), JudgeError> {
    if task.source.contains("broken") {
        return Err(JudgeError::Task {
            code: "broken".to_owned(),
            message: "it is broken".to_owned(),
        });
    }
    Ok(())
}

impl Judge for StandIn {
    fn survey(&mut self, task: &Task) -> Result<(), JudgeError> {
        sound(task)
    }

    fn judge(&mut self, task: &Task, submission: &Submission) -> Result<Verdict, JudgeError> {
        self.on_judge.as_ref().map_or(Ok(()), |hook| hook())?;
        sound(task)?;
        let hash = submission.content_hash();
        if let Some(notes) = &self.notes {
            let mut file = fs_err::File::options()
                .append(true)
                .create(true)
                .open(notes)
                .unwrap();
            writeln!(file, "{} {hash}", task.id).unwrap();
        }
        if !self.takes.is_zero() {
            thread::sleep(self.takes);
        }
        let us = self.times.as_ref().map(|times| times(submission));
        Ok(verdict(submission, &hash, us))
    }

    fn judge_afresh(
        &mut self,
        task: &Task,
        submission: &Submission,
    ) -> Result<Verdict, JudgeError> {
        self.judge(task, submission)
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
        Ok(profile(task))
    }

    fn replacement(&self) -> Result<Box<dyn Judge>, JudgeError> {
        let other = self.replaced_by.as_deref().unwrap_or(self);
        Ok(Box::new(other.clone()))
    }
}

/// Of a reference that takes no time at all.
fn profile(task: &Task) -> ProfileReport {
    ProfileReport {
        format: 1,
        task: task.name.clone(),
        target: Target::Cpu,
        device: "stand-in".to_owned(),
        torch: "2.11".to_owned(),
        reference: ReferenceProfile {
            operators: Vec::new(),
            kernels: None,
            compile_kernels: None,
            compile_us: None,
            compile_why: None,
            total_us: 0.0,
            bytes: 0,
            min_bytes: 0,
            flops: 0,
            intensity: 0.0,
            bound: Bound::Memory,
            roofline: Roofline {
                bandwidth_gbps: 1.0,
                fp32_gflops: 1.0,
                tf32_gflops: None,
                half_gflops: None,
                how: "stand-in".to_owned(),
            },
            floor_us: 0.0,
            headroom: 1.0,
        },
        solution: None,
    }
}

fn verdict(submission: &Submission, hash: &str, us: Option<f64>) -> Verdict {
    let mut texts = submission.files.values();
    let wrong = texts.any(|text| String::from_utf8_lossy(text).contains("wrong"));
    let status = if wrong {
        Status::Mismatch
    } else {
        Status::Passed
    };
    let mut verdict = Verdict::unreached(status, Target::Cpu, Profile::Rl, "stand-in".to_owned());
    verdict.compiled = true;
    verdict.correct = !wrong;
    if wrong {
        verdict.reason = Some("wrong values".to_owned());
        return verdict;
    }
    let usual = || 10.0 + f64::from(u32::from_str_radix(&hash[..4], 16).unwrap()) / 1e3;
    let us = us.unwrap_or_else(usual);
    verdict.times_us = Some(Times {
        candidate: Number(us),
        eager: Number(100.0),
        compile: None,
        spread: Number(0.01),
        samples: 100,
        single: Number(us),
        burst: None,
        constant: Number(1.0),
    });
    verdict.speedup = Some(Speedup {
        eager: Number(100.0 / us),
        compile: None,
    });
    verdict
}

/// A reply with these words in its kernel.
pub(crate) fn reply(words: &str) -> String {
    format!(
        "write model_new.py\n```python\nimport warpsmith_kernels\n```\n\nwrite kernels/k.cpp\n```cpp\n// {words}\n```\n"
    )
}

/// Every episode is wrong first and right then, and no two submit the same.
pub(crate) fn script(folder: &Path, tasks: u32, samples: u32) -> PathBuf {
    let mut lines = String::new();
    for task in 1..=tasks {
        for sample in 1..=samples {
            for words in ["wrong", "right"] {
                let text = reply(&format!("{words} {task} {sample}"));
                let line = json!({ "text": text, "task": format!("task{task}"), "sample": sample });
                lines += &(line.to_string() + "\n");
            }
        }
    }
    let path = folder.join("script.jsonl");
    fs_err::write(&path, lines).unwrap();
    path
}

pub(crate) fn plan(tasks: Vec<Task>, samples: u32, concurrency: usize) -> RolloutPlan {
    let planned = |task: &Task| PlannedTask::of(task, None);
    RolloutPlan {
        samples,
        kind: EpisodeKind::Single(SingleSettings {
            target: Target::Cpu,
            prompt: PromptStyle::Full,
            repairs: 2,
            deadline: None,
            sampling: SamplingParams::default(),
        }),
        concurrency,
        start: None,
        survey: false,
        left_out: Vec::new(),
        head: RunHeader {
            verb: "rollout".to_owned(),
            resumed: false,
            policy: warpsmith_schema::PolicyVersion {
                name: "script".to_owned(),
                hash: None,
                step: None,
            },
            target: Target::Cpu,
            device: "stand-in".to_owned(),
            mode: EpisodeMode::Single,
            profile: Profile::Rl,
            compile_mode: None,
            tasks: tasks.iter().map(planned).collect(),
            samples,
            counts: CountedAttempt::Best,
            scale: None,
            settings: BTreeMap::new(),
        },
        tasks: tasks.into_iter().map(Arc::new).collect(),
    }
}

/// A policy, and judges that a run borrows.
pub(crate) struct Resources {
    pub(crate) policy: Arc<dyn SharedPolicy>,
    pub(crate) judges: Vec<Box<dyn Judge>>,
    pub(crate) stop: fn() -> StopRequest,
}

impl Resources {
    pub(crate) fn lend(&mut self) -> RolloutResources<'_> {
        RolloutResources {
            policy: self.policy.clone(),
            judges: &mut self.judges,
            device_busy: Box::new(|| None),
            watch: None,
            stop: self.stop,
        }
    }
}

pub(crate) fn resources(policy: impl SharedPolicy + 'static, judges: Vec<StandIn>) -> Resources {
    let judge = |judge| Box::new(judge) as Box<dyn Judge>;
    Resources {
        policy: Arc::new(policy),
        judges: judges.into_iter().map(judge).collect(),
        stop: || StopRequest::Continue,
    }
}

pub(crate) fn scripted(path: &Path, judges: Vec<StandIn>) -> Resources {
    resources(ScriptPolicy::open(path).unwrap(), judges)
}
