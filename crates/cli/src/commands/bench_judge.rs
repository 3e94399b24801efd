//! `warpsmith bench-judge`: how long judgements take here. Prints a table; asserts nothing.

mod table;
mod work;

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use serde_json::json;
use warpsmith_judge::{Judge, Judged};
use warpsmith_machine::gpu_clocks;
use warpsmith_sandbox::Isolation;
use warpsmith_schema::{FORMAT, Profile, Seconds, Target};

use crate::args::MachineArgs;
use crate::engine::{Engine, Manner};
use crate::examples::Laid;
use crate::exit::Exit;
use crate::failure::Stop;
use crate::interrupt;
use crate::printer::Printer;
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
    #[command(flatten)]
    machine: MachineArgs,
}

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

    bench.say("a cold process, a new task");
    bench.cold(engine.target)?;

    let mut judge = start(&engine, Profile::Full)?;
    for (form, name, goal) in [
        ("CUDA Agent form", "cuda_agent_form", 4.0),
        ("our form", "softmax", 2.0),
    ] {
        bench.say(&format!("a kernel edited, {form}"));
        bench.edited(&mut judge, &Work::example(name, engine.target)?, form, goal)?;
    }
    bench.say("ten examples, profile full");
    bench.full(&mut judge, &examples, "ten examples of our own")?;
    if let (Some(tasks), Some(solutions)) = (&args.tasks, &args.solutions) {
        bench.say("level-1 tasks, profile full");
        let work = Work::kernelbench(tasks, solutions)?;
        let names: Vec<&str> = work.iter().map(|one| one.name.as_str()).collect();
        let names = names.join(", ");
        bench.full(&mut judge, &work, &names)?;
    }
    bench.say("one kernel again and again");
    bench.spread(&mut judge, &Work::example("softmax", engine.target)?)?;
    drop(judge);

    bench.say("ten examples, profile rl, a third of them wrong");
    let mut judge = start(&engine, Profile::Rl)?;
    bench.rl(&mut judge, &examples)?;
    drop(judge);

    bench.report(&engine)
}

fn start(engine: &Engine, profile: Profile) -> Result<Judge, Stop> {
    Ok(Judge::start(engine.options(Manner {
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
    seconds: Vec<Seconds>,
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
        judge: &mut Judge,
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
    fn full(&mut self, judge: &mut Judge, work: &[Work], names: &str) -> Result<(), Stop> {
        let begun = Instant::now();
        let mut refused = Vec::new();
        for one in work {
            if !self.one(judge, one)?.verdict.passed() {
                refused.push(one.name.as_str());
            }
        }
        let first = per_minute(work.len(), begun);
        let busy = Busy::watch(self.cuda.then_some(self.args.machine.device));
        let begun = Instant::now();
        for one in work {
            self.edit(judge, one)?;
        }
        let rate = per_minute(work.len(), begun);
        let mut note = format!(
            "{names}; each edited, baselines known; {first:.1} the first time{}",
            busy.words()
        );
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

    fn rl(&mut self, judge: &mut Judge, work: &[Work]) -> Result<(), Stop> {
        // The processes start and the tasks' baselines are there, as in a training run that is under way.
        self.one(judge, &work[0])?;
        let busy = Busy::watch(self.cuda.then_some(self.args.machine.device));
        let begun = Instant::now();
        let mut caught = (0, 0);
        let mut count = 0;
        for one in work {
            for round in 0..RL_ROUNDS {
                self.edits += 1;
                let edited = one.edited(self.edits);
                let wrong = round == RL_ROUNDS - 1;
                let attempt = if wrong { edited.wrong() } else { edited };
                let passed = self.one(judge, &attempt)?.verdict.passed();
                caught.0 += u32::from(passed != wrong);
                caught.1 += 1;
                count += 1;
            }
        }
        let rate = per_minute(count, begun);
        let note = format!(
            "ten examples of our own, below 512 MB, {RL_ROUNDS} edits of each, the last one wrong; {}/{} sorted right{}",
            caught.0,
            caught.1,
            busy.words()
        );
        self.row(
            "judgements/min, profile rl, a third wrong",
            rate,
            "/min",
            Goal::AtLeast(120.0),
            note,
        );
        Ok(())
    }

    fn spread(&mut self, judge: &mut Judge, work: &Work) -> Result<(), Stop> {
        let mut times = Vec::new();
        for _ in 0..REPEATS {
            if let Some(found) = self.one(judge, work)?.verdict.times_us {
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

    fn edit(&mut self, judge: &mut Judge, work: &Work) -> Result<f64, Stop> {
        self.edits += 1;
        let edited = work.edited(self.edits);
        let begun = Instant::now();
        self.one(judge, &edited)?;
        Ok(begun.elapsed().as_secs_f64())
    }

    fn one(&mut self, judge: &mut Judge, work: &Work) -> Result<Judged, Stop> {
        let mut tries = 0;
        loop {
            let result = judge.judge(&work.task, &work.submission);
            if interrupt::happened() {
                return Err(Stop::interrupted());
            }
            match result {
                Ok(judged) => {
                    self.seconds.push(judged.verdict.seconds);
                    return Ok(judged);
                }
                Err(error) if error.failure().code == "noisy_machine" && tries < 3 => {
                    tries += 1;
                    self.noisy += 1;
                }
                Err(error) => return Err(error.into()),
            }
        }
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
                    samples.extend(gpu_clocks(gpu).and_then(|clocks| clocks.utilisation));
                    thread::sleep(Duration::from_millis(200));
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
