//! One episode: what was said and seen so far decides what is said next.
//!
//! Nothing is remembered between replies. The conversation itself says where the lesson stands, so an interrupted one is
//! gone on with like any other policy's.

use std::sync::Arc;

use serde_json::{Value, json};
use warpsmith_compiler::Files;
use warpsmith_model::policy::{Finish, Policy, PolicyError, Reply, Request};
use warpsmith_schema::{EpisodeMode, Message, PolicyVersion, Target, Task, ToolCall, Usage};

use super::course::{Course, Draft, Facts};
use super::luck::Luck;
use super::prose;

pub(super) struct Lesson {
    pub(super) version: PolicyVersion,
    pub(super) task: Arc<Task>,
    pub(super) target: Target,
    pub(super) mode: EpisodeMode,
    pub(super) sample: u32,
}

/// What is said, before it is put into the form that is wanted.
struct Speech {
    text: String,
    acts: Vec<Act>,
}

enum Act {
    Read(&'static str),
    Write(String, String),
    Edit {
        path: String,
        old: String,
        new: String,
    },
    Bare(&'static str),
}

/// A reply of this lesson that was given before, and what came of it.
struct Turn {
    observed: String,
    /// Tools that were called, and whether each failed.
    results: Vec<(String, bool, String)>,
}

impl Turn {
    fn result(&self, tool: &str) -> Option<(bool, &str)> {
        let found = self.results.iter().rev().find(|(name, ..)| name == tool);
        found.map(|(_, failed, text)| (*failed, text.as_str()))
    }
}

impl Policy for Lesson {
    fn version(&self) -> &PolicyVersion {
        &self.version
    }

    fn reply(
        &mut self,
        request: &Request<'_>,
        on_text: &mut dyn FnMut(&str),
    ) -> Result<Reply, PolicyError> {
        let seed = request.sampling.seed.unwrap_or_default();
        let mut luck = Luck::new(&self.task.source, seed.wrapping_add(u64::from(self.sample)));
        let course =
            Course::plan(&self.task, self.target, self.mode, &mut luck).map_err(|why| {
                PolicyError::NotCovered {
                    policy: self.version.name.clone(),
                    message: why.to_string(),
                }
            })?;
        let turns = turns(request.messages);
        let speech = match self.mode {
            EpisodeMode::Single => single(&course, &turns, &mut luck),
            EpisodeMode::Agent => agent(&course, &turns, &mut luck),
        };
        let reply = if request.tools.is_empty() {
            speech.fenced()
        } else {
            speech.called()
        };
        on_text(&reply.text);
        Ok(reply)
    }
}

/// What was said so far.
fn turns(messages: &[Message]) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::new();
    for message in messages {
        match message {
            Message::Assistant { .. } => turns.push(Turn {
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

/// A solution as if nothing else had ever been said, without a mistake.
pub(super) fn only(facts: &Facts, draft: &Draft, luck: &mut Luck) -> String {
    let speech = Speech {
        text: prose::about_all(facts, draft, luck),
        acts: writes(&draft.solution.files),
    };
    speech.fenced().text
}

/// The module comes first, then what it calls.
fn writes(files: &Files) -> Vec<Act> {
    let write = |(path, text): (&String, &String)| Act::Write(path.clone(), text.clone());
    files.iter().rev().map(write).collect()
}

/// The best first; after a failure its repair, or the next simpler one.
fn single(course: &Course, turns: &[Turn], luck: &mut Luck) -> Speech {
    let last = course.drafts.len() - 1;
    let draft = &course.drafts[last];
    let Some(before) = turns.last() else {
        return Speech {
            text: prose::about_all(&course.facts, draft, luck),
            acts: writes(&draft.first()),
        };
    };
    if let (1, Some(mistake)) = (turns.len(), &draft.mistake) {
        return Speech {
            text: prose::repair(mistake, &before.observed, luck),
            acts: writes(&draft.solution.files),
        };
    }
    let mended = usize::from(draft.mistake.is_some());
    let simpler = last.saturating_sub(turns.len() - mended);
    let draft = &course.drafts[simpler];
    Speech {
        text: prose::fall_back(&before.observed, luck),
        acts: writes(&draft.solution.files),
    }
}

/// Where a loop stands.
#[derive(Default)]
struct Progress {
    /// The draft that lies in the workspace.
    written: Option<usize>,
    /// Whether it is the one with the mistake.
    spoilt: bool,
    verified: bool,
    /// Drafts that passed, with their times.
    passed: Vec<(usize, Option<f64>)>,
    /// The next draft to write.
    next: usize,
    failed: bool,
}

fn progress(course: &Course, turns: &[Turn]) -> Progress {
    let mut so_far = Progress::default();
    // The first turn only looks.
    for turn in turns.iter().skip(1) {
        let wrote = turn.result("write").is_some()
            || turn.result("multi_edit").is_some()
            || turn.result("edit").is_some();
        if wrote {
            let mends = so_far.failed && so_far.spoilt;
            if mends {
                so_far.spoilt = false;
            } else {
                so_far.written = Some(so_far.next);
                so_far.spoilt = course
                    .drafts
                    .get(so_far.next)
                    .is_some_and(|draft| draft.mistake.is_some());
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

fn agent(course: &Course, turns: &[Turn], luck: &mut Luck) -> Speech {
    // Words of a turn are its own.
    for _ in 0..turns.len() {
        luck.chance(50);
    }
    let Some(before) = turns.last() else {
        let mut acts = vec![Act::Bare("profile")];
        if luck.chance(50) {
            acts.insert(0, Act::Read("model.py"));
        }
        return Speech {
            text: prose::opening(course, luck),
            acts,
        };
    };
    let so_far = progress(course, turns);
    if so_far.verified {
        let mut acts = vec![Act::Bare("judge")];
        if luck.chance(50) {
            acts.push(Act::Bare("profile"));
        }
        return Speech {
            text: prose::passed(luck),
            acts,
        };
    }
    if let (true, true, Some(written)) = (so_far.failed, so_far.spoilt, so_far.written) {
        return mend(course, written, before, luck);
    }
    let goes_on = !so_far.failed || so_far.passed.is_empty();
    if so_far.next < course.drafts.len() && goes_on {
        let draft = &course.drafts[so_far.next];
        let first = so_far.written.is_none();
        let time = so_far.passed.last().and_then(|(_, time)| *time);
        let lead = if first {
            String::new()
        } else {
            prose::improve(time, luck)
        };
        let files = draft.first();
        let mut acts: Vec<Act> = files
            .iter()
            .rev()
            .map(|(path, text)| Act::Write(path.clone(), text.clone()))
            .collect();
        // What nobody has seen run is verified first; later ones are judged at once.
        acts.push(Act::Bare(if first || draft.mistake.is_some() {
            "verify"
        } else {
            "judge"
        }));
        return Speech {
            text: format!("{lead}{}", prose::about(draft, luck)),
            acts,
        };
    }
    hand_in(course, &so_far, luck)
}

fn mend(course: &Course, written: usize, before: &Turn, luck: &mut Luck) -> Speech {
    let draft = &course.drafts[written];
    let Some(mistake) = &draft.mistake else {
        return Speech {
            text: String::new(),
            acts: vec![Act::Bare("submit")],
        };
    };
    Speech {
        text: prose::repair(mistake, &before.observed, luck),
        acts: vec![
            Act::Edit {
                path: mistake.path.clone(),
                old: mistake.wrong.clone(),
                new: mistake.right.clone(),
            },
            Act::Bare("verify"),
        ],
    }
}

/// Submits the fastest, which is written again if another lies there.
fn hand_in(course: &Course, so_far: &Progress, luck: &mut Luck) -> Speech {
    let fastest = so_far.passed.iter().min_by(|(_, one), (_, other)| {
        one.unwrap_or(f64::MAX)
            .total_cmp(&other.unwrap_or(f64::MAX))
    });
    let Some((draft, time)) = fastest else {
        return Speech {
            text: prose::done(None, false, luck),
            acts: vec![Act::Bare("submit")],
        };
    };
    let lies_there = so_far.written == Some(*draft);
    let mut acts = Vec::new();
    if !lies_there {
        let files = &course.drafts[*draft].solution.files;
        acts.extend(
            files
                .iter()
                .rev()
                .map(|(path, text)| Act::Write(path.clone(), text.clone())),
        );
    }
    acts.push(Act::Bare("submit"));
    Speech {
        text: prose::done(*time, !lies_there, luck),
        acts,
    }
}

impl Speech {
    fn fenced(self) -> Reply {
        let mut text = self.text;
        for act in self.acts {
            text.push_str("\n\n");
            let part = match act {
                Act::Read(path) => format!("read {path}"),
                Act::Bare(word) => word.to_owned(),
                Act::Write(path, content) => {
                    format!("write {path}\n```{}\n{content}```", language(&path))
                }
                Act::Edit { path, old, new } => {
                    format!("edit {path}\n```\n<<<<<<<\n{old}\n=======\n{new}\n>>>>>>>\n```")
                }
            };
            text.push_str(&part);
        }
        said(text, Vec::new())
    }

    fn called(self) -> Reply {
        let calls = self.acts.into_iter().enumerate().map(|(number, act)| {
            let (name, arguments): (&str, Value) = match act {
                Act::Read(path) => ("read", json!({ "path": path })),
                Act::Bare(word) => (word, json!({})),
                Act::Write(path, content) => ("write", json!({ "path": path, "content": content })),
                Act::Edit { path, old, new } => {
                    ("edit", json!({ "path": path, "old": old, "new": new }))
                }
            };
            ToolCall {
                id: format!("call_{}", number + 1),
                name: name.to_owned(),
                arguments,
            }
        });
        said(self.text, calls.collect())
    }
}

fn said(text: String, calls: Vec<ToolCall>) -> Reply {
    Reply {
        text,
        finish: if calls.is_empty() {
            Finish::Stopped
        } else {
            Finish::Calls
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
