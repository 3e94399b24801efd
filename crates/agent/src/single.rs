//! One prompt, one reply with the files, one verdict; a failed attempt may be repaired a few times.

use warpsmith_model::policy::{FinishReason, Policy, PolicyRequest};
use warpsmith_schema::{EpisodeEnding, EpisodeLimit, EpisodeMode, MODEL_NEW, Message};

use crate::episode::{Episode, Sample, ending_of};
use crate::fenced::{FencedFiles, UnusableReply, read_files};
use crate::settings::{SingleSettings, is_past};
use crate::{
    AgentError, EpisodeJudge, EpisodeObserver, EpisodeProgress, StartingPoint, feedback, prompt,
};

/// Runs one episode. The observer keeps what it comes to.
pub fn run_single(
    policy: &mut dyn Policy,
    judge: &mut EpisodeJudge<'_>,
    settings: &SingleSettings,
    sample: Sample,
    observer: &mut dyn EpisodeObserver,
) -> Result<(), AgentError> {
    let task = judge.task;
    let kind = (EpisodeMode::Single, settings.target);
    let start = sample.start.clone();
    let opening = || prompt::for_single(task, settings.target, settings.prompt, start.as_deref());
    let mut conversation = Conversation {
        start: start.as_deref(),
        episode: Episode::begin(sample, &*policy, task, kind, opening),
        finish: FinishReason::Stopped,
        settings,
    };
    while !observer.interrupted() {
        // An earlier process may have left a reply unread.
        let ending = if conversation.has_unread_reply() {
            conversation.read(judge, observer)?
        } else {
            conversation.ask(policy, observer)
        };
        let ended = ending.is_some();
        conversation.episode.save(ending, observer)?;
        if ended {
            break;
        }
    }
    Ok(())
}

struct Conversation<'a> {
    start: Option<&'a StartingPoint>,
    episode: Episode,
    /// Why the last reply ended. Of one that an earlier process left unread this is not known; most replies stop by themselves.
    finish: FinishReason,
    settings: &'a SingleSettings,
}

impl Conversation<'_> {
    fn has_unread_reply(&self) -> bool {
        let last = self.episode.messages().last();
        matches!(last, Some(Message::Assistant { .. }))
    }

    fn ask(
        &mut self,
        policy: &mut dyn Policy,
        observer: &mut dyn EpisodeObserver,
    ) -> Option<EpisodeEnding> {
        if is_past(self.settings.deadline) {
            return Some(EpisodeEnding::Limit {
                which: EpisodeLimit::Time,
            });
        }
        let turn = self.episode.replies() + 1;
        observer.progress(&EpisodeProgress::Asking { turn });
        let request = PolicyRequest {
            messages: self.episode.messages(),
            tools: &[],
            sampling: self.episode.sampling(self.settings.sampling),
        };
        let reply = policy.reply(&request, &mut |piece| {
            observer.progress(&EpisodeProgress::Text(piece));
        });
        match reply {
            Ok(reply) => {
                self.finish = reply.finish;
                self.episode.add_reply(&reply, Vec::new());
                None
            }
            Err(error) => Some(ending_of(&error)),
        }
    }

    /// Has the last reply judged, and says what was wrong with it.
    fn read(
        &mut self,
        judge: &mut EpisodeJudge<'_>,
        observer: &mut dyn EpisodeObserver,
    ) -> Result<Option<EpisodeEnding>, AgentError> {
        let replies = self.episode.messages().iter();
        let mut replies = replies.filter_map(|message| match message {
            Message::Assistant { text, .. } => Some(text.clone()),
            _ => None,
        });
        let text = replies.next_back().unwrap_or_default();
        // Told what is wrong, it gave the same reply again: so it would the next time.
        if replies.next_back().as_ref() == Some(&text) {
            return Ok(Some(EpisodeEnding::Looping));
        }
        let feedback = match usable_files(&text, self.finish) {
            Ok(files) => {
                let before = self.episode.attempts().last().map(|last| &last.files);
                let files = match before.or(self.start.map(|start| &start.files)) {
                    Some(before) => completed(files, before),
                    None => files,
                };
                observer.progress(&EpisodeProgress::Judging(&files));
                let verdict = judge.judge(&files)?;
                observer.progress(&EpisodeProgress::Judged(&verdict));
                let passed = verdict.passed();
                let slower = self.start.filter(|start| passed && start.beats(&verdict));
                let feedback = match slower {
                    Some(start) => feedback::on_slower(&verdict, start),
                    None => feedback::on_verdict(&verdict),
                };
                let message = self.episode.messages().len() as u32 - 1;
                self.episode.add_attempt(message, &files, verdict);
                if passed && slower.is_none() {
                    return Ok(Some(EpisodeEnding::Finished));
                }
                feedback
            }
            Err(why) => {
                observer.progress(&EpisodeProgress::Unusable(&why));
                feedback::on_unusable(&why)
            }
        };
        if self.episode.replies() <= self.settings.repairs {
            self.episode.add_message(Message::User { text: feedback });
            return Ok(None);
        }
        Ok(Some(if self.episode.attempts().is_empty() {
            EpisodeEnding::NothingUsable
        } else {
            EpisodeEnding::Finished
        }))
    }
}

/// A repair may hold only the files it changed. One with a module of its own stands for itself: what an earlier module called
/// is not wanted any more.
fn completed(mut files: FencedFiles, before: &FencedFiles) -> FencedFiles {
    if !files.contains_key(MODEL_NEW) {
        for (path, text) in before {
            files.entry(path.clone()).or_insert_with(|| text.clone());
        }
    }
    files
}

fn usable_files(text: &str, finish: FinishReason) -> Result<FencedFiles, UnusableReply> {
    let files = read_files(text)?;
    match files.keys().next_back() {
        // Closed or not, a reply that ran into its limit has lost what was to come.
        Some(path) if finish == FinishReason::Length => {
            Err(UnusableReply::CutOff { path: path.clone() })
        }
        _ => Ok(files),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(paths: &[(&str, &str)]) -> FencedFiles {
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
        let repaired = completed(files(&[("kernels/x.cpp", "new")]), &before);
        let expected = files(&[
            (MODEL_NEW, "old"),
            ("kernels/x.cpp", "new"),
            ("kernels/y.cpp", "old"),
        ]);
        assert_eq!(repaired, expected);
        let whole = files(&[(MODEL_NEW, "new"), ("kernels/z.cpp", "new")]);
        assert_eq!(completed(whole.clone(), &before), whole);
    }
}
