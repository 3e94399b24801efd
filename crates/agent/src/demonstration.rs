//! Replies that were written down and not judged, in the form of episodes.

use warpsmith_schema::{
    EpisodeEnding, EpisodeMode, Message, PolicyVersion, Target, Task, Trajectory,
};

use crate::episode::identity;
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
