//! One prompt, one reply with the files, one verdict; a failed attempt may be repaired a few times.

use std::time::Duration;

use warpsmith_model::policy::{Finish, Policy, Request, Sampling};
use warpsmith_schema::{Ending, Limit, MODEL_NEW, Message, Mode, Target, Task, Trajectory};

use crate::court::{AgentError, Court, Watch};
use crate::episode::{Episode, ending_of};
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

/// Runs one episode.
pub fn run_single(
    policy: &mut dyn Policy,
    court: &mut dyn Court,
    task: &Task,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<Trajectory, AgentError> {
    let mut episode = Episode::begin(prompt::opening(task, settings.target));
    let ending = run(&mut episode, policy, court, settings, watch)?;
    Ok(episode.end(policy, task, settings.target, Mode::Single, ending))
}

fn run(
    episode: &mut Episode,
    policy: &mut dyn Policy,
    court: &mut dyn Court,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<Ending, AgentError> {
    let mut before = None;
    let mut kept = Files::new();
    for attempt in 1..=settings.repairs + 1 {
        if watch.interrupted() {
            return Ok(Ending::Interrupted);
        }
        let wall = settings.wall.map(|wall| wall.as_secs_f64());
        if wall.is_some_and(|wall| episode.seconds() > wall) {
            return Ok(Ending::Limit { which: Limit::Time });
        }
        watch.asking(attempt);
        let request = Request {
            messages: &episode.messages,
            tools: &[],
            sampling: settings.sampling,
        };
        let reply = match policy.reply(&request, &mut |piece| watch.text(piece)) {
            Ok(reply) => reply,
            Err(error) => return Ok(ending_of(&error)),
        };
        let message = episode.said(reply.text.clone(), Vec::new(), reply.usage, reply.tokens);
        // Told what is wrong, it said the same again: so it would the next time.
        if before.as_ref() == Some(&reply.text) {
            return Ok(Ending::Looping);
        }
        let told = match readable(&reply.text, reply.finish) {
            Ok(files) => {
                let files = completed(files, &kept);
                kept.clone_from(&files);
                watch.judging(&files);
                let verdict = court.judge(&files)?;
                if watch.interrupted() {
                    return Ok(Ending::Interrupted);
                }
                watch.judged(&verdict);
                let (passed, told) = (verdict.passed(), feedback::on_verdict(&verdict));
                episode.attempted(message, &files, verdict);
                if passed {
                    return Ok(Ending::Finished);
                }
                told
            }
            Err(why) => {
                watch.unreadable(&why);
                feedback::on_unreadable(&why)
            }
        };
        before = Some(reply.text);
        if attempt <= settings.repairs {
            episode.messages.push(Message::User { text: told });
        }
    }
    Ok(if episode.attempts.is_empty() {
        Ending::NothingUsable
    } else {
        Ending::Finished
    })
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
