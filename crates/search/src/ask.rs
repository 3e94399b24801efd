//! Asking policies, several at a time, without outliving the limit.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use warpsmith_model::policy::{
    FinishReason, PolicyError, PolicyRequest, SamplingParams, SharedPolicy,
};
use warpsmith_schema::{EpisodeId, Message, Usage};

/// How often a policy is asked again that did not answer, and how long until the second time.
const MAX_TRIES: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(100);

/// One question that is under way.
pub(crate) struct Asked {
    pub(crate) policy: std::sync::Arc<dyn SharedPolicy>,
    pub(crate) id: EpisodeId,
    pub(crate) messages: Vec<Message>,
    pub(crate) sampling: SamplingParams,
}

/// What came back.
pub(crate) struct Answer {
    pub(crate) text: Result<(String, FinishReason), String>,
    pub(crate) usage: Usage,
    pub(crate) seconds: f64,
}

/// The answers by the place of their question, each told as it comes. Once `given_up` says so, those that are still written are
/// left behind: nobody waits for them.
pub(crate) fn ask_all(
    questions: Vec<(usize, Asked)>,
    given_up: &dyn Fn() -> bool,
    on_answer: &mut dyn FnMut(usize, Answer),
) {
    let (sender, answers) = channel();
    let mut missing = 0;
    for (place, question) in questions {
        let sender = sender.clone();
        let name = format!("ask-{}", question.id.sample);
        let spawned = thread::Builder::new().name(name).spawn(move || {
            // Nobody may listen any more.
            let _ = sender.send((place, question.ask()));
        });
        missing += usize::from(spawned.is_ok());
    }
    drop(sender);
    while missing > 0 && !given_up() {
        match answers.recv_timeout(POLL) {
            Ok((place, answer)) => {
                missing -= 1;
                on_answer(place, answer);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
}

impl Asked {
    fn ask(&self) -> Answer {
        let begun = Instant::now();
        let mut policy = self.policy.for_episode(&self.id, 0);
        let request = PolicyRequest {
            messages: &self.messages,
            tools: &[],
            sampling: self.sampling,
        };
        let mut result = policy.reply(&request, &mut |_| {});
        let mut pause = FIRST_PAUSE;
        for _ in 1..MAX_TRIES {
            if !result.as_ref().is_err_and(PolicyError::retryable) {
                break;
            }
            thread::sleep(pause);
            pause *= 2;
            result = policy.reply(&request, &mut |_| {});
        }
        let seconds = begun.elapsed().as_secs_f64();
        match result {
            Ok(reply) => Answer {
                usage: reply.usage,
                text: Ok((reply.text, reply.finish)),
                seconds,
            },
            Err(error) => Answer {
                usage: Usage::default(),
                text: Err(error.to_string()),
                seconds,
            },
        }
    }
}
