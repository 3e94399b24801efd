//! The stages, their order, and what each is told.

use std::path::Path;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::PipelineSettings;
use crate::config::{Settings, Tables, from_table};
use crate::failure::Stop;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Stage {
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

impl Stage {
    pub(super) const ALL: [Self; 7] = [
        Self::Sft,
        Self::Gate,
        Self::SingleTurn,
        Self::Collect,
        Self::Rft,
        Self::Value,
        Self::Agentic,
    ];

    /// Of its folder and of its table.
    pub(super) fn name(self) -> &'static str {
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

    fn learns(self) -> bool {
        !matches!(self, Self::Gate | Self::Collect)
    }

    fn judges(self) -> bool {
        !matches!(self, Self::Sft | Self::Rft | Self::Value)
    }
}

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
        let wanted = |stage: &Stage| match stage {
            Stage::Sft => !self.no_sft,
            Stage::Gate => !self.no_sft && self.validation.is_some(),
            Stage::SingleTurn => !self.no_single_turn,
            Stage::Collect => !(self.no_rft && self.no_value),
            Stage::Rft => !self.no_rft,
            Stage::Value => !self.no_value,
            Stage::Agentic => true,
        };
        Stage::ALL.into_iter().filter(wanted).collect()
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
        let kinds = [(LEARNING, stage.learns()), (JUDGING, stage.judges())];
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
        let paid = matches!(stage, Stage::SingleTurn | Stage::Value | Stage::Agentic);
        if self.raw_reward && paid {
            table.insert("reward".to_owned(), json!("raw"));
        }
        from_table(&table, &origin)
    }

    fn decided(&self, stage: Stage, model: &str) -> Map<String, Value> {
        let mut decided = Map::new();
        let mut put = |key: &str, value: Value| drop(decided.insert(key.to_owned(), value));
        put("offline", json!(self.offline));
        if stage.learns() {
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

/// What a stage begins with that comes after one which began with `model` and left this.
pub(super) fn after(model: &str, published: &Path) -> String {
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
