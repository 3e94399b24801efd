//! The judge's benchmark: how long judgements take on this machine. It asserts nothing.

mod busy;
mod crew;
mod rows;
mod work;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Instant, SystemTime};

use tempfile::TempDir;
use warpsmith_machine::{cpu, gpus};
use warpsmith_schema::{Failure, Profile, StageSeconds, Submission, Target, Task};

pub use self::rows::{BenchGoal, BenchRow, StageLatency};

use self::busy::Busy;
use self::crew::{Crew, Done, judge_one};
use self::rows::{quantile, stages};
use self::work::Work;
use crate::{Cancellation, JudgeConfig, JudgeError, Judged, LocalJudge};

/// Judges side by side where a GPU is what they share; on a CPU one compiling would disturb another's timing.
const CREW: usize = 4;

/// Edits, per form.
const EDITS: u32 = 3;
/// Judgements of one kernel.
const REPEATS: u32 = 10;
/// Rounds over the examples in `rl`; one in three is wrong.
const RL_ROUNDS: u32 = 3;

/// Rows that are measured together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BenchPart {
    /// A cold process and a new task.
    Cold,
    /// A kernel edited, per form.
    Edited,
    /// Throughput over our own examples, profile `full`.
    Full,
    /// Throughput over the tasks of [`BenchSource::solved_tasks`], profile `full`.
    Level1,
    /// One kernel again and again.
    Spread,
    /// Throughput with a third wrong, profile `rl`.
    Rl,
}

/// What is judged, and how a cold judgement is started: both belong to the program around this crate.
pub trait BenchSource {
    /// An embedded example and its solution.
    fn example(&self, name: &str, target: Target) -> Result<(Task, Submission), Failure>;

    /// Writes an example below `folder`. Gives its own folder.
    fn lay_out(&self, name: &str, folder: &Path) -> Result<PathBuf, Failure>;

    /// A process of its own that judges the example in this folder.
    fn judge_command(&self, example: &Path) -> Result<Command, Failure>;

    /// Tasks of a benchmark with a solution each, by name; `None` if there are none to be had.
    fn solved_tasks(&self) -> Result<Option<Vec<SolvedTask>>, Failure>;

    /// A line for the person who waits.
    fn note(&self, line: &str);
}

/// A task's name, the task, and a solution of it.
pub type SolvedTask = (String, Task, Submission);

/// What was measured.
#[derive(Debug, Clone)]
pub struct JudgeBenchmark {
    /// With its driver.
    pub device: String,
    pub cores: usize,
    /// Judgements that were made again because the machine was noisy.
    pub noisy: u32,
    pub rows: Vec<BenchRow>,
    pub stages: Vec<StageLatency>,
}

/// Measures these parts with judges like `config`, each with the profile it is about.
pub fn run(
    parts: &[BenchPart],
    config: &JudgeConfig,
    cancellation: &Cancellation,
    source: &dyn BenchSource,
) -> Result<JudgeBenchmark, JudgeError> {
    let target = config.target;
    let mut bench = Bench {
        source,
        config,
        cancellation,
        cuda: target == Target::Cuda,
        rows: Vec::new(),
        seconds: Vec::new(),
        noisy: 0,
        edits: 0,
    };
    let examples = Work::examples(target, source)?;

    let wants = |part| parts.contains(&part);
    if wants(BenchPart::Cold) {
        bench.say("a cold process, a new task");
        bench.cold(target)?;
    }
    // One judge alone, for what is not about throughput: others that start meanwhile would be in its way.
    let mut alone = start(config, Profile::Full)?;
    if wants(BenchPart::Edited) {
        for (form, name, goal) in [
            ("CUDA Agent form", "cuda_agent_form", 4.0),
            ("our form", "softmax", 2.0),
        ] {
            bench.say(&format!("a kernel edited, {form}"));
            let work = Work::example(name, target, source)?;
            bench.edited(&mut alone, &work, form, goal)?;
        }
    }
    if wants(BenchPart::Spread) {
        bench.say("one kernel again and again");
        for work in Work::of_several_sizes(target, source)? {
            bench.spread(&mut alone, &work)?;
        }
    }
    drop(alone);
    let mut crew = bench.crew(Profile::Full)?;
    if wants(BenchPart::Full) {
        bench.say("ten examples, profile full");
        bench.full(&mut crew, &examples, "ten examples of our own")?;
    }
    if wants(BenchPart::Level1) {
        let tasks = source.solved_tasks().map_err(JudgeError::Around)?;
        if let Some(tasks) = tasks {
            bench.say("level-1 tasks, profile full");
            let work: Vec<Work> = tasks.into_iter().map(Work::from).collect();
            let names: Vec<&str> = work.iter().map(|one| one.name.as_str()).collect();
            let names = names.join(", ");
            bench.full(&mut crew, &work, &names)?;
        }
    }
    drop(crew);
    if wants(BenchPart::Rl) {
        bench.say("ten examples, profile rl, a third of them wrong");
        let mut crew = bench.crew(Profile::Rl)?;
        bench.rl(&mut crew, &examples)?;
    }
    Ok(bench.report())
}

fn start(config: &JudgeConfig, profile: Profile) -> Result<LocalJudge, JudgeError> {
    LocalJudge::start(JudgeConfig {
        profile,
        ..config.clone()
    })
}

struct Bench<'a> {
    source: &'a dyn BenchSource,
    config: &'a JudgeConfig,
    cancellation: &'a Cancellation,
    cuda: bool,
    rows: Vec<BenchRow>,
    seconds: Vec<StageSeconds>,
    noisy: u32,
    edits: u32,
}

impl<'a> Bench<'a> {
    fn crew(&self, profile: Profile) -> Result<Crew<'a>, JudgeError> {
        let size = match self.config.target {
            Target::Cuda => CREW,
            Target::Cpu => 1,
        };
        let judges = (0..size).map(|_| start(self.config, profile));
        Ok(Crew::new(
            judges.collect::<Result<_, _>>()?,
            self.cancellation,
        ))
    }

    fn say(&self, what: &str) {
        self.source.note(&format!("measuring: {what}"));
    }

    /// Goals are for one H200 with 16 cores; elsewhere the numbers stand for themselves.
    fn row(&mut self, what: &str, value: f64, unit: &'static str, goal: BenchGoal, note: String) {
        // A run that is cut short has still said what it knew.
        self.source
            .note(&format!("  {what}: {value:.1} {unit} ({note})"));
        self.rows.push(BenchRow {
            what: what.to_owned(),
            value,
            unit,
            goal: self.cuda.then_some(goal),
            note,
        });
    }

    /// Another process of this program, and a task nobody has seen: other shapes, so that `torch.compile` has no answer
    /// ready either.
    fn cold(&mut self, target: Target) -> Result<(), JudgeError> {
        let folder = TempDir::with_prefix("warpsmith-example-")
            .map_err(JudgeError::io("make a folder for an example"))?;
        let around = JudgeError::Around;
        let example = self.source.lay_out("softmax", folder.path());
        let example = example.map_err(around)?;
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let rows = 2056 + 8 * (now.as_millis() % 500);
        replace(&example, "model.py", "2048, 4096", &format!("{rows}, 4096"))?;
        let kernel = match target {
            Target::Cuda => "kernels_cuda/softmax.cu",
            Target::Cpu => "kernels/softmax.cpp",
        };
        replace(&example, kernel, "\n", &format!(" // {}\n", now.as_nanos()))?;

        let begun = Instant::now();
        let mut command = self.source.judge_command(&example).map_err(around)?;
        let output = command
            .output()
            .map_err(JudgeError::io("start a cold judgement"))?;
        let took = begun.elapsed().as_secs_f64();
        let note = if output.status.success() {
            "softmax of a new shape, eager and `torch.compile` measured".to_owned()
        } else {
            format!("NOT PASSED: {}", output.status)
        };
        self.row(
            "one judgement, cold process, new task",
            took,
            "s",
            BenchGoal::AtMost(8.0),
            note,
        );
        Ok(())
    }

    fn edited(
        &mut self,
        judge: &mut LocalJudge,
        work: &Work,
        form: &str,
        goal: f64,
    ) -> Result<(), JudgeError> {
        self.one(judge, work)?;
        let mut took = Vec::new();
        for _ in 0..EDITS {
            took.push(self.edit(judge, work)?);
        }
        took.sort_by(f64::total_cmp);
        self.row(
            &format!("kernel edited, judged again in a running process, {form}"),
            quantile(&took, 0.5),
            "s",
            BenchGoal::AtMost(goal),
            format!("{}, median of {EDITS}", work.name),
        );
        Ok(())
    }

    /// The first round meets the tasks for the first time, the second is what counts.
    fn full(&mut self, crew: &mut Crew<'_>, work: &[Work], names: &str) -> Result<(), JudgeError> {
        let each = |work: Vec<Work>| work.into_iter().map(|one| vec![one]).collect();
        let begun = Instant::now();
        let found = crew.work(each(work.to_vec()))?;
        let first = per_minute(work.len(), begun);
        let mut refused = self.note(found);
        let edited = work.iter().map(|one| self.edited_anew(one)).collect();
        let busy = Busy::watch(self.cuda.then_some(self.config.device));
        let begun = Instant::now();
        let found = crew.work(each(edited))?;
        let rate = per_minute(work.len(), begun);
        let mut note = format!(
            "{names}; each edited, baselines known; {first:.1} the first time; {} side by side{}",
            crew.size(),
            busy.words()
        );
        refused.extend(self.note(found));
        if !refused.is_empty() {
            note.push_str("; NOT PASSED: ");
            note.push_str(&refused.join(", "));
        }
        self.row(
            "judgements/min, profile full",
            rate,
            "/min",
            BenchGoal::AtLeast(30.0),
            note,
        );
        Ok(())
    }

    fn rl(&mut self, crew: &mut Crew<'_>, work: &[Work]) -> Result<(), JudgeError> {
        // The processes start and the tasks' baselines are there, as in a training run that is under way.
        let found = crew.work(work.iter().map(|one| vec![one.clone()]).collect())?;
        self.note(found);
        let groups: Vec<Vec<Work>> = work
            .iter()
            .map(|one| {
                (0..RL_ROUNDS)
                    .map(|round| self.attempt(one, round))
                    .collect()
            })
            .collect();
        let busy = Busy::watch(self.cuda.then_some(self.config.device));
        let begun = Instant::now();
        let found = crew.work(groups)?;
        let rate = per_minute(found.len(), begun);
        let count = found.len();
        let wrong = found.iter().filter(|done| !done.judged.verdict.passed());
        let note = format!(
            "ten examples of our own, below 512 MB, {RL_ROUNDS} edits of each, the last one wrong; {} of {count} refused, {} \
             were wrong; {} side by side{}",
            wrong.count(),
            work.len(),
            crew.size(),
            busy.words()
        );
        self.note(found);
        self.row(
            "judgements/min, profile rl, a third wrong",
            rate,
            "/min",
            BenchGoal::AtLeast(120.0),
            note,
        );
        Ok(())
    }

    fn attempt(&mut self, work: &Work, round: u32) -> Work {
        let edited = self.edited_anew(work);
        if round == RL_ROUNDS - 1 {
            edited.wrong()
        } else {
            edited
        }
    }

    fn edited_anew(&mut self, work: &Work) -> Work {
        self.edits += 1;
        work.edited(self.edits)
    }

    /// Keeps the times of the stages; the names of what did not pass.
    fn note(&mut self, found: Vec<Done>) -> Vec<String> {
        let mut refused = Vec::new();
        for done in found {
            self.seconds.push(done.judged.verdict.seconds);
            self.noisy += done.noisy;
            if !done.judged.verdict.passed() {
                refused.push(done.name);
            }
        }
        refused
    }

    fn spread(&mut self, judge: &mut LocalJudge, work: &Work) -> Result<(), JudgeError> {
        let mut times = Vec::new();
        for _ in 0..REPEATS {
            let judged = self.one(judge, work)?;
            if let Some(found) = judged.verdict.times_us {
                times.push(found.candidate.0);
            }
        }
        times.sort_by(f64::total_cmp);
        let middle = quantile(&times, 0.5);
        let range = quantile(&times, 1.0) - quantile(&times, 0.0);
        let note = format!(
            "{}, largest less smallest of {} over the median, {middle:.1} us",
            work.name,
            times.len()
        );
        self.row(
            "same kernel ten times, spread",
            100.0 * range / middle,
            "%",
            BenchGoal::AtMost(2.0),
            note,
        );
        Ok(())
    }

    fn edit(&mut self, judge: &mut LocalJudge, work: &Work) -> Result<f64, JudgeError> {
        let edited = self.edited_anew(work);
        let begun = Instant::now();
        self.one(judge, &edited)?;
        Ok(begun.elapsed().as_secs_f64())
    }

    fn one(&mut self, judge: &mut LocalJudge, work: &Work) -> Result<Judged, JudgeError> {
        let done = judge_one(judge, work, self.cancellation)?;
        self.seconds.push(done.judged.verdict.seconds);
        self.noisy += done.noisy;
        Ok(done.judged)
    }

    fn report(self) -> JudgeBenchmark {
        let device = match gpus()
            .into_iter()
            .find(|gpu| self.cuda && gpu.index == self.config.device)
        {
            Some(gpu) => format!("{}, driver {}", gpu.name, gpu.driver),
            None => cpu().name,
        };
        JudgeBenchmark {
            device,
            cores: thread::available_parallelism().map_or(1, usize::from),
            noisy: self.noisy,
            stages: stages(&self.seconds),
            rows: self.rows,
        }
    }
}

fn per_minute(count: usize, begun: Instant) -> f64 {
    60.0 * count as f64 / begun.elapsed().as_secs_f64()
}

fn replace(example: &Path, file: &str, from: &str, to: &str) -> Result<(), JudgeError> {
    let path = example.join(file);
    let text = fs_err::read_to_string(&path).map_err(JudgeError::io("read an example"))?;
    let changed = text.replacen(from, to, 1);
    if changed == text {
        return Err(JudgeError::Config {
            code: "example",
            message: format!("the example's `{file}` has no `{from}` to change"),
            hint: None,
        });
    }
    fs_err::write(path, changed).map_err(JudgeError::io("edit an example"))
}
