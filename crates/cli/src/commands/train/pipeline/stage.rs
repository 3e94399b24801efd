//! What each stage is told.

use clap::Args;
use serde_json::{Map, Value, json};
use warpsmith_train::recipes::{PipelineStage as Stage, PipelineSwitches};

use super::PipelineSettings;
use crate::config::{Settings, Tables, from_table};
use crate::failure::Stop;

/// Of every stage that learns, and of every stage that has something judged.
const LEARNING: &str = "learning";
const JUDGING: &str = "judging";

/// Tables that a configuration may have.
pub(super) fn tables() -> Vec<&'static str> {
    let stages = Stage::ALL.iter().map(|stage| stage.name());
    stages.chain([LEARNING, JUDGING]).collect()
}

impl PipelineSettings {
    pub(super) fn stages(&self) -> Vec<Stage> {
        let switches = PipelineSwitches {
            no_sft: self.no_sft,
            no_single_turn: self.no_single_turn,
            no_rft: self.no_rft,
            no_value: self.no_value,
            has_validation: self.validation.is_some(),
        };
        switches.stages()
    }

    /// A stage's settings with a model: its defaults, over them what is said of all stages of its kind, over that what is
    /// said of itself, over all of them what the pipeline decides and the switches say.
    pub(super) fn of_stage<S: Settings + Args>(
        &self,
        stage: Stage,
        tables: &Tables,
        model: &str,
    ) -> Result<S, Stop> {
        let origin = format!("[{}]", stage.name());
        let decided = self.decided(stage, model);
        let kinds = [(LEARNING, stage.trains()), (JUDGING, stage.judges())];
        let kinds = kinds.into_iter().filter(|(_, holds)| *holds);
        let mut table = usual(stage);
        table.insert("seed".to_owned(), json!(self.seed));
        // A critic must expect what is paid.
        let agentic = tables.get(Stage::Agentic.name());
        if stage == Stage::Value {
            for key in ["reward", "counts"] {
                if let Some(said) = agentic.and_then(|table| table.get(key)) {
                    table.insert(key.to_owned(), said.clone());
                }
            }
        }
        for name in kinds.map(|(name, _)| name).chain([stage.name()]) {
            let said = tables.get(name).into_iter().flatten();
            for (key, value) in said {
                if decided.contains_key(key) {
                    return Err(Stop::config(
                        "config",
                        format!("[{name}]: `{key}` is the pipeline's to decide"),
                        Some(format!("leave it out of [{name}]")),
                    ));
                }
                table.insert(key.clone(), value.clone());
            }
        }
        table.extend(decided);
        let rewarded = matches!(stage, Stage::SingleTurn | Stage::Value | Stage::Agentic);
        if self.raw_reward && rewarded {
            table.insert("reward".to_owned(), json!("raw"));
        }
        from_table(&table, &origin)
    }

    fn decided(&self, stage: Stage, model: &str) -> Map<String, Value> {
        let mut decided = Map::new();
        let mut put = |key: &str, value: Value| drop(decided.insert(key.to_owned(), value));
        put("offline", json!(self.offline));
        if stage.trains() {
            put("model", json!(model));
        } else {
            put("policy", json!(format!("local:{model}")));
        }
        let mode = match (stage, self.no_agent_loop) {
            (Stage::Collect | Stage::Agentic, false) => "agent",
            _ => "single",
        };
        if stage.judges() {
            put("mode", json!(mode));
        }
        // What the policy was taught at first must not be forgotten.
        if stage == Stage::Rft && !self.no_sft {
            put("demonstrations", json!(self.teacher));
        }
        decided
    }
}

/// Where a stage differs from the verb it is made of.
fn usual(stage: Stage) -> Map<String, Value> {
    let table = match stage {
        // As reinforcement will sample: one reply at temperature 1, judged quickly.
        Stage::Gate => {
            json!({ "samples": 8, "repairs": 0, "temperature": 1.0, "max_tokens": 1024, "profile": "rl" })
        }
        Stage::Collect => json!({ "samples": 4, "temperature": 1.0, "profile": "rl" }),
        // An agent that used all its turns may still have been worth something.
        Stage::Agentic => json!({ "cut_replies": "keep" }),
        Stage::Sft | Stage::SingleTurn | Stage::Rft | Stage::Value => json!({}),
    };
    match table {
        Value::Object(table) => table,
        _ => Map::new(),
    }
}
