//! The loop: a policy is asked, the tools it calls are run, it is told what they gave, until it submits or a limit is met.

use std::borrow::Cow;
use std::path::Path;
use std::time::Duration;

use warpsmith_model::policy::{Policy, PolicyError, Reply, Request, Sampling};
use warpsmith_schema::{
    Elision, EpisodeEnding, EpisodeLimit, EpisodeMode, Message, Target, Task, ToolCall, ToolSchema,
    Usage,
};

use crate::court::{AgentError, Court, Watch};
use crate::elision::{self, Answered};
use crate::episode::{Episode, Sample, ending_of};
use crate::shell::Confines;
use crate::tools::{Answer, Effect, Tools, schemas};
use crate::wire::{Wire, calls};
use crate::{Unreadable, Workspace, feedback, prompt};

/// How an episode of the loop is run.
#[derive(Debug, Clone)]
pub struct AgentSettings {
    pub target: Target,
    pub sampling: Sampling,
    pub wire: Wire,
    pub size: Size,
    pub limits: AgentLimits,
    pub confines: Confines,
}

/// Where an episode ends at the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentLimits {
    pub turns: u32,
    /// Of the conversation, replies included.
    pub tokens: u64,
    pub wall: Option<Duration>,
}

/// How much a policy can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// A small model with a small context: the compact skill, short answers.
    Small,
    Large,
}

impl Size {
    pub fn limits(self) -> AgentLimits {
        let (turns, tokens) = match self {
            Self::Small => (8, 8 << 10),
            Self::Large => (40, 128 << 10),
        };
        AgentLimits {
            turns,
            tokens,
            wall: None,
        }
    }

    pub(crate) fn answer_characters(self) -> usize {
        match self {
            Self::Small => 1500,
            Self::Large => 12_000,
        }
    }
}

/// Replies in a row without a call, and calls in a row that were the same, before it is over.
const PATIENCE: u32 = 3;

/// Runs one episode in `folder`, which is made. What it comes to, the watch is told.
pub fn run_agent(
    policy: &mut dyn Policy,
    court: &mut dyn Court,
    task: &Task,
    folder: &Path,
    settings: &AgentSettings,
    sample: Sample,
    watch: &mut dyn Watch,
) -> Result<(), AgentError> {
    let workspace = Workspace::open(folder, &task.source)?;
    let tools = Tools::new(
        workspace,
        settings.confines.clone(),
        court,
        settings.size.answer_characters(),
    );
    let kind = (EpisodeMode::Agent, settings.target);
    let opening = || prompt::for_agent(task, settings);
    let episode = Episode::begin(sample, &*policy, task, kind, opening);
    let mut running = Running {
        context: elision::size(&elision::shown(episode.messages(), episode.elisions())),
        answered: answered(episode.messages()),
        episode,
        tools,
        schemas: match settings.wire {
            Wire::Json => schemas(),
            Wire::Fenced => Vec::new(),
        },
        settings,
        idle: 0,
        same: 0,
        before: None,
    };
    let ending = running.run(policy, watch);
    // Whatever happened, what was said and judged till then is kept.
    let ended = ending.as_ref().ok().cloned();
    running.episode.reach(ended, watch)?;
    ending.map(drop)
}

struct Running<'a> {
    episode: Episode,
    tools: Tools<'a>,
    schemas: Vec<ToolSchema>,
    settings: &'a AgentSettings,
    /// Replies in a row without a call.
    idle: u32,
    /// Replies in a row like the one before.
    same: u32,
    before: Option<(String, Vec<ToolCall>)>,
    /// Messages that answer calls.
    answered: Vec<Answered>,
    /// Tokens of the conversation so far, as it is shown.
    context: u64,
}

/// Why old tool output is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// It is time to, if that frees much.
    Soon,
    /// Otherwise it is over.
    Now,
}

impl Running<'_> {
    fn run(
        &mut self,
        policy: &mut dyn Policy,
        watch: &mut dyn Watch,
    ) -> Result<EpisodeEnding, AgentError> {
        let limits = self.settings.limits;
        for turn in self.episode.replies() + 1..=limits.turns {
            if watch.interrupted() {
                return Ok(EpisodeEnding::Interrupted);
            }
            if limits
                .wall
                .is_some_and(|wall| self.episode.seconds() > wall.as_secs_f64())
            {
                return Ok(EpisodeEnding::Limit {
                    which: EpisodeLimit::Time,
                });
            }
            self.keep_room(turn, watch);
            if self.left() < MIN_REPLY_TOKENS {
                return Ok(EpisodeEnding::Limit {
                    which: EpisodeLimit::Tokens,
                });
            }
            watch.asking(&[self.episode.sample()], turn);
            let reply = match self.ask(turn, policy, watch) {
                Ok(reply) => reply,
                Err(error) => return Ok(ending_of(&error)),
            };
            if let Some(ending) = self.act(reply, watch)? {
                return Ok(ending);
            }
            self.episode.reach(None, watch)?;
        }
        Ok(EpisodeEnding::Limit {
            which: EpisodeLimit::Turns,
        })
    }

    fn ask(
        &mut self,
        turn: u32,
        policy: &mut dyn Policy,
        watch: &mut dyn Watch,
    ) -> Result<Reply, PolicyError> {
        loop {
            let sample = self.episode.sample();
            let sampling = self.episode.sampling(self.settings.sampling);
            let left = self.left().try_into().unwrap_or(u32::MAX);
            let request = Request {
                messages: &self.shown(),
                tools: &self.schemas,
                sampling: Sampling {
                    max_tokens: sampling.max_tokens.min(left),
                    ..sampling
                },
            };
            match policy.reply(&request, &mut |piece| watch.text(sample, piece)) {
                // Its context may be smaller than the limit, which only asking tells.
                Err(PolicyError::ContextFull { .. })
                    if self.make_room(turn, self.context / 2, Need::Now, watch) => {}
                other => return other,
            }
        }
    }

    fn shown(&self) -> Cow<'_, [Message]> {
        elision::shown(self.episode.messages(), self.episode.elisions())
    }

    fn left(&self) -> u64 {
        self.settings.limits.tokens.saturating_sub(self.context)
    }

    /// Leaves old tool output out before a reply would be cut for want of room.
    fn keep_room(&mut self, turn: u32, watch: &mut dyn Watch) {
        let limit = self.settings.limits.tokens;
        let reply = u64::from(self.settings.sampling.max_tokens).min(limit / 4);
        let need = match self.left() {
            left if left < MIN_REPLY_TOKENS => Need::Now,
            left if left < reply => Need::Soon,
            _ => return,
        };
        self.make_room(turn, limit / 2, need, watch);
    }

    /// Brings the conversation down to this many tokens, or as near as can be. Whether anything was left out.
    fn make_room(&mut self, turn: u32, goal: u64, need: Need, watch: &mut dyn Watch) -> bool {
        let shown = self.shown();
        let excess = self.context.saturating_sub(goal);
        let goal = elision::size(&shown).saturating_sub(excess);
        let plan = elision::plan(&shown, &self.answered, goal);
        // A little every turn would have the whole conversation read anew every turn.
        let much = plan.freed_tokens >= self.settings.limits.tokens / 8;
        if plan.left_out.is_empty() || !(much || need == Need::Now) {
            return false;
        }
        self.context = self.context.saturating_sub(plan.freed_tokens);
        let elision = Elision {
            turn,
            freed_tokens: plan.freed_tokens,
            elided: plan.left_out,
        };
        watch.elided(self.episode.sample(), &elision);
        self.episode.elided(elision);
        true
    }

    fn act(
        &mut self,
        reply: Reply,
        watch: &mut dyn Watch,
    ) -> Result<Option<EpisodeEnding>, AgentError> {
        self.context = context(&reply.usage, &self.shown(), &reply.text);
        let (wanted, wrong) = match self.settings.wire {
            Wire::Json if reply.calls.is_empty() => (Vec::new(), Some(Unreadable::NoCall)),
            Wire::Json => (reply.calls.clone(), None),
            Wire::Fenced => match calls(&reply.text) {
                Ok(found) => (found, None),
                Err(why) => (Vec::new(), Some(why)),
            },
        };
        let calls = match self.settings.wire {
            Wire::Json => wanted.clone(),
            // They are in the text already: a template would show them twice.
            Wire::Fenced => Vec::new(),
        };
        self.episode.said(&reply, calls);
        let said = Some((reply.text, without_ids(&wanted)));
        self.same = if said == self.before {
            self.same + 1
        } else {
            0
        };
        self.before = said;
        if self.same + 1 >= PATIENCE {
            return Ok(Some(EpisodeEnding::Looping));
        }
        let Some(why) = wrong else {
            self.idle = 0;
            return self.run_calls(&wanted, watch);
        };
        watch.unreadable(self.episode.sample(), &why);
        self.idle += 1;
        if self.idle >= PATIENCE {
            return Ok(Some(EpisodeEnding::NothingUsable));
        }
        let text = feedback::on_no_call(&why, self.settings.wire);
        self.episode.told(Message::User { text });
        Ok(None)
    }

    fn run_calls(
        &mut self,
        wanted: &[ToolCall],
        watch: &mut dyn Watch,
    ) -> Result<Option<EpisodeEnding>, AgentError> {
        let sample = self.episode.sample();
        let message = self.episode.messages().len() as u32 - 1;
        let mut told = Vec::new();
        let mut ending = Ok(None);
        for call in wanted {
            if let Ok(None) = ending
                && watch.interrupted()
            {
                ending = Ok(Some(EpisodeEnding::Interrupted));
            }
            // Every call has an answer, so that the conversation can be gone on with.
            if !matches!(ending, Ok(None)) {
                told.push((call, CUT_SHORT.to_owned(), true));
                continue;
            }
            watch.called(sample, call);
            let Answer {
                text,
                failed,
                effect,
            } = match self.tools.call(call) {
                // What was killed looks like a failure of the candidate's.
                Ok(_) if watch.interrupted() => {
                    ending = Ok(Some(EpisodeEnding::Interrupted));
                    Answer::bad(CUT_SHORT)
                }
                Ok(answer) => answer,
                Err(error) => {
                    ending = Err(error.into());
                    Answer::bad(CUT_SHORT)
                }
            };
            watch.answered(sample, call, &text, failed);
            let (judged, submitted) = match effect {
                Effect::Nothing | Effect::Rehearsed(_) => (None, false),
                Effect::Judged(verdict, files) => (Some((verdict, files)), false),
                Effect::Submitted(verdict, files) => (Some((verdict, files)), true),
            };
            if let Some((verdict, files)) = judged {
                watch.judged(sample, &verdict);
                self.episode.attempted(message, &files, *verdict);
            }
            told.push((call, text, failed));
            if submitted {
                ending = Ok(Some(EpisodeEnding::Finished));
                break;
            }
        }
        self.tell(told);
        ending
    }

    /// As the wire has it: one message a call, or one for all in the policy's own form.
    fn tell(&mut self, told: Vec<(&ToolCall, String, bool)>) {
        match self.settings.wire {
            Wire::Json => {
                for (call, text, failed) in told {
                    self.answer(
                        vec![call.name.clone()],
                        Message::Tool {
                            call: call.id.clone(),
                            name: call.name.clone(),
                            text,
                            failed,
                        },
                    );
                }
            }
            Wire::Fenced => {
                let parts: Vec<String> = told
                    .iter()
                    .map(|(call, text, failed)| {
                        let how = if *failed { " failed" } else { "" };
                        format!("{}{how}:\n{text}", call.name)
                    })
                    .collect();
                let text = parts.join("\n\n");
                let tools = told.iter().map(|(call, ..)| call.name.clone()).collect();
                self.answer(tools, Message::User { text });
            }
        }
    }

    fn answer(&mut self, tools: Vec<String>, message: Message) {
        self.context += elision::tokens(message.text());
        self.answered.push(Answered {
            message: self.episode.messages().len(),
            tools,
        });
        self.episode.told(message);
    }
}

/// The answer to a call that was not run to its end.
const CUT_SHORT: &str = "the run was interrupted before this was done: call it again";

/// A reply shorter than this cannot hold a kernel.
const MIN_REPLY_TOKENS: u64 = 256;

/// Tokens of the conversation: as the policy counts, else guessed from its length.
fn context(usage: &Usage, shown: &[Message], reply: &str) -> u64 {
    match usage.prompt_tokens + usage.completion_tokens {
        0 => elision::size(shown) + elision::tokens(reply),
        counted => counted,
    }
}

/// The messages of an episode gone on with that answer calls.
fn answered(messages: &[Message]) -> Vec<Answered> {
    let mut called = Vec::new();
    let mut answered = Vec::new();
    for (message, one) in messages.iter().enumerate() {
        let tools = match one {
            Message::Assistant { text, .. } => {
                called = calls(text).unwrap_or_default();
                continue;
            }
            Message::Tool { name, .. } => vec![name.clone()],
            // In fenced form the next message answers all calls of a reply.
            Message::User { .. } if !called.is_empty() => std::mem::take(&mut called)
                .into_iter()
                .map(|call| call.name)
                .collect(),
            _ => continue,
        };
        answered.push(Answered { message, tools });
    }
    answered
}

/// Two replies are the same whatever their calls are numbered.
fn without_ids(calls: &[ToolCall]) -> Vec<ToolCall> {
    let without = |call: &ToolCall| ToolCall {
        id: String::new(),
        ..call.clone()
    };
    calls.iter().map(without).collect()
}
