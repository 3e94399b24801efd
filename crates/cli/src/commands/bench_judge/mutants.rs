//! `warpsmith bench-judge --mutants`: what share of the wrong variants of a set's tasks the judge refuses.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use warpsmith_compiler::GraphMutants;
use warpsmith_judge::{Cancellation, KillCount, KillRate, LocalJudge, MutantFate};
use warpsmith_schema::{FORMAT, FailureKind, MutantKind, Task};
use warpsmith_tasks::{capture, load_all, scaled};

use super::BenchJudgeArgs;
use crate::engine::Engine;
use crate::exit::Exit;
use crate::failure::Stop;
use crate::interrupt;
use crate::printer::Printer;

/// What was found over all tasks.
#[derive(Default)]
struct Tally {
    kinds: BTreeMap<MutantKind, KillCount>,
    measured: u32,
    /// Tasks that nothing was measured of, and why.
    left_out: Vec<(String, String)>,
    survivors: Vec<Value>,
    equivalents: BTreeMap<String, u32>,
    broken: Vec<String>,
    seconds: f64,
}

pub(super) fn run(
    args: &BenchJudgeArgs,
    file: &Path,
    engine: &Engine,
    mut judge: LocalJudge,
    printer: &Printer,
) -> Result<Exit, Stop> {
    judge = judge.cancelled_by(Cancellation::when(interrupt::happened));
    let tasks = chosen(load_all(file)?, args);
    let begun = Instant::now();
    let mut tally = Tally::default();
    for (number, task) in tasks.iter().enumerate() {
        tally.add(task, measured(task, engine, &mut judge))?;
        printer.note(&format!(
            "{} of {}: {}, {:.0} s",
            number + 1,
            tasks.len(),
            task.id,
            begun.elapsed().as_secs_f64()
        ));
    }
    if printer.json() {
        printer.object(&tally.json())?;
    } else {
        printer.lines(&tally.table())?;
    }
    Ok(Exit::DONE)
}

/// As many tasks as are wanted, the same for the same seed, with smaller shapes if that is wanted.
fn chosen(mut tasks: Vec<Task>, args: &BenchJudgeArgs) -> Vec<Task> {
    if let Some(limit) = args.limit {
        let rank =
            |task: &Task| *blake3::hash(format!("{} {}", args.seed, task.id).as_bytes()).as_bytes();
        tasks.sort_by_key(rank);
        tasks.truncate(u32::from(limit) as usize);
        tasks.sort_by(|one, other| one.id.cmp(&other.id));
    }
    match args.scale {
        Some(by) => tasks.iter().map(|task| scaled(task, by.into())).collect(),
        None => tasks,
    }
}

fn measured(task: &Task, engine: &Engine, judge: &mut LocalJudge) -> Result<KillRate, Stop> {
    let graph = match &task.graph {
        Some(graph) => graph.clone(),
        None => capture(task, &engine.python, &engine.caches)?,
    };
    Ok(judge.kill_rate(task, &graph, &GraphMutants)?)
}

impl Tally {
    fn add(&mut self, task: &Task, found: Result<KillRate, Stop>) -> Result<(), Stop> {
        let rate = match found {
            Ok(rate) => rate,
            // A task that cannot be judged here says nothing about the judge.
            Err(stop) if stop.0.kind == FailureKind::Task => {
                self.left_out.push((task.id.clone(), stop.0.code.clone()));
                return Ok(());
            }
            Err(stop) => return Err(stop),
        };
        if let Some(objection) = rate.objection {
            self.left_out.push((task.id.clone(), objection));
            return Ok(());
        }
        if !rate.complete {
            self.left_out
                .push((task.id.clone(), "it took too long".to_owned()));
            return Ok(());
        }
        self.measured += 1;
        self.seconds += rate.seconds;
        for (kind, count) in rate.by_kind() {
            self.kinds.entry(kind).or_default().add(count);
        }
        for mutant in &rate.mutants {
            match &mutant.fate {
                MutantFate::Survived { near, identical } => match &mutant.equivalent {
                    Some(reason) => *self.equivalents.entry(reason.clone()).or_default() += 1,
                    None => self.survivors.push(json!({
                        "task": task.id, "kind": mutant.kind, "place": mutant.place, "what": mutant.what,
                        "near": near, "identical": identical,
                    })),
                },
                MutantFate::Broken { message } => {
                    self.broken.push(format!("{}: {}: {message}", task.id, mutant.what));
                }
                MutantFate::Killed { .. } => {}
            }
        }
        Ok(())
    }

    fn all(&self) -> KillCount {
        let mut all = KillCount::default();
        self.kinds.values().for_each(|count| all.add(*count));
        all
    }

    fn json(&self) -> Value {
        let row = |count: &KillCount| json!({ "counts": count, "rate": count.rate() });
        let kinds: BTreeMap<&str, Value> = self
            .kinds
            .iter()
            .map(|(kind, count)| (kind.name(), row(count)))
            .collect();
        json!({
            "format": FORMAT, "version": env!("CARGO_PKG_VERSION"), "tasks": self.measured, "kinds": kinds, "all": row(&self.all()),
            "survivors": self.survivors, "equivalents": self.equivalents, "broken": self.broken,
            "left_out": self.left_out, "seconds": self.seconds,
        })
    }

    fn table(&self) -> Vec<String> {
        let mut lines = vec![
            format!(
                "{} tasks, {:.1} s each; {} left out",
                self.measured,
                self.seconds / f64::from(self.measured.max(1)),
                self.left_out.len()
            ),
            String::new(),
            "| mistake | mutants | killed | rate | equivalent |".to_owned(),
            "|---|---|---|---|---|".to_owned(),
        ];
        let row = |name: &str, count: KillCount| {
            let rate = count
                .rate()
                .map_or_else(|| "-".to_owned(), |rate| format!("{:.1} %", 100.0 * rate));
            format!(
                "| {name} | {} | {} | {rate} | {} |",
                count.killed + count.survived,
                count.killed,
                count.equivalent
            )
        };
        lines.extend(
            self.kinds
                .iter()
                .map(|(kind, count)| row(kind.name(), *count)),
        );
        lines.push(row("all", self.all()));
        lines.push(String::new());
        lines.extend(
            self.equivalents
                .iter()
                .map(|(reason, count)| format!("equivalent, {count}: {reason}")),
        );
        lines.extend(self.survivors.iter().map(|survivor| {
            let text = |name: &str| survivor[name].as_str().unwrap_or_default().to_owned();
            format!(
                "survived: {} {}: {}",
                text("task"),
                text("kind"),
                text("what")
            )
        }));
        lines.extend(
            self.broken
                .iter()
                .map(|broken| format!("cannot be computed: {broken}")),
        );
        lines.extend(
            self.left_out
                .iter()
                .map(|(task, reason)| format!("left out: {task}: {reason}")),
        );
        lines
    }
}
