//! The teacher's policy for one episode: the conversation so far decides the next reply.
//!
//! No state is kept between replies. The conversation itself says how far the episode is, so an interrupted episode is
//! resumed like any other policy's.

use std::sync::Arc;

use serde_json::{Value, json};
use warpsmith_compiler::{NotCovered, SolutionFiles};
use warpsmith_model::policy::{FinishReason, Policy, PolicyError, PolicyReply, PolicyRequest};
use warpsmith_schema::{EpisodeMode, Message, PolicyVersion, Target, Task, ToolCall, Usage};

use super::plan::{SolutionAttempt, TaskFacts, TeachingPlan};
use super::prose;
use crate::splitmix::SplitMix64;

pub(super) struct TeacherEpisode {
    pub(super) version: PolicyVersion,
    pub(super) injects_bugs: bool,
    pub(super) task: Arc<Task>,
    pub(super) target: Target,
    pub(super) mode: EpisodeMode,
    pub(super) sample: u32,
    /// Why the task has no graph, where that is known.
    pub(super) no_graph: Option<String>,
    /// A solution that is faster than any of the usual ones.
    pub(super) tuned: Option<SolutionFiles>,
}

/// A reply before it is written as text blocks or as tool calls.
struct TeacherReply {
    text: String,
    actions: Vec<ToolAction>,
}

enum ToolAction {
    Read(&'static str),
    Write(String, String),
    Edit {
        path: String,
        old: String,
        new: String,
    },
    Run(&'static str),
}

/// What the tools answered to an earlier reply of this episode.
struct PastTurn {
    observed: String,
    /// For each called tool its name, whether it failed, and its answer.
    results: Vec<(String, bool, String)>,
}

impl PastTurn {
    fn result(&self, tool: &str) -> Option<(bool, &str)> {
        let found = self.results.iter().rev().find(|(name, ..)| name == tool);
        found.map(|(_, failed, text)| (*failed, text.as_str()))
    }
}

impl Policy for TeacherEpisode {
    fn version(&self) -> &PolicyVersion {
        &self.version
    }

    fn reply(
        &mut self,
        request: &PolicyRequest<'_>,
        on_text: &mut dyn FnMut(&str),
    ) -> Result<PolicyReply, PolicyError> {
        let seed = request.sampling.seed.unwrap_or_default();
        let mut rng =
            SplitMix64::of_text(&self.task.source, seed.wrapping_add(u64::from(self.sample)));
        let mut plan =
            TeachingPlan::new(&self.task, self.target, self.mode, &mut rng).map_err(|why| {
                let message = match (&why, &self.no_graph) {
                    (NotCovered::NoGraph, Some(reason)) => {
                        format!("its graph could not be captured: {reason}")
                    }
                    _ => why.to_string(),
                };
                PolicyError::NotCovered {
                    policy: self.version.name.clone(),
                    message,
                }
            })?;
        if !self.injects_bugs {
            plan.attempts
                .iter_mut()
                .for_each(|attempt| attempt.bug = None);
        }
        let turns = turns(request.messages);
        if let (Some(files), Some(last)) = (&self.tuned, plan.attempts.last()) {
            let mut tuned = last.clone();
            tuned.solution.files.clone_from(files);
            plan.attempts.push(tuned);
        }
        let reply = match self.mode {
            EpisodeMode::Single => single(&plan, &turns, &mut rng),
            EpisodeMode::Agent => agent(&plan, &turns, &mut rng),
        };
        let reply = if request.tools.is_empty() {
            reply.into_text_blocks()
        } else {
            reply.into_tool_calls()
        };
        on_text(&reply.text);
        Ok(reply)
    }
}

/// The earlier replies of the conversation.
fn turns(messages: &[Message]) -> Vec<PastTurn> {
    let mut turns: Vec<PastTurn> = Vec::new();
    for message in messages {
        match message {
            Message::Assistant { .. } => turns.push(PastTurn {
                observed: String::new(),
                results: Vec::new(),
            }),
            Message::Tool {
                name, text, failed, ..
            } => {
                if let Some(turn) = turns.last_mut() {
                    turn.observed.push_str(text);
                    turn.observed.push('\n');
                    turn.results.push((name.clone(), *failed, text.clone()));
                }
            }
            Message::User { text } => {
                if let Some(turn) = turns.last_mut() {
                    turn.results.extend(sections(text));
                    turn.observed.push_str(text);
                }
            }
            Message::System { .. } => {}
        }
    }
    turns
}

/// The answers of tools in one message: each begins with a line `NAME:` or `NAME failed:`.
fn sections(text: &str) -> Vec<(String, bool, String)> {
    const TOOLS: [&str; 8] = [
        "read",
        "write",
        "multi_edit",
        "compile",
        "verify",
        "profile",
        "judge",
        "submit",
    ];
    let mut found: Vec<(String, bool, String)> = Vec::new();
    for line in text.lines() {
        let heading = line.strip_suffix(':').and_then(|words| {
            let (name, failed) = match words.strip_suffix(" failed") {
                Some(name) => (name, true),
                None => (words, false),
            };
            TOOLS.contains(&name).then(|| (name.to_owned(), failed))
        });
        match (heading, found.last_mut()) {
            (Some((name, failed)), _) => found.push((name, failed, String::new())),
            (None, Some((_, _, inside))) => {
                inside.push_str(line);
                inside.push('\n');
            }
            (None, None) => {}
        }
    }
    found
}

/// The time that a passed judgement names.
fn time_us(text: &str) -> Option<f64> {
    let (_, rest) = text.split_once("It passes: ")?;
    rest.split_once(" us")?.0.parse().ok()
}

/// A reply that opens a conversation with this solution, without a bug.
pub(super) fn standalone_reply(facts: &TaskFacts, attempt: &SolutionAttempt) -> String {
    let reply = TeacherReply {
        text: prose::introduce_with_shapes(facts, attempt),
        actions: writes(&attempt.solution.files),
    };
    reply.into_text_blocks().text
}

/// Writes `model_new.py` first, then the kernels it calls.
fn writes(files: &SolutionFiles) -> Vec<ToolAction> {
    let write = |(path, text): (&String, &String)| ToolAction::Write(path.clone(), text.clone());
    files.iter().rev().map(write).collect()
}

/// Replies with the fastest solution first; after a failure with its fix, or with the next simpler solution.
fn single(plan: &TeachingPlan, turns: &[PastTurn], rng: &mut SplitMix64) -> TeacherReply {
    let last = plan.attempts.len() - 1;
    let attempt = &plan.attempts[last];
    let Some(before) = turns.last() else {
        return TeacherReply {
            text: prose::introduce_with_shapes(&plan.facts, attempt),
            actions: writes(&attempt.first_files()),
        };
    };
    if let (1, Some(bug)) = (turns.len(), &attempt.bug) {
        return TeacherReply {
            text: prose::explain_bug(bug, &before.observed, rng),
            actions: writes(&attempt.solution.files),
        };
    }
    let fixes = usize::from(attempt.bug.is_some());
    let simpler = last.saturating_sub(turns.len() - fixes);
    let attempt = &plan.attempts[simpler];
    TeacherReply {
        text: prose::fall_back(&before.observed, rng),
        actions: writes(&attempt.solution.files),
    }
}

/// How far an episode with tools is.
#[derive(Default)]
struct EpisodeProgress {
    /// The attempt whose files are in the workspace.
    written: Option<usize>,
    /// Whether these files still have the injected bug.
    has_bug: bool,
    verified: bool,
    /// Attempts that passed, with their times in microseconds.
    passed: Vec<(usize, Option<f64>)>,
    /// The next attempt to write.
    next: usize,
    failed: bool,
}

fn progress(plan: &TeachingPlan, turns: &[PastTurn]) -> EpisodeProgress {
    let mut so_far = EpisodeProgress::default();
    // The first turn only reads and profiles.
    for turn in turns.iter().skip(1) {
        let wrote = turn.result("write").is_some()
            || turn.result("multi_edit").is_some()
            || turn.result("edit").is_some();
        if wrote {
            let fixes_bug = so_far.failed && so_far.has_bug;
            if fixes_bug {
                so_far.has_bug = false;
            } else {
                so_far.written = Some(so_far.next);
                so_far.has_bug = plan
                    .attempts
                    .get(so_far.next)
                    .is_some_and(|attempt| attempt.bug.is_some());
                so_far.next += 1;
            }
        }
        so_far.failed = false;
        so_far.verified = false;
        if let Some((failed, _)) = turn.result("verify") {
            so_far.failed = failed;
            so_far.verified = !failed;
        }
        if let Some((failed, text)) = turn.result("judge") {
            so_far.failed = failed;
            if let (false, Some(written)) = (failed, so_far.written) {
                so_far.passed.push((written, time_us(text)));
            }
        }
    }
    so_far
}

fn agent(plan: &TeachingPlan, turns: &[PastTurn], rng: &mut SplitMix64) -> TeacherReply {
    // Each turn draws from its own place in the stream, so that turns do not repeat their words.
    for _ in 0..turns.len() {
        rng.chance(50);
    }
    let Some(before) = turns.last() else {
        let mut actions = vec![ToolAction::Run("profile")];
        if rng.chance(50) {
            actions.insert(0, ToolAction::Read("model.py"));
        }
        return TeacherReply {
            text: prose::opening(&plan.facts, rng),
            actions,
        };
    };
    let so_far = progress(plan, turns);
    if so_far.verified {
        let mut actions = vec![ToolAction::Run("judge")];
        if rng.chance(50) {
            actions.push(ToolAction::Run("profile"));
        }
        return TeacherReply {
            text: prose::passed(rng),
            actions,
        };
    }
    if let (true, true, Some(written)) = (so_far.failed, so_far.has_bug, so_far.written) {
        return fix_bug(plan, written, before, rng);
    }
    let goes_on = !so_far.failed || so_far.passed.is_empty();
    if so_far.next < plan.attempts.len() && goes_on {
        let attempt = &plan.attempts[so_far.next];
        let first = so_far.written.is_none();
        let time = so_far.passed.last().and_then(|(_, time)| *time);
        let lead = if first {
            String::new()
        } else {
            prose::improve(time, rng)
        };
        let files = attempt.first_files();
        let mut actions: Vec<ToolAction> = files
            .iter()
            .rev()
            .map(|(path, text)| ToolAction::Write(path.clone(), text.clone()))
            .collect();
        // The first attempt, and any with a bug, is verified before it is judged.
        actions.push(ToolAction::Run(if first || attempt.bug.is_some() {
            "verify"
        } else {
            "judge"
        }));
        return TeacherReply {
            text: format!("{lead}{}", prose::introduce(attempt, rng)),
            actions,
        };
    }
    submit_fastest(plan, &so_far, rng)
}

fn fix_bug(
    plan: &TeachingPlan,
    written: usize,
    before: &PastTurn,
    rng: &mut SplitMix64,
) -> TeacherReply {
    let attempt = &plan.attempts[written];
    let Some(bug) = &attempt.bug else {
        return TeacherReply {
            text: String::new(),
            actions: vec![ToolAction::Run("submit")],
        };
    };
    TeacherReply {
        text: prose::explain_bug(bug, &before.observed, rng),
        actions: vec![
            ToolAction::Edit {
                path: bug.path.clone(),
                old: bug.wrong.clone(),
                new: bug.right.clone(),
            },
            ToolAction::Run("verify"),
        ],
    }
}

/// Submits the fastest attempt. Its files are written again if the workspace holds another.
fn submit_fastest(
    plan: &TeachingPlan,
    so_far: &EpisodeProgress,
    rng: &mut SplitMix64,
) -> TeacherReply {
    let fastest = so_far.passed.iter().min_by(|(_, one), (_, other)| {
        one.unwrap_or(f64::MAX)
            .total_cmp(&other.unwrap_or(f64::MAX))
    });
    let Some((attempt, time)) = fastest else {
        return TeacherReply {
            text: prose::finish(None, false, rng),
            actions: vec![ToolAction::Run("submit")],
        };
    };
    let in_workspace = so_far.written == Some(*attempt);
    let mut actions = Vec::new();
    if !in_workspace {
        let files = &plan.attempts[*attempt].solution.files;
        actions.extend(
            files
                .iter()
                .rev()
                .map(|(path, text)| ToolAction::Write(path.clone(), text.clone())),
        );
    }
    actions.push(ToolAction::Run("submit"));
    TeacherReply {
        text: prose::finish(*time, !in_workspace, rng),
        actions,
    }
}

impl TeacherReply {
    fn into_text_blocks(self) -> PolicyReply {
        let mut text = self.text;
        for action in self.actions {
            text.push_str("\n\n");
            let part = match action {
                ToolAction::Read(path) => format!("read {path}"),
                ToolAction::Run(word) => word.to_owned(),
                ToolAction::Write(path, content) => {
                    format!("write {path}\n```{}\n{content}```", language(&path))
                }
                ToolAction::Edit { path, old, new } => {
                    format!("edit {path}\n```\n<<<<<<<\n{old}\n=======\n{new}\n>>>>>>>\n```")
                }
            };
            text.push_str(&part);
        }
        reply(text, Vec::new())
    }

    fn into_tool_calls(self) -> PolicyReply {
        let calls = self
            .actions
            .into_iter()
            .enumerate()
            .map(|(number, action)| {
                let (name, arguments): (&str, Value) = match action {
                    ToolAction::Read(path) => ("read", json!({ "path": path })),
                    ToolAction::Run(word) => (word, json!({})),
                    ToolAction::Write(path, content) => {
                        ("write", json!({ "path": path, "content": content }))
                    }
                    ToolAction::Edit { path, old, new } => {
                        ("edit", json!({ "path": path, "old": old, "new": new }))
                    }
                };
                ToolCall {
                    id: format!("call_{}", number + 1),
                    name: name.to_owned(),
                    arguments,
                }
            });
        reply(self.text, calls.collect())
    }
}

fn reply(text: String, calls: Vec<ToolCall>) -> PolicyReply {
    PolicyReply {
        text,
        finish: if calls.is_empty() {
            FinishReason::Stopped
        } else {
            FinishReason::ToolCalls
        },
        calls,
        usage: Usage::default(),
        tokens: None,
    }
}

fn language(path: &str) -> &'static str {
    match path.rsplit_once('.') {
        Some((_, "py")) => "python",
        Some((_, "cu")) => "cuda",
        _ => "cpp",
    }
}
