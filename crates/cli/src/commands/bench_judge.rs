//! `warpsmith bench-judge`: how long judgements take here. Prints a table; asserts nothing.

mod crew;
mod table;
mod work;

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use clap::{Args, ValueEnum};
use serde_json::json;
use warpsmith_judge::{Judged, LocalJudge};
use warpsmith_machine::gpu_clocks;
use warpsmith_sandbox::Isolation;
use warpsmith_schema::{FORMAT, Profile, StageSeconds, Target};

use crate::args::MachineArgs;
use crate::engine::{Engine, JudgingOptions};
use crate::examples::Laid;
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;
use crew::{Crew, Done, judge_one};
use table::{Goal, Row, markdown, quantile, stages};
use work::Work;

/// Measure how long judgements take on this machine
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct BenchJudgeArgs {
    /// `KernelBench`, for the level-1 tasks that `--solutions` has a solution for
    #[arg(long, value_name = "FILE", requires = "solutions")]
    tasks: Option<PathBuf>,
    /// A folder with `solutions.json` (task id to folder) and the folders
    #[arg(long, value_name = "DIR")]
    solutions: Option<PathBuf>,
    /// Which rows to measure
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Part::value_variants().to_vec())]
    parts: Vec<Part>,
    #[command(flatten)]
    machine: MachineArgs,
}

/// Rows that are measured together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A cold process and a new task
    Cold,
    /// A kernel edited, per form
    Edited,
    /// Throughput over our own examples, profile `full`
    Full,
    /// Throughput over the tasks of `--tasks`, profile `full`
    Level1,
    /// One kernel again and again
    Spread,
    /// Throughput with a third wrong, profile `rl`
    Rl,
}

/// Judges side by side where a GPU is what they share; on a CPU one compiling would disturb another's timing.
const CREW: usize = 4;

/// Edits, per form.
const EDITS: u32 = 3;
/// Judgements of one kernel.
const REPEATS: u32 = 10;
/// Rounds over the examples in `rl`; one in three is wrong.
const RL_ROUNDS: u32 = 3;

pub(crate) fn run(args: &BenchJudgeArgs, printer: &Printer) -> Result<Exit, Stop> {
    let engine = Engine::prepare(&args.machine, printer)?;
    let mut bench = Bench {
        printer,
        args,
        cuda: engine.target == Target::Cuda,
        rows: Vec::new(),
        seconds: Vec::new(),
        noisy: 0,
        edits: 0,
    };
    let examples = Work::examples(engine.target)?;

    let wants = |part| args.parts.contains(&part);
    if wants(Part::Cold) {
        bench.say("a cold process, a new task");
        bench.cold(engine.target)?;
    }
    // One judge alone, for what is not about throughput: others that start meanwhile would be in its way.
    let mut alone = start(&engine, Profile::Full)?;
    if wants(Part::Edited) {
        for (form, name, goal) in [
            ("CUDA Agent form", "cuda_agent_form", 4.0),
            ("our form", "softmax", 2.0),
        ] {
            bench.say(&format!("a kernel edited, {form}"));
            let work = Work::example(name, engine.target)?;
            bench.edited(&mut alone, &work, form, goal)?;
        }
    }
    if wants(Part::Spread) {
        bench.say("one kernel again and again");
        for work in Work::of_several_sizes(engine.target)? {
            bench.spread(&mut alone, &work)?;
        }
    }
    drop(alone);
    let mut crew = crew(&engine, Profile::Full)?;
    if wants(Part::Full) {
        bench.say("ten examples, profile full");
        bench.full(&mut crew, &examples, "ten examples of our own")?;
    }
    if wants(Part::Level1)
        && let (Some(tasks), Some(solutions)) = (&args.tasks, &args.solutions)
    {
        bench.say("level-1 tasks, profile full");
        let work = Work::kernelbench(tasks, solutions)?;
        let names: Vec<&str> = work.iter().map(|one| one.name.as_str()).collect();
        let names = names.join(", ");
        bench.full(&mut crew, &work, &names)?;
    }
    drop(crew);
    if wants(Part::Rl) {
        bench.say("ten examples, profile rl, a third of them wrong");
        bench.rl(&mut self::crew(&engine, Profile::Rl)?, &examples)?;
    }
    bench.report(&engine)
}

fn crew(engine: &Engine, profile: Profile) -> Result<Crew, Stop> {
    let size = match engine.target {
        Target::Cuda => CREW,
        Target::Cpu => 1,
    };
    let judges: Result<Vec<LocalJudge>, Stop> = (0..size).map(|_| start(engine, profile)).collect();
    Ok(Crew::new(judges?))
}

fn start(engine: &Engine, profile: Profile) -> Result<LocalJudge, Stop> {
    Ok(LocalJudge::start(engine.options(JudgingOptions {
        profile,
        isolation: Isolation::Strict,
        compile_mode: Some("default".to_owned()),
        seed: None,
    }))?)
}

struct Bench<'a> {
    printer: &'a Printer,
    args: &'a BenchJudgeArgs,
    cuda: bool,
    rows: Vec<Row>,
    seconds: Vec<StageSeconds>,
    noisy: u32,
    edits: u32,
}

impl Bench<'_> {
    fn say(&self, what: &str) {
        self.printer.note(&format!("measuring: {what}"));
    }

    /// Goals are for one H200 with 16 cores; elsewhere the numbers stand for themselves.
    fn row(&mut self, what: &str, value: f64, unit: &'static str, goal: Goal, note: String) {
        // A run that is cut short has still said what it knew.
        self.printer
            .note(&format!("  {what}: {value:.1} {unit} ({note})"));
        self.rows.push(Row {
            what: what.to_owned(),
            value,
            unit,
            goal: self.cuda.then_some(goal),
            note,
        });
    }

    /// Another process of this program, and a task nobody has seen: other shapes, so that `torch.compile` has no answer
    /// ready either.
    fn cold(&mut self, target: Target) -> Result<(), Stop> {
        let laid = Laid::out("softmax")?;
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let rows = 2056 + 8 * (now.as_millis() % 500);
        replace(&laid, "model.py", "2048, 4096", &format!("{rows}, 4096"))?;
        let kernel = match target {
            Target::Cuda => "kernels_cuda/softmax.cu",
            Target::Cpu => "kernels/softmax.cpp",
        };
        replace(&laid, kernel, "\n", &format!(" // {}\n", now.as_nanos()))?;

        let begun = Instant::now();
        let output = Command::new(std::env::current_exe()?)
            .arg("judge")
            .arg(laid.task())
            .args(["--json", "--quiet", "--target", target.name()])
            .args(["--device", &self.args.machine.device.to_string()])
            .output()?;
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
            Goal::AtMost(8.0),
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
    ) -> Result<(), Stop> {
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
            Goal::AtMost(goal),
            format!("{}, median of {EDITS}", work.name),
        );
        Ok(())
    }

    /// The first round meets the tasks for the first time, the second is what counts.
    fn full(&mut self, crew: &mut Crew, work: &[Work], names: &str) -> Result<(), Stop> {
        let each = |work: Vec<Work>| work.into_iter().map(|one| vec![one]).collect();
        let begun = Instant::now();
        let found = crew.work(each(work.to_vec()))?;
        let first = per_minute(work.len(), begun);
        let mut refused = self.note(found);
        let edited = work.iter().map(|one| self.edited_anew(one)).collect();
        let busy = Busy::watch(self.cuda.then_some(self.args.machine.device));
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
            Goal::AtLeast(30.0),
            note,
        );
        Ok(())
    }

    fn rl(&mut self, crew: &mut Crew, work: &[Work]) -> Result<(), Stop> {
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
        let busy = Busy::watch(self.cuda.then_some(self.args.machine.device));
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
            Goal::AtLeast(120.0),
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

    fn spread(&mut self, judge: &mut LocalJudge, work: &Work) -> Result<(), Stop> {
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
            Goal::AtMost(2.0),
            note,
        );
        Ok(())
    }

    fn edit(&mut self, judge: &mut LocalJudge, work: &Work) -> Result<f64, Stop> {
        let edited = self.edited_anew(work);
        let begun = Instant::now();
        self.one(judge, &edited)?;
        Ok(begun.elapsed().as_secs_f64())
    }

    fn one(&mut self, judge: &mut LocalJudge, work: &Work) -> Result<Judged, Stop> {
        let done = judge_one(judge, work)?;
        self.seconds.push(done.judged.verdict.seconds);
        self.noisy += done.noisy;
        Ok(done.judged)
    }

    fn report(&self, engine: &Engine) -> Result<Exit, Stop> {
        let device = match warpsmith_machine::gpus()
            .into_iter()
            .find(|gpu| self.cuda && gpu.index == self.args.machine.device)
        {
            Some(gpu) => format!("{}, driver {}", gpu.name, gpu.driver),
            None => warpsmith_machine::cpu().name,
        };
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let torch = &engine.python.torch.version;
        let noisy = self.noisy;
        let stages = stages(&self.seconds);
        if self.printer.json() {
            self.printer.object(&json!({
                "format": FORMAT, "version": env!("CARGO_PKG_VERSION"), "target": engine.target, "device": device,
                "cores": cores, "torch": torch, "judged_again_for_noise": noisy, "rows": self.rows, "stages": stages,
            }))?;
        } else {
            let title = format!(
                "Target {}, {device}, {cores} cores, torch {torch}; {noisy} judged again because the machine was noisy",
                engine.target.name()
            );
            self.printer.lines(&markdown(&title, &self.rows, &stages))?;
        }
        Ok(Exit::DONE)
    }
}

fn per_minute(count: usize, begun: Instant) -> f64 {
    60.0 * count as f64 / begun.elapsed().as_secs_f64()
}

fn replace(laid: &Laid, file: &str, from: &str, to: &str) -> Result<(), Stop> {
    let path = laid.task().join(file);
    let text = fs_err::read_to_string(&path)?;
    let changed = text.replacen(from, to, 1);
    if changed == text {
        let message = format!("the example's `{file}` has no `{from}` to change");
        return Err(Stop::config("example", message, None));
    }
    Ok(fs_err::write(path, changed)?)
}

/// Asks the driver now and then how busy the GPU is.
struct Busy {
    done: Arc<AtomicBool>,
    samples: Option<thread::JoinHandle<Vec<f64>>>,
}

impl Busy {
    fn watch(gpu: Option<u32>) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let samples = gpu.map(|gpu| {
            let done = Arc::clone(&done);
            thread::spawn(move || {
                let mut samples = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    samples.extend(gpu_clocks(gpu).and_then(|clocks| clocks.utilization_percent));
                    thread::sleep(Duration::from_secs(1));
                }
                samples
            })
        });
        Self { done, samples }
    }

    fn words(self) -> String {
        self.done.store(true, Ordering::Relaxed);
        let samples = self.samples.and_then(|thread| thread.join().ok());
        match samples.filter(|samples| !samples.is_empty()) {
            Some(samples) => {
                let mean = samples.iter().sum::<f64>() / samples.len() as f64;
                format!("; GPU busy {mean:.0} %")
            }
            None => String::new(),
        }
    }
}
