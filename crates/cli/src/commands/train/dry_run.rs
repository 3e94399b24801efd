//! `--dry-run`: what a run would need of memory and time. Nothing is fetched, begun or written.

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::json;
use warpsmith_model::ModelConfig;
use warpsmith_schema::FORMAT;
use warpsmith_train::estimate::{self, Hardware, Memory, Networks, Seconds, Speeds, Work};

use super::learning::LearningSettings;
use crate::args::{Count, Positive};
use crate::exit::Exit;
use crate::failure::Stop;
use crate::language_model;
use crate::printer::Printer;

const HEADING: &str = "Dry run";

/// Each with its heading: a heading for all would go on over the verb's own flags.
#[derive(Debug, Args)]
pub(super) struct DryRunArgs {
    /// Print what this would need of memory and time, and start nothing
    #[arg(long, help_heading = HEADING)]
    pub(super) dry_run: bool,
    /// Whose measured speeds to estimate with
    #[arg(long, value_enum, default_value_t, requires = "dry_run", help_heading = HEADING)]
    estimate_for: Machine,
    /// Tokens trained a second, forward and backward; else as measured on that machine, by the size of the model
    #[arg(long, value_name = "X", requires = "dry_run", help_heading = HEADING)]
    estimate_train_tps: Option<Positive>,
    /// Tokens generated a second, all episodes together; else the same
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

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum Machine {
    /// Two cores of a shared virtual machine
    #[default]
    Cpu,
    /// One GPU of this kind
    H200,
}

/// A speed, and how it is known.
struct Speed {
    rate: f64,
    /// Of a model with so many weights: others are as much slower as they are larger.
    weights: Option<f64>,
    source: &'static str,
}

impl Speed {
    /// What was given wins.
    fn of(&self, given: Option<Positive>, weights: f64) -> f64 {
        let measured = self
            .weights
            .map_or(self.rate, |own| self.rate * own / weights);
        given.map_or(measured, f64::from)
    }

    fn source(&self, given: Option<Positive>) -> &'static str {
        given.map_or(self.source, |_| "as given")
    }
}

const SMOLLM: Option<f64> = Some(134.5e6);
/// Of the file, whose output layer is by itself.
const QWEN: Option<f64> = Some(1.777e9);

impl Machine {
    fn hardware(self) -> Hardware {
        match self {
            Self::Cpu => Hardware::Processor,
            Self::H200 => Hardware::Gpu,
        }
    }

    fn learn(self) -> Speed {
        match self {
            Self::Cpu => Speed {
                rate: 99.0,
                weights: SMOLLM,
                source: "assumed for the size of the model: two cores at 80 Gflop/s, six for each weight; not measured",
            },
            Self::H200 => Speed {
                rate: 352_076.0,
                weights: SMOLLM,
                source: "by the size of the model, from docs/results/training.md: full fine-tuning, 135M, 16 x 2048",
            },
        }
    }

    fn generate(self) -> Speed {
        match self {
            Self::Cpu => Speed {
                rate: 51.1,
                weights: QWEN,
                source: "by the size of the model, from docs/results/models.md: 16 replies at once, 1.5B, two cores",
            },
            Self::H200 => Speed {
                rate: 64.0 / 2.110e-3,
                weights: QWEN,
                source: "by the size of the model, from docs/results/models.md: 64 at once, 1.5B, 2.110 ms a step",
            },
        }
    }

    fn judge(self) -> Speed {
        match self {
            Self::Cpu => Speed {
                rate: 10.4,
                weights: None,
                source: "docs/results/judge.md: profile `rl`, two cores",
            },
            Self::H200 => Speed {
                rate: 87.7,
                weights: None,
                source: "docs/results/judge.md: profile `rl`, four judges",
            },
        }
    }
}

/// What is known before a run begins.
pub(super) struct Given<'a> {
    args: &'a DryRunArgs,
    config: ModelConfig,
    file_bytes: u64,
    pub(super) tasks: u64,
    pub(super) held_out: u64,
    pub(super) trajectories: u64,
}

/// One stage's.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Estimate {
    stage: &'static str,
    steps: u64,
    episodes: u64,
    work: Work,
    memory: Memory,
    bytes: u64,
    seconds: Seconds,
}

/// What a stage does, in its own words.
pub(super) struct Doing<'a> {
    pub(super) stage: &'static str,
    pub(super) steps: u64,
    /// That are played.
    pub(super) episodes: u64,
    pub(super) work: Work,
    /// For those that learn.
    pub(super) learning: Option<&'a LearningSettings>,
    pub(super) learners: u64,
    pub(super) frozen: u64,
    /// The most tokens of a sequence.
    pub(super) longest: u64,
    /// Conversations held at once.
    pub(super) conversations: u64,
}

impl DryRunArgs {
    /// Of a model that need not be here.
    pub(super) fn given(&self, model: &str) -> Result<Given<'_>, Stop> {
        let (config, file_bytes) = language_model::shape(model)?;
        Ok(Given {
            args: self,
            config,
            file_bytes,
            tasks: 0,
            held_out: 0,
            trajectories: 0,
        })
    }

    fn speeds(&self, weights: f64) -> Speeds {
        let machine = self.estimate_for;
        Speeds {
            learn: machine.learn().of(self.estimate_train_tps, weights),
            generate: machine.generate().of(self.estimate_generate_tps, weights),
            judge: machine
                .judge()
                .of(self.estimate_judgements_per_minute, weights),
        }
    }

    /// Where each speed is from.
    fn sources(&self) -> [&'static str; 3] {
        let machine = self.estimate_for;
        [
            machine.learn().source(self.estimate_train_tps),
            machine.generate().source(self.estimate_generate_tps),
            machine.judge().source(self.estimate_judgements_per_minute),
        ]
    }
}

impl Given<'_> {
    pub(super) fn prompt(&self) -> f64 {
        u32::from(self.args.prompt_tokens).into()
    }

    pub(super) fn reply(&self) -> f64 {
        u32::from(self.args.reply_tokens).into()
    }

    pub(super) fn estimate(&self, doing: &Doing<'_>) -> Estimate {
        let networks = Networks {
            learnt: doing.learning.map_or(0, |learning| {
                learning.tuning().trainable_weights(&self.config)
            }),
            config: self.config.clone(),
            learners: doing.learners,
            frozen: doing.frozen,
            tokens_per_microbatch: doing
                .learning
                .map_or(0, |learning| learning.tokens_per_microbatch() as u64),
            longest: doing.longest,
            conversations: doing.conversations,
            file_bytes: self.file_bytes,
        };
        let memory = networks.memory(self.args.estimate_for.hardware());
        Estimate {
            stage: doing.stage,
            steps: doing.steps,
            episodes: doing.episodes,
            work: doing.work,
            memory,
            bytes: memory.total(),
            seconds: doing.work.seconds(&self.speeds()),
        }
    }

    /// Of a stage that only plays, with the usual number of conversations at once.
    pub(super) fn played(&self, stage: &'static str, episodes: u64, replies: f64) -> Estimate {
        let longest = self.prompt() + replies * self.reply();
        self.estimate(&Doing {
            stage,
            steps: 0,
            episodes,
            work: Work {
                written_tokens: episodes as f64 * replies * self.reply(),
                judgements: episodes as f64 * (replies / 2.0).max(1.0),
                ..Work::default()
            },
            learning: None,
            learners: 0,
            frozen: 0,
            longest: longest as u64,
            conversations: 8,
        })
    }

    fn speeds(&self) -> Speeds {
        self.args.speeds(estimate::weights(&self.config) as f64)
    }

    pub(super) fn report(&self, all: &[Estimate], printer: &Printer) -> Result<Exit, Stop> {
        let (speeds, sources) = (self.speeds(), self.args.sources());
        let total: f64 = all.iter().map(|one| one.seconds.total).sum();
        let peak = all.iter().map(|one| one.bytes).max().unwrap_or_default();
        if printer.json() {
            let [learn, generate, judge] = sources;
            printer.object(&json!({
                "format": FORMAT, "dry_run": true, "estimated_for": self.args.estimate_for, "stages": all,
                "speeds": speeds, "sources": { "learn": learn, "generate": generate, "judge": judge },
                "assumed": { "prompt_tokens": self.prompt(), "reply_tokens": self.reply() },
                "seconds": total, "bytes": peak,
            }))?;
            return Ok(Exit::DONE);
        }
        let mut lines = vec![format!(
            "{:<12} {:>6} {:>9} {:>13} {:>13} {:>11} {:>10} {:>10}",
            "stage", "steps", "episodes", "learnt tok", "written tok", "judgements", "GiB", "time"
        )];
        for one in all {
            lines.push(format!(
                "{:<12} {:>6} {:>9} {:>13.0} {:>13.0} {:>11.0} {:>10.2} {:>10}",
                one.stage,
                one.steps,
                one.episodes,
                one.work.learnt_tokens,
                one.work.written_tokens,
                one.work.judgements,
                gib(one.bytes),
                clock(one.seconds.total),
            ));
        }
        lines.push(String::new());
        lines.push(format!(
            "{:<12} {:>9} {:>9} {:>11} {:>12} {:>9}",
            "GiB of", "weights", "learnt", "optimiser", "activations", "KV cache"
        ));
        for Estimate { stage, memory, .. } in all {
            lines.push(format!(
                "{stage:<12} {:>9.2} {:>9.2} {:>11.2} {:>12.2} {:>9.2}",
                gib(memory.weights),
                gib(memory.learnt),
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
                self.prompt(),
                self.reply()
            ),
        ]);
        printer.lines(&lines)?;
        Ok(Exit::DONE)
    }
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
