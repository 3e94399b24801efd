//! From a base model to an agent, stage after stage. Each stage is a run of its own in the pipeline's folder.

mod gate;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use warpsmith_schema::Failure;
use warpsmith_store::{EventLog, RunFolder};

pub use self::gate::{GateThresholds, PipelineGate};

use super::learning::TrainedRun;
use crate::TrainError;
use crate::error::NOTHING_REWARDED;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PipelineStage {
    /// A teacher's replies are learnt.
    Sft,
    /// Whether that is enough for trying to teach anything.
    Gate,
    /// PPO on single replies.
    SingleTurn,
    /// What came of it plays.
    Collect,
    /// The actor learns from the best of that,
    Rft,
    /// a critic from all of it.
    Value,
    /// PPO on whole episodes of the agent.
    Agentic,
}

impl PipelineStage {
    pub const ALL: [Self; 7] = [
        Self::Sft,
        Self::Gate,
        Self::SingleTurn,
        Self::Collect,
        Self::Rft,
        Self::Value,
        Self::Agentic,
    ];

    /// Of its folder and of its table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sft => "sft",
            Self::Gate => "gate",
            Self::SingleTurn => "single_turn",
            Self::Collect => "collect",
            Self::Rft => "rft",
            Self::Value => "value",
            Self::Agentic => "agentic",
        }
    }

    /// Whether a model is trained in it.
    pub fn trains(self) -> bool {
        !matches!(self, Self::Gate | Self::Collect)
    }

    /// Whether something is judged in it.
    pub fn judges(self) -> bool {
        !matches!(self, Self::Sft | Self::Rft | Self::Value)
    }
}

/// Which stages are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an ablation of its own"
)]
pub struct PipelineSwitches {
    pub no_sft: bool,
    pub no_single_turn: bool,
    pub no_rft: bool,
    pub no_value: bool,
    /// Whether there are tasks that a gate can look at.
    pub has_validation: bool,
}

impl PipelineSwitches {
    pub fn stages(&self) -> Vec<PipelineStage> {
        let wanted = |stage: &PipelineStage| match stage {
            PipelineStage::Sft => !self.no_sft,
            PipelineStage::Gate => !self.no_sft && self.has_validation,
            PipelineStage::SingleTurn => !self.no_single_turn,
            PipelineStage::Collect => !(self.no_rft && self.no_value),
            PipelineStage::Rft => !self.no_rft,
            PipelineStage::Value => !self.no_value,
            PipelineStage::Agentic => true,
        };
        PipelineStage::ALL.into_iter().filter(wanted).collect()
    }
}

/// A stage that came to its end: a line of `stages.jsonl`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DoneStage {
    pub stage: PipelineStage,
    /// What the next stage begins with.
    pub model: String,
    /// What came of it.
    pub result: Value,
}

/// Runs single stages, each with a model.
pub trait StageRunner {
    /// Plays the validation tasks, and gives the run's folder.
    fn play_gate(&self, model: &str) -> Result<PathBuf, Failure>;

    /// Plays the tasks, and gives the run's folder.
    fn collect(&self, model: &str) -> Result<PathBuf, Failure>;

    fn learn(&self, stage: PipelineStage, model: &str) -> Result<TrainedRun, Failure>;

    /// For the person who waits.
    fn say(&self, stage: PipelineStage, words: &str);
}

/// Which checkpoint of a stage the next one goes on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoOnFrom {
    Last,
    /// On what is held out, where something is.
    Best,
}

#[derive(Debug, Clone)]
pub struct PipelineRun<'a> {
    pub stages: Vec<PipelineStage>,
    /// What the first stage begins with.
    pub model: &'a str,
    pub folder: &'a RunFolder,
    pub gate: GateThresholds,
    pub ignore_gates: bool,
    pub go_on_from: GoOnFrom,
}

/// How far it came.
#[derive(Debug, Clone)]
pub struct PipelineOutcome {
    pub done: Vec<DoneStage>,
    /// The gate that was not passed.
    pub stopped_by: Option<PipelineGate>,
    /// What the last stage left.
    pub model: String,
}

const DONE: &str = "stages";
const GATE_HINT: &str = "more of a teacher's trajectories may help, in another run; `--ignore-gates` goes on with this one";

impl PipelineRun<'_> {
    /// What is done is not repeated, what was stopped goes on where it was.
    pub fn run(&self, runner: &dyn StageRunner) -> Result<PipelineOutcome, TrainError> {
        let path = self.folder.path().join(DONE).with_extension("jsonl");
        let mut done: Vec<DoneStage> = EventLog::read_lines(&path)?.lines;
        let mut log = self.folder.log(DONE)?;
        for &stage in &self.stages {
            if done.iter().any(|one| one.stage == stage) {
                runner.say(stage, "done before");
                continue;
            }
            let model = done.last().map_or(self.model, |one| &one.model).to_owned();
            runner.say(stage, &format!("begins with {model}"));
            let (result, model) = match stage {
                PipelineStage::Gate => {
                    let played = runner.play_gate(&model).map_err(TrainError::Around)?;
                    let gate = PipelineGate::of(&played, self.gate)?;
                    runner.say(stage, &gate.words());
                    if !gate.passed() && !self.ignore_gates {
                        runner.say(stage, GATE_HINT);
                        return Ok(PipelineOutcome {
                            done,
                            stopped_by: Some(gate),
                            model,
                        });
                    }
                    (gate.object(), model)
                }
                PipelineStage::Collect => {
                    let played = runner.collect(&model).map_err(TrainError::Around)?;
                    (json!({ "run": played }), model)
                }
                _ => match runner.learn(stage, &model) {
                    // The actor stays as it is. A critic learns from failures too.
                    Err(failure) if failure.code == NOTHING_REWARDED => {
                        runner.say(stage, &format!("left out: {}", failure.message));
                        (json!({ "left_out": failure.message }), model)
                    }
                    trained => {
                        let trained = trained.map_err(TrainError::Around)?;
                        if trained.outcome.interrupted {
                            return Err(TrainError::Interrupted);
                        }
                        let next = self.next(&model, &trained);
                        (Value::Object(trained.object()?), next)
                    }
                },
            };
            let one = DoneStage {
                stage,
                model,
                result,
            };
            log.append(&one)?;
            log.sync()?;
            done.push(one);
        }
        let model = done.last().map_or(self.model, |one| &one.model).to_owned();
        Ok(PipelineOutcome {
            done,
            stopped_by: None,
            model,
        })
    }

    /// What the stage after one begins with. A critic is not what speaks.
    fn next(&self, model: &str, trained: &TrainedRun) -> String {
        let outcome = &trained.outcome;
        let best = self.go_on_from == GoOnFrom::Best && outcome.best.is_some();
        match &outcome.published {
            Some(_) if best => after(model, &trained.folder.join("best")),
            Some(published) => after(model, published),
            None => model.to_owned(),
        }
    }
}

/// What a stage begins with that comes after one which began with `model` and left this.
fn after(model: &str, published: &Path) -> String {
    let published_adapter = published.join("adapter_config.json").is_file();
    let place = published.display();
    if published_adapter {
        // The last adapter was the one that learnt.
        let (below, _) = model.rsplit_once('+').unwrap_or((model, ""));
        format!("{below}+{place}")
    } else {
        place.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_takes_the_place_of_the_one_that_was_trained() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path();
        assert_eq!(after("m+a", place), place.display().to_string());
        fs_err::write(place.join("adapter_config.json"), "{}").unwrap();
        let shown = place.display();
        assert_eq!(after("m", place), format!("m+{shown}"));
        assert_eq!(after("m+a+b", place), format!("m+a+{shown}"));
    }
}
