//! Replays a file of replies, for tests and demonstrations.

use std::path::Path;

use serde::Deserialize;
use warpsmith_schema::{EpisodeId, PolicyVersion, ToolCall, Usage};

use crate::policy::{FinishReason, Policy, PolicyError, PolicyReply, PolicyRequest};

/// One line of a script.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    text: String,
    #[serde(default)]
    calls: Vec<ToolCall>,
    /// Only episodes of this task hear it.
    #[serde(default)]
    task: Option<String>,
    /// Only this episode of a task hears it.
    #[serde(default)]
    sample: Option<u32>,
}

impl Line {
    fn is_for(&self, episode: &EpisodeId) -> bool {
        self.task.as_ref().is_none_or(|task| *task == episode.task)
            && self.sample.is_none_or(|sample| sample == episode.sample)
    }
}

/// Says what is written, whatever it is asked.
#[derive(Debug, Clone)]
pub struct ScriptPolicy {
    version: PolicyVersion,
    path: String,
    lines: Vec<Line>,
    next: usize,
}

impl ScriptPolicy {
    /// Reads a JSONL of `{"text": …, "calls": […], "task": …, "sample": …}`; all of it, so that a mistake in the last line
    /// shows before the first is used.
    pub fn open(path: &Path) -> Result<Self, PolicyError> {
        let shown = path.display().to_string();
        let text = fs_err::read_to_string(path).map_err(|source| PolicyError::Script {
            path: shown.clone(),
            source,
        })?;
        let mut lines = Vec::new();
        for (number, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            lines.push(
                serde_json::from_str(line).map_err(|source| PolicyError::ScriptLine {
                    path: shown.clone(),
                    line: number + 1,
                    source,
                })?,
            );
        }
        Ok(Self {
            version: PolicyVersion {
                name: format!("script:{shown}"),
                hash: Some(blake3::hash(text.as_bytes()).to_hex().to_string()),
                step: None,
            },
            path: shown,
            lines,
            next: 0,
        })
    }

    /// Those lines that are for one of several episodes.
    #[must_use]
    pub fn lines_for(&self, episode: &EpisodeId) -> Self {
        let lines = self.lines.iter().filter(|line| line.is_for(episode));
        Self {
            version: self.version.clone(),
            path: self.path.clone(),
            lines: lines.cloned().collect(),
            next: 0,
        }
    }

    /// Goes on after replies that were given before, by another process.
    #[must_use]
    pub fn after(mut self, replies: usize) -> Self {
        self.next = replies;
        self
    }
}

impl Policy for ScriptPolicy {
    fn version(&self) -> &PolicyVersion {
        &self.version
    }

    fn reply(
        &mut self,
        _: &PolicyRequest<'_>,
        on_text: &mut dyn FnMut(&str),
    ) -> Result<PolicyReply, PolicyError> {
        let Some(line) = self.lines.get(self.next) else {
            return Err(PolicyError::ScriptEnded {
                path: self.path.clone(),
                number: self.next + 1,
            });
        };
        self.next += 1;
        on_text(&line.text);
        Ok(PolicyReply {
            text: line.text.clone(),
            calls: line.calls.clone(),
            finish: if line.calls.is_empty() {
                FinishReason::Stopped
            } else {
                FinishReason::ToolCalls
            },
            usage: Usage::default(),
            tokens: None,
        })
    }
}
