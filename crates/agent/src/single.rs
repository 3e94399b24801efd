//! One prompt, one reply with the files, one verdict; a failed attempt may be repaired a few times.
//!
//! Several episodes of a task go side by side, turn by turn: they are asked together, which some policies answer much
//! sooner than one after the other, and judged one at a time.

use std::time::Duration;

use warpsmith_model::policy::{Finish, Policy, Request, Said, Sampling};
use warpsmith_schema::{
    EpisodeEnding, EpisodeLimit, EpisodeMode, MODEL_NEW, Message, Target, Task,
};

use crate::court::{AgentError, Court, Watch};
use crate::episode::{Episode, Sample, ending_of};
use crate::fenced::{Files, Unreadable, read_files};
use crate::{feedback, prompt};

/// How an episode is run.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub target: Target,
    /// Attempts after the first, each told what was wrong with the one before.
    pub repairs: u32,
    /// Nothing is asked after this long.
    pub wall: Option<Duration>,
    pub sampling: Sampling,
}

/// Runs an episode for each sample. What they come to, the watch is told.
pub fn run_single(
    policy: &mut dyn Policy,
    court: &mut dyn Court,
    task: &Task,
    settings: &Settings,
    samples: Vec<Sample>,
    watch: &mut dyn Watch,
) -> Result<(), AgentError> {
    let kind = (EpisodeMode::Single, settings.target);
    let mut open: Vec<Conversation> = samples
        .into_iter()
        .map(|sample| {
            let opening = || prompt::opening(task, settings.target);
            Conversation {
                episode: Episode::begin(sample, &*policy, task, kind, opening),
                finish: Finish::Stopped,
                over: false,
            }
        })
        .collect();
    while !open.is_empty() && !watch.interrupted() {
        // First what an earlier run left unread.
        for one in open.iter_mut().filter(|one| one.has_reply()) {
            if watch.interrupted() {
                return Ok(());
            }
            one.read(court, settings, watch)?;
        }
        open.retain(|one| !one.over);
        ask(&mut open, policy, settings, watch)?;
        open.retain(|one| !one.over);
    }
    Ok(())
}

struct Conversation {
    episode: Episode,
    /// Of the last reply. Of one that an earlier run left unread it is not known, and most often it had stopped.
    finish: Finish,
    over: bool,
}

/// Asks those that have come least far and keeps each reply as soon as it is there. None of them has one unread.
fn ask(
    open: &mut [Conversation],
    policy: &mut dyn Policy,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<(), AgentError> {
    let Some(fewest) = open.iter().map(|one| one.episode.replies()).min() else {
        return Ok(());
    };
    let mut asked: Vec<&mut Conversation> = open
        .iter_mut()
        .filter(|one| one.episode.replies() == fewest)
        .collect();
    let wall = settings.wall.map(|wall| wall.as_secs_f64());
    if wall.is_some_and(|wall| asked.iter().any(|one| one.episode.seconds() > wall)) {
        for one in asked {
            one.end(
                EpisodeEnding::Limit {
                    which: EpisodeLimit::Time,
                },
                watch,
            )?;
        }
        return Ok(());
    }
    let numbers: Vec<u32> = asked.iter().map(|one| one.episode.sample()).collect();
    watch.asking(&numbers, fewest + 1);
    let messages: Vec<Vec<Message>> = asked
        .iter()
        .map(|one| one.episode.messages().to_vec())
        .collect();
    let requests: Vec<Request<'_>> = asked
        .iter()
        .zip(&messages)
        .map(|(one, messages)| Request {
            messages,
            tools: &[],
            sampling: one.episode.sampling(settings.sampling),
        })
        .collect();
    let mut kept = Ok(());
    policy.reply_many(&requests, &mut |number, said| {
        let one = &mut *asked[number];
        let reached = match said {
            Said::Piece(piece) => {
                watch.text(one.episode.sample(), piece);
                return;
            }
            Said::Whole(Ok(reply)) => {
                one.finish = reply.finish;
                one.episode.said(&reply, Vec::new());
                one.episode.reach(None, watch)
            }
            Said::Whole(Err(error)) => one.end(ending_of(&error), watch),
        };
        if kept.is_ok() {
            kept = reached;
        }
    });
    kept
}

impl Conversation {
    /// Whether there is a reply that was not acted on.
    fn has_reply(&self) -> bool {
        let last = self.episode.messages().last();
        matches!(last, Some(Message::Assistant { .. }))
    }

    fn end(&mut self, ending: EpisodeEnding, watch: &mut dyn Watch) -> Result<(), AgentError> {
        self.over = true;
        self.episode.reach(Some(ending), watch)
    }

    /// Has the last reply judged, and says what was wrong with it.
    fn read(
        &mut self,
        court: &mut dyn Court,
        settings: &Settings,
        watch: &mut dyn Watch,
    ) -> Result<(), AgentError> {
        let sample = self.episode.sample();
        let replies = self.episode.messages().iter();
        let mut replies = replies.filter_map(|message| match message {
            Message::Assistant { text, .. } => Some(text.clone()),
            _ => None,
        });
        let text = replies.next_back().unwrap_or_default();
        // Told what is wrong, it said the same again: so it would the next time.
        if replies.next_back().as_ref() == Some(&text) {
            return self.end(EpisodeEnding::Looping, watch);
        }
        let told = match readable(&text, self.finish) {
            Ok(files) => {
                let before = self.episode.attempts().last();
                let files = match before {
                    Some(before) => completed(files, &before.files),
                    None => files,
                };
                watch.judging(sample, &files);
                let verdict = court.judge(&files)?;
                watch.judged(sample, &verdict);
                let (passed, told) = (verdict.passed(), feedback::on_verdict(&verdict));
                let message = self.episode.messages().len() as u32 - 1;
                self.episode.attempted(message, &files, verdict);
                if passed {
                    return self.end(EpisodeEnding::Finished, watch);
                }
                told
            }
            Err(why) => {
                watch.unreadable(sample, &why);
                feedback::on_unreadable(&why)
            }
        };
        if self.episode.replies() <= settings.repairs {
            self.episode.told(Message::User { text: told });
            return self.episode.reach(None, watch);
        }
        let ending = if self.episode.attempts().is_empty() {
            EpisodeEnding::NothingUsable
        } else {
            EpisodeEnding::Finished
        };
        self.end(ending, watch)
    }
}

/// A repair may name only what it changed. With a module of its own it stands for itself: what an earlier one called is not
/// wanted any more.
fn completed(mut files: Files, before: &Files) -> Files {
    if !files.contains_key(MODEL_NEW) {
        for (path, text) in before {
            files.entry(path.clone()).or_insert_with(|| text.clone());
        }
    }
    files
}

fn readable(text: &str, finish: Finish) -> Result<Files, Unreadable> {
    let files = read_files(text)?;
    match files.keys().next_back() {
        // Closed or not, a reply that ran into its limit has lost what was to come.
        Some(path) if finish == Finish::Length => Err(Unreadable::CutOff { path: path.clone() }),
        _ => Ok(files),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(paths: &[(&str, &str)]) -> Files {
        let owned = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        paths.iter().map(owned).collect()
    }

    #[test]
    fn a_repair_of_one_file_keeps_the_others() {
        let before = files(&[
            (MODEL_NEW, "old"),
            ("kernels/x.cpp", "old"),
            ("kernels/y.cpp", "old"),
        ]);
        let mended = completed(files(&[("kernels/x.cpp", "new")]), &before);
        let expected = files(&[
            (MODEL_NEW, "old"),
            ("kernels/x.cpp", "new"),
            ("kernels/y.cpp", "old"),
        ]);
        assert_eq!(mended, expected);
        let whole = files(&[(MODEL_NEW, "new"), ("kernels/z.cpp", "new")]);
        assert_eq!(completed(whole.clone(), &before), whole);
    }
}
