//! What a policy is told: the task, the parent with its profile, others to be inspired by, what failed so far, and the move.

use std::collections::BTreeMap;
use std::fmt::Write;

use warpsmith_agent::{
    FencedFiles, PromptStyle, StartingPoint, describe_verdict, opening_messages,
};
use warpsmith_schema::{Message, SearchMove, Status, Target, Task};

use crate::Candidate;

/// The most characters of another candidate's files.
const MAX_INSPIRATION: usize = 6000;
/// The most characters of a profile.
const MAX_PROFILE: usize = 3000;
/// The most rules that are told.
const MAX_RULES: usize = 5;
const MAX_RULE: usize = 160;

const DIFF: &str = "Change only what must be changed. For each file that changes, write its path on a line and below it one fenced block with all changes of that file, each in this form:\n\n<<<<<<< SEARCH\nthe lines as they are\n=======\nthe lines as they should be\n>>>>>>> REPLACE";

/// One question to a policy.
pub(crate) struct Question<'a> {
    pub(crate) task: &'a Task,
    pub(crate) target: Target,
    pub(crate) made_by: SearchMove,
    /// What to try.
    pub(crate) strategy: Option<&'a str>,
    pub(crate) parents: &'a [&'a Candidate],
    /// Where the parent's time goes.
    pub(crate) profile: Option<&'a str>,
    /// A candidate of another cell, shown where it is not a parent.
    pub(crate) inspiration: Option<&'a Candidate>,
    pub(crate) rules: &'a [String],
}

impl Question<'_> {
    pub(crate) fn messages(&self) -> Vec<Message> {
        let parent = self.parents.first().copied();
        let start = match self.made_by {
            // What did not pass is shown with what is wrong with it.
            SearchMove::Repair => None,
            _ => parent.and_then(starting_point),
        };
        let mut messages =
            opening_messages(self.task, self.target, PromptStyle::Full, start.as_ref());
        if let Some(Message::User { text }) = messages.last_mut() {
            self.add(text, parent);
        }
        messages
    }

    fn add(&self, text: &mut String, parent: Option<&Candidate>) {
        if let Some(profile) = self.profile {
            let clipped: String = profile.chars().take(MAX_PROFILE).collect();
            let _ = write!(text, "\n\nWhere its time goes:\n\n{}", clipped.trim_end());
        }
        match (self.made_by, parent) {
            (SearchMove::Repair, Some(parent)) => {
                text.push_str("\n\nThis attempt does not pass. Its files:");
                shown(text, parent.files(), usize::MAX);
                let described = parent.verdict.as_ref().map(describe_verdict);
                let _ = write!(text, "\n\n{}", described.unwrap_or_default());
                text.push_str("\n\nMend it. A file that you leave as it is need not be repeated.");
            }
            (SearchMove::Crossover, _) => {
                if let Some(other) = self.parents.get(1) {
                    let _ = write!(
                        text,
                        "\n\nAnother solution takes {}. Its files:",
                        time(other)
                    );
                    shown(text, other.files(), MAX_INSPIRATION);
                    text.push_str(
                        "\n\nWrite one that has what is best in both, and is faster than either.",
                    );
                }
            }
            _ => {
                if let Some(other) = self.inspiration {
                    let _ = write!(
                        text,
                        "\n\nFor inspiration, another solution that takes {}:",
                        time(other)
                    );
                    shown(text, other.files(), MAX_INSPIRATION);
                }
            }
        }
        if let Some(strategy) = self.strategy {
            let _ = write!(text, "\n\nTry this: {strategy}");
        }
        if self.made_by == SearchMove::Diff {
            let _ = write!(text, "\n\n{DIFF}");
        }
        if !self.rules.is_empty() {
            text.push_str("\n\nAttempts before failed like this; avoid it:");
            for rule in self.rules {
                let _ = write!(text, "\n- {rule}");
            }
        }
    }
}

fn time(candidate: &Candidate) -> String {
    candidate
        .us()
        .map_or_else(|| "an unknown time".to_owned(), |us| format!("{us:.1} us"))
}

fn starting_point(candidate: &Candidate) -> Option<StartingPoint> {
    let times = candidate.verdict.as_ref()?.times_us.as_ref()?;
    Some(StartingPoint {
        files: candidate.files()?.clone(),
        us: candidate.us()?,
        eager_us: times.eager.0,
        compile_us: times.compile.as_ref().map(|us| us.0),
    })
}

fn shown(text: &mut String, files: Option<&FencedFiles>, most: usize) {
    let Some(files) = files else { return };
    let length: usize = files.values().map(String::len).sum();
    if length > most {
        text.push_str(" too long to show here.");
        return;
    }
    for (path, content) in files {
        let _ = write!(text, "\n\nwrite {path}\n```\n{}\n```", content.trim_end());
    }
}

/// What went wrong most often, in a line each.
pub(crate) fn rules_from_failures(candidates: &[Candidate]) -> Vec<String> {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for one in candidates
        .iter()
        .filter(|one| one.proposed.policy.is_some())
    {
        let why = match (&one.verdict, &one.proposed.unusable) {
            (Some(verdict), _) if verdict.status != Status::Passed => {
                let reason = verdict.reason.as_deref().unwrap_or_default();
                format!(
                    "{}: {}",
                    verdict.status.name().replace('_', " "),
                    gist(reason)
                )
            }
            (None, Some(why)) => why.clone(),
            _ => continue,
        };
        let why: String = why.chars().take(MAX_RULE).collect();
        *counts.entry(why).or_default() += 1;
    }
    let mut rules: Vec<(String, u32)> = counts.into_iter().collect();
    // Stable: of equal counts by the alphabet.
    rules.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    rules
        .into_iter()
        .take(MAX_RULES)
        .map(|(why, _)| why)
        .collect()
}

/// The line that matters: a compiler names files before its first error, Python ends with what went wrong.
fn gist(reason: &str) -> &str {
    let mut lines = reason
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    let first = lines.clone().next().unwrap_or_default();
    if first.starts_with("Traceback ") {
        return lines.next_back().unwrap_or(first);
    }
    let error = lines.find_map(|line| line.split_once("error: ").map(|(_, what)| what));
    error.unwrap_or(first)
}
