//! Replies that were written down and not judged, in the form of episodes.

use warpsmith_schema::{
    EpisodeEnding, EpisodeMode, Message, PolicyVersion, Target, Task, Trajectory,
};

use crate::episode::identity;
use crate::feedback;
use crate::prompt;
use crate::settings::PromptStyle;

/// An episode of one reply that nobody judged: the prompt as a policy gets it, and the reply.
pub fn unjudged_trajectory(
    task: &Task,
    target: Target,
    prompt: PromptStyle,
    policy: &PolicyVersion,
    sample: u32,
    reply: String,
) -> Trajectory {
    let mut messages = prompt::for_single(task, target, prompt, None);
    messages.push(Message::Assistant {
        text: reply,
        calls: Vec::new(),
    });
    Trajectory {
        id: identity(task, &messages),
        messages,
        ending: EpisodeEnding::Finished,
        ..Trajectory::begin(task, target, policy, sample, EpisodeMode::Single)
    }
}

/// The reply of an episode that ended with a failed attempt: what a correction answers to.
pub fn failed_reply(episode: &Trajectory) -> Option<&str> {
    let attempt = episode.attempts.last()?;
    if episode.best.is_some() || episode.mode != EpisodeMode::Single {
        return None;
    }
    match episode.messages.get(attempt.message as usize)? {
        Message::Assistant { text, .. } => Some(text),
        _ => None,
    }
}

/// That episode up to its failed attempt, what a policy is told of it, and a right reply, which nobody judged. `None` where no
/// attempt failed.
pub fn repaired_trajectory(
    failed: &Trajectory,
    policy: &PolicyVersion,
    reply: String,
) -> Option<Trajectory> {
    failed_reply(failed)?;
    let attempt = failed.attempts.last()?;
    let mut messages = failed.messages[..=attempt.message as usize].to_vec();
    messages.push(Message::User {
        text: feedback::on_verdict(&attempt.verdict),
    });
    messages.push(Message::Assistant {
        text: reply,
        calls: Vec::new(),
    });
    let begun = Trajectory::begin(
        &failed.task,
        failed.target,
        policy,
        failed.sample,
        EpisodeMode::Single,
    );
    Some(Trajectory {
        id: identity(&failed.task, &messages),
        messages,
        attempts: failed.attempts.clone(),
        ending: EpisodeEnding::Finished,
        ..begun
    })
}
