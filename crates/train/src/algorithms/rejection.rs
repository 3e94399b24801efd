//! Which trajectories are worth imitating (rejection fine-tuning): those that were paid for, and not for noise.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use warpsmith_schema::{EpisodeEnding, Message, ToolCall, ToolSchema, Trajectory};

use super::selection::ImitationChoice;

/// What a trajectory must be to be learnt from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rejection {
    /// Its reward must be above this.
    pub above: f64,
    /// Replies that say the same this often in a row are a loop.
    pub repeats: usize,
}

impl Default for Rejection {
    fn default() -> Self {
        Self {
            above: 0.0,
            repeats: 3,
        }
    }
}

/// Why one was left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flaw {
    /// It was not paid enough, or not judged at all.
    Outcome,
    /// It said the same again and again.
    Loop,
    /// It called a tool that is not there, or with arguments that the tool does not take.
    ToolSchema { tool: String, reason: String },
}

/// How many were left out, and why.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Rejections {
    pub kept: usize,
    pub outcome: usize,
    pub loops: usize,
    pub tool_schema: usize,
    /// Of those without a flaw, that say what another one says.
    pub duplicates: usize,
    /// Of those without a flaw, more than are taken of one task.
    pub surplus: usize,
}

impl Rejections {
    /// Of one without a flaw, which was counted as kept.
    pub fn count_choice(&mut self, choice: ImitationChoice) {
        let counter = match choice {
            ImitationChoice::Imitated => return,
            ImitationChoice::Duplicate => &mut self.duplicates,
            ImitationChoice::Surplus => &mut self.surplus,
        };
        *counter += 1;
        self.kept -= 1;
    }

    pub fn count(&mut self, flaw: Option<&Flaw>) {
        let counter = match flaw {
            None => &mut self.kept,
            Some(Flaw::Outcome) => &mut self.outcome,
            Some(Flaw::Loop) => &mut self.loops,
            Some(Flaw::ToolSchema { .. }) => &mut self.tool_schema,
        };
        *counter += 1;
    }
}

/// Longer turns of phrase than this are not looked for: a loop of four different replies is rare, and no shorter one.
const LONGEST_CYCLE: usize = 3;

impl Rejection {
    /// The first reason to leave it out. `reward` is `None` where nothing was judged.
    pub fn flaw(
        &self,
        trajectory: &Trajectory,
        reward: Option<f64>,
        tools: &[ToolSchema],
    ) -> Option<Flaw> {
        if reward.is_none_or(|reward| reward <= self.above) {
            return Some(Flaw::Outcome);
        }
        if matches!(trajectory.ending, EpisodeEnding::Looping) || self.loops(&trajectory.messages) {
            return Some(Flaw::Loop);
        }
        let calls = trajectory
            .messages
            .iter()
            .flat_map(|message| match message {
                Message::Assistant { calls, .. } => calls.as_slice(),
                _ => &[],
            });
        let violation = |call: &ToolCall| {
            let reason = violation(call, tools)?;
            let tool = call.name.clone();
            Some(Flaw::ToolSchema { tool, reason })
        };
        calls.into_iter().find_map(violation)
    }

    /// Whether one to three replies are said `repeats` times over.
    fn loops(&self, messages: &[Message]) -> bool {
        // A call's id says nothing.
        let said: Vec<(&str, Vec<(&str, &Value)>)> = messages
            .iter()
            .filter_map(|message| match message {
                Message::Assistant { text, calls } => {
                    let calls = calls
                        .iter()
                        .map(|call| (call.name.as_str(), &call.arguments));
                    Some((text.as_str(), calls.collect()))
                }
                _ => None,
            })
            .collect();
        (1..=LONGEST_CYCLE).any(|cycle| {
            let same: Vec<bool> = (cycle..said.len())
                .map(|at| said[at] == said[at - cycle])
                .collect();
            let needed = cycle * (self.repeats.max(2) - 1);
            same.windows(needed)
                .any(|window| window.iter().all(|same| *same))
        })
    }
}

/// What is wrong with a call, in words; the types of single numbers and texts are looked at, not what is within lists.
fn violation(call: &ToolCall, tools: &[ToolSchema]) -> Option<String> {
    let Some(tool) = tools.iter().find(|tool| tool.name == call.name) else {
        return Some("there is no such tool".to_owned());
    };
    let nothing = Map::new();
    let given = match &call.arguments {
        Value::Object(given) => given,
        // Some servers send this for a call without arguments.
        Value::Null => &nothing,
        Value::String(text) if text.is_empty() => &nothing,
        _ => return Some("its arguments are no object".to_owned()),
    };
    let parameters = &tool.parameters;
    let required = parameters["required"].as_array().into_iter().flatten();
    let mut missing = required
        .filter_map(Value::as_str)
        .filter(|name| !given.contains_key(*name));
    if let Some(name) = missing.next() {
        return Some(format!("`{name}` is missing"));
    }
    let properties = parameters["properties"].as_object().unwrap_or(&nothing);
    given.iter().find_map(|(name, value)| {
        let Some(property) = properties.get(name) else {
            return Some(format!("it takes no `{name}`"));
        };
        let fits = fits(value, &property["type"]);
        (!fits).then(|| format!("`{name}` is not {}", property["type"]))
    })
}

/// Whether a value is of a type by the names of JSON Schema, or of one of several.
fn fits(value: &Value, wanted: &Value) -> bool {
    match wanted {
        Value::Array(several) => several.iter().any(|one| fits(value, one)),
        Value::String(name) => match name.as_str() {
            "string" => value.is_string(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "boolean" => value.is_boolean(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            "null" => value.is_null(),
            _ => true,
        },
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use warpsmith_schema::{EpisodeMode, PolicyVersion, Target, Task};

    use super::*;

    fn trajectory(replies: &[(&str, &[(&str, Value)])]) -> Trajectory {
        let task: Task = serde_json::from_value(json!({
            "id": "relu", "name": "relu", "source": "", "level": null, "problem_id": null, "origin": ""
        }))
        .unwrap();
        let policy = PolicyVersion {
            name: "script:x".into(),
            hash: None,
            step: None,
        };
        let mut trajectory = Trajectory::begin(&task, Target::Cpu, &policy, 1, EpisodeMode::Agent);
        trajectory.ending = EpisodeEnding::Finished;
        for (number, (text, calls)) in replies.iter().enumerate() {
            let call = |(name, arguments): &(&str, Value)| ToolCall {
                id: format!("call_{number}"),
                name: (*name).to_owned(),
                arguments: arguments.clone(),
            };
            trajectory.messages.push(Message::Assistant {
                text: (*text).to_owned(),
                calls: calls.iter().map(call).collect(),
            });
            trajectory.messages.push(Message::User {
                text: format!("answer {number}"),
            });
        }
        trajectory
    }

    fn tools() -> Vec<ToolSchema> {
        vec![ToolSchema {
            name: "read".into(),
            description: String::new(),
            parameters: json!({
                "type": "object",
                "properties": { "path": { "type": "string" }, "lines": { "type": ["integer", "null"] } },
                "required": ["path"],
            }),
        }]
    }

    fn flaw(trajectory: &Trajectory) -> Option<Flaw> {
        Rejection::default().flaw(trajectory, Some(1.0), &tools())
    }

    #[test]
    fn only_what_was_paid_for_is_kept() {
        let fine = trajectory(&[("a", &[])]);
        let rejection = Rejection::default();
        for (reward, expected) in [
            (None, Some(Flaw::Outcome)),
            (Some(-1.0), Some(Flaw::Outcome)),
            (Some(0.0), Some(Flaw::Outcome)),
            (Some(1.0), None),
        ] {
            assert_eq!(rejection.flaw(&fine, reward, &[]), expected, "{reward:?}");
        }
    }

    #[test]
    fn loops_of_one_to_three_replies_are_seen() {
        let say = |words: &str| {
            let replies: Vec<(&str, &[(&str, Value)])> =
                words.split(' ').map(|word| (word, &[][..])).collect();
            flaw(&trajectory(&replies))
        };
        for fine in ["a", "a a b a a b b", "a b c a b c", "a b a b c"] {
            assert_eq!(say(fine), None, "{fine}");
        }
        for looping in ["a a a", "x a b a b a b", "a b c a b c a b c d"] {
            assert_eq!(say(looping), Some(Flaw::Loop), "{looping}");
        }
        // The same words with other calls are something else.
        let calls = |path: &str| [("read", json!({ "path": path }))];
        let (a, b, c) = (calls("a"), calls("b"), calls("c"));
        let working = trajectory(&[("on", &a), ("on", &b), ("on", &c)]);
        assert_eq!(flaw(&working), None);
        let stuck = trajectory(&[("on", &a), ("on", &a), ("on", &a)]);
        assert_eq!(flaw(&stuck), Some(Flaw::Loop));
        let mut ended = trajectory(&[("a", &[])]);
        ended.ending = EpisodeEnding::Looping;
        assert_eq!(flaw(&ended), Some(Flaw::Loop));
    }

    #[test]
    fn calls_must_fit_their_tools() {
        for (name, arguments, expected) in [
            ("read", json!({ "path": "a", "lines": 3 }), None),
            ("read", json!({ "path": "a", "lines": null }), None),
            ("rea", json!({}), Some("there is no such tool")),
            ("read", json!({}), Some("`path` is missing")),
            ("read", Value::Null, Some("`path` is missing")),
            ("read", json!("{path"), Some("its arguments are no object")),
            (
                "read",
                json!({ "path": 1 }),
                Some("`path` is not \"string\""),
            ),
            (
                "read",
                json!({ "path": "a", "row": 1 }),
                Some("it takes no `row`"),
            ),
        ] {
            let expected = expected.map(|reason| Flaw::ToolSchema {
                tool: name.to_owned(),
                reason: reason.to_owned(),
            });
            let found = flaw(&trajectory(&[("a", &[(name, arguments)])]));
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn what_was_left_out_is_counted() {
        let mut counts = Rejections::default();
        let violation = Flaw::ToolSchema {
            tool: "read".into(),
            reason: String::new(),
        };
        for flaw in [
            None,
            Some(Flaw::Outcome),
            Some(Flaw::Loop),
            Some(violation),
            None,
        ] {
            counts.count(flaw.as_ref());
        }
        counts.count_choice(ImitationChoice::Imitated);
        counts.count_choice(ImitationChoice::Duplicate);
        let expected = Rejections {
            kept: 1,
            outcome: 1,
            loops: 1,
            tool_schema: 1,
            duplicates: 1,
            surplus: 0,
        };
        assert_eq!(counts, expected);
    }
}
