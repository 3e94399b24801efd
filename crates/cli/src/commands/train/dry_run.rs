//! `--dry-run`: what a run would need of memory and time. Nothing is fetched, begun or written.

use clap::{Args, ValueEnum};
use serde_json::json;
use warpsmith_model::ModelSource;
use warpsmith_schema::FORMAT;
use warpsmith_train::estimate::{EstimateMachine, GivenSpeeds, KnownBefore, StageEstimate};

use crate::args::{Count, Positive};
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;

const HEADING: &str = "Dry run";

/// Each with its heading: a heading for all would go on over the verb's own flags.
#[derive(Debug, Args)]
pub(super) struct DryRunArgs {
    /// Print what this would need of memory and time, and start nothing
    #[arg(long, help_heading = HEADING)]
    pub(super) dry_run: bool,
    /// Which machine's measured speeds to estimate with
    #[arg(long, value_enum, default_value_t, requires = "dry_run", help_heading = HEADING)]
    estimate_for: Machine,
    /// Tokens trained a second, forward and backward; else as measured on that machine, by the size of the model
    #[arg(long, value_name = "X", requires = "dry_run", help_heading = HEADING)]
    estimate_train_tps: Option<Positive>,
    /// Tokens generated a second, all episodes together
    #[arg(long, value_name = "X", requires = "dry_run", help_heading = HEADING)]
    estimate_generate_tps: Option<Positive>,
    /// Judgements a minute; else as measured on that machine
    #[arg(long, value_name = "X", requires = "dry_run", help_heading = HEADING)]
    estimate_judgements_per_minute: Option<Positive>,
    /// Tokens of a task's prompt
    #[arg(long, value_name = "N", default_value = "1200", requires = "dry_run", help_heading = HEADING)]
    prompt_tokens: Count,
    /// Tokens of a usual reply
    #[arg(long, value_name = "N", default_value = "600", requires = "dry_run", help_heading = HEADING)]
    reply_tokens: Count,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Machine {
    /// Two cores of a shared virtual machine
    #[default]
    Cpu,
    /// One GPU of this kind
    H200,
}

impl From<Machine> for EstimateMachine {
    fn from(machine: Machine) -> Self {
        match machine {
            Machine::Cpu => Self::Cpu,
            Machine::H200 => Self::H200,
        }
    }
}

impl DryRunArgs {
    /// Of a model that need not be here.
    pub(super) fn given(&self, model: &str) -> Result<KnownBefore, Stop> {
        let (config, file_bytes) = ModelSource::parse(model)?.shape()?;
        Ok(KnownBefore {
            config,
            file_bytes,
            machine: self.estimate_for.into(),
            speeds: GivenSpeeds {
                learn: self.estimate_train_tps.map(f64::from),
                generate: self.estimate_generate_tps.map(f64::from),
                judge: self.estimate_judgements_per_minute.map(f64::from),
            },
            prompt_tokens: u32::from(self.prompt_tokens).into(),
            reply_tokens: u32::from(self.reply_tokens).into(),
            tasks: 0,
            held_out: 0,
            trajectories: 0,
        })
    }
}

/// Prints what all stages would need.
pub(super) fn report(
    known: &KnownBefore,
    all: &[StageEstimate],
    printer: &Printer,
) -> Result<Exit, Stop> {
    let (speeds, sources) = (known.speeds(), known.sources());
    let total: f64 = all.iter().map(|one| one.seconds.total).sum();
    let peak = all.iter().map(|one| one.bytes).max().unwrap_or_default();
    if printer.json() {
        let [learn, generate, judge] = sources;
        printer.object(&json!({
            "format": FORMAT, "dry_run": true, "estimated_for": known.machine, "stages": all,
            "speeds": speeds, "sources": { "learn": learn, "generate": generate, "judge": judge },
            "assumed": { "prompt_tokens": known.prompt_tokens, "reply_tokens": known.reply_tokens },
            "seconds": total, "bytes": peak,
        }))?;
        return Ok(Exit::DONE);
    }
    let mut lines = vec![format!(
        "{:<12} {:>6} {:>9} {:>13} {:>13} {:>11} {:>10} {:>10}",
        "stage", "steps", "episodes", "trained tok", "generated tok", "judgements", "GiB", "time"
    )];
    for one in all {
        lines.push(format!(
            "{:<12} {:>6} {:>9} {:>13.0} {:>13.0} {:>11.0} {:>10.2} {:>10}",
            one.stage,
            one.steps,
            one.episodes,
            one.work.trained_tokens,
            one.work.generated_tokens,
            one.work.judgements,
            gib(one.bytes),
            clock(one.seconds.total),
        ));
    }
    lines.push(String::new());
    lines.push(format!(
        "{:<12} {:>9} {:>9} {:>11} {:>12} {:>9}",
        "GiB of", "weights", "trainable", "optimiser", "activations", "KV cache"
    ));
    for StageEstimate { stage, memory, .. } in all {
        lines.push(format!(
            "{stage:<12} {:>9.2} {:>9.2} {:>11.2} {:>12.2} {:>9.2}",
            gib(memory.weights),
            gib(memory.trainable),
            gib(memory.optimizer),
            gib(memory.activations),
            gib(memory.kv_cache),
        ));
    }
    lines.extend([
        String::new(),
        format!("all: {}, at most {:.2} GiB", clock(total), gib(peak)),
        format!("learning {:.0} tokens/s ({})", speeds.learn, sources[0]),
        format!("writing {:.0} tokens/s ({})", speeds.generate, sources[1]),
        format!("judging {:.1} a minute ({})", speeds.judge, sources[2]),
        format!(
            "prompts of {:.0} tokens and replies of {:.0} (assumed); every episode uses all its replies",
            known.prompt_tokens,
            known.reply_tokens
        ),
    ]);
    printer.lines(&lines)?;
    Ok(Exit::DONE)
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// Hours and minutes, or seconds where it is quick.
fn clock(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{}:{:02} min", whole / 60, whole % 60),
        _ => format!("{}:{:02} h", whole / 3600, whole % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_readable() {
        let shown = [0.4, 59.0, 61.0, 3599.6, 90_000.0].map(clock);
        assert_eq!(shown, ["0 s", "59 s", "1:01 min", "1:00 h", "25:00 h"]);
    }
}
