use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::OpGraph;

/// What tells a set of tasks from others, in a run's configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TaskSetIdentity {
    count: usize,
    hash: String,
}

impl TaskSetIdentity {
    pub fn of(tasks: &[Task]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for task in tasks {
            for text in [&task.id, &task.source] {
                hasher.update(&(text.len() as u64).to_le_bytes());
                hasher.update(text.as_bytes());
            }
        }
        Self {
            count: tasks.len(),
            hash: hasher.finalize().to_hex()[..16].to_owned(),
        }
    }
}

/// A problem to solve: a PyTorch module in KernelBench form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Task {
    /// Stable within its source, such as `level1/19`.
    pub id: String,
    pub name: String,
    /// The text of `model.py`: `Model`, `get_inputs` and `get_init_inputs`.
    pub source: String,
    pub level: Option<u32>,
    pub problem_id: Option<u32>,
    /// Where it was loaded from.
    pub origin: String,
    /// Its computation, where it is known: composed tasks carry it.
    #[serde(default)]
    pub graph: Option<OpGraph>,
}

impl Task {
    /// A module of which nothing is known but its name and its text.
    pub fn of_source(name: impl Into<String>, source: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            id: name.clone(),
            name,
            source: source.into(),
            level: None,
            problem_id: None,
            origin: String::new(),
            graph: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_tasks_are_told_apart_by_names_and_texts() {
        let one = [Task::of_source("a", "x = 1"), Task::of_source("b", "")];
        let moved = [Task::of_source("a", "x = "), Task::of_source("1b", "")];
        assert_eq!(TaskSetIdentity::of(&one), TaskSetIdentity::of(&one.clone()));
        assert_ne!(TaskSetIdentity::of(&one), TaskSetIdentity::of(&moved));
    }
}
