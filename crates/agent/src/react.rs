//! The `ReAct` loop: a policy is asked, the tools it calls are run, it is told what they gave, until it submits or a limit is
//! reached.

use std::borrow::Cow;
use std::path::Path;

use warpsmith_model::policy::{Policy, PolicyError, PolicyReply, PolicyRequest, SamplingParams};
use warpsmith_schema::{
    Elision, EpisodeEnding, EpisodeLimit, EpisodeMode, Message, ToolCall, ToolSchema, Usage,
};

use crate::elision::{self, ToolMessage};
use crate::episode::{Episode, Sample, ending_of};
use crate::settings::{AgentSettings, is_past};
use crate::tools::{Effect, ToolAnswer, Tools, schemas};
use crate::wire::{WireFormat, calls};
use crate::{
    AgentError, EpisodeJudge, EpisodeObserver, EpisodeProgress, UnusableReply, Workspace, feedback,
    prompt,
};

/// An episode ends after so many replies in a row without a call, or so many that are the same.
const MAX_IDLE_REPLIES: u32 = 3;

/// Runs one episode in `folder`, which is made. The observer keeps what it comes to.
pub fn run_agent(
    policy: &mut dyn Policy,
    judge: EpisodeJudge<'_>,
    folder: &Path,
    settings: &AgentSettings,
    sample: Sample,
    observer: &mut dyn EpisodeObserver,
) -> Result<(), AgentError> {
    let task = judge.task;
    let mut workspace = Workspace::open(folder, &task.source)?;
    // One that goes on has what it made of them.
    if let (Some(start), None) = (&sample.start, &sample.before) {
        workspace.lay_out(&start.files)?;
    }
    let tools = Tools::new(
        workspace,
        settings.sandbox.clone(),
        judge,
        settings.size.answer_characters(),
    );
    let kind = (EpisodeMode::Agent, settings.target);
    let start = sample.start.clone();
    let opening = || prompt::for_agent(task, settings, start.as_deref());
    let episode = Episode::begin(sample, &*policy, task, kind, opening);
    let mut running = Running {
        context: elision::size(&elision::shown(episode.messages(), episode.elisions())),
        tool_messages: tool_messages(episode.messages()),
        episode,
        tools,
        schemas: match settings.wire {
            WireFormat::Json => schemas(),
            WireFormat::Fenced => Vec::new(),
        },
        settings,
        idle: 0,
        repeated: 0,
        before: None,
    };
    let ending = running.run(policy, observer);
    // Whatever happened, the replies and verdicts till then are kept.
    let ended = ending.as_ref().ok().cloned();
    running.episode.save(ended, observer)?;
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
    repeated: u32,
    before: Option<(String, Vec<ToolCall>)>,
    tool_messages: Vec<ToolMessage>,
    /// Tokens of the conversation so far, as it is shown.
    context: u64,
}

/// How urgently old tool output must go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Urgency {
    /// Worth it if that frees much.
    Soon,
    /// Without it the episode ends.
    Now,
}

impl Running<'_> {
    fn run(
        &mut self,
        policy: &mut dyn Policy,
        observer: &mut dyn EpisodeObserver,
    ) -> Result<EpisodeEnding, AgentError> {
        let limits = self.settings.limits;
        for turn in self.episode.replies() + 1..=limits.turns {
            if observer.interrupted() {
                return Ok(EpisodeEnding::Interrupted);
            }
            if is_past(limits.deadline) {
                return Ok(EpisodeEnding::Limit {
                    which: EpisodeLimit::Time,
                });
            }
            self.keep_room(turn, observer);
            if self.left() < MIN_REPLY_TOKENS {
                return Ok(EpisodeEnding::Limit {
                    which: EpisodeLimit::Tokens,
                });
            }
            observer.progress(&EpisodeProgress::Asking { turn });
            let reply = match self.ask(turn, policy, observer) {
                Ok(reply) => reply,
                Err(error) => return Ok(ending_of(&error)),
            };
            if let Some(ending) = self.act(reply, observer)? {
                return Ok(ending);
            }
            self.episode.save(None, observer)?;
        }
        Ok(EpisodeEnding::Limit {
            which: EpisodeLimit::Turns,
        })
    }

    fn ask(
        &mut self,
        turn: u32,
        policy: &mut dyn Policy,
        observer: &mut dyn EpisodeObserver,
    ) -> Result<PolicyReply, PolicyError> {
        loop {
            let sampling = self.episode.sampling(self.settings.sampling);
            let left = self.left().try_into().unwrap_or(u32::MAX);
            let request = PolicyRequest {
                messages: &self.shown(),
                tools: &self.schemas,
                sampling: SamplingParams {
                    max_tokens: sampling.max_tokens.min(left),
                    ..sampling
                },
            };
            let reply = policy.reply(&request, &mut |piece| {
                observer.progress(&EpisodeProgress::Text(piece));
            });
            match reply {
                // Its context may be smaller than the limit, which only asking tells.
                Err(PolicyError::ContextFull { .. })
                    if self.make_room(turn, self.context / 2, Urgency::Now, observer) => {}
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

    /// Leaves old tool output out before a reply would be cut for lack of room.
    fn keep_room(&mut self, turn: u32, observer: &mut dyn EpisodeObserver) {
        let limit = self.settings.limits.tokens;
        let reply = u64::from(self.settings.sampling.max_tokens).min(limit / 4);
        let urgency = match self.left() {
            left if left < MIN_REPLY_TOKENS => Urgency::Now,
            left if left < reply => Urgency::Soon,
            _ => return,
        };
        self.make_room(turn, limit / 2, urgency, observer);
    }

    /// Brings the conversation down to this many tokens, or as near as can be. Whether anything was left out.
    fn make_room(
        &mut self,
        turn: u32,
        goal: u64,
        urgency: Urgency,
        observer: &mut dyn EpisodeObserver,
    ) -> bool {
        let shown = self.shown();
        let excess = self.context.saturating_sub(goal);
        let goal = elision::size(&shown).saturating_sub(excess);
        let plan = elision::plan(&shown, &self.tool_messages, goal);
        // To leave out a little every turn would have the policy read the whole conversation anew every turn.
        let much = plan.freed_tokens >= self.settings.limits.tokens / 8;
        if plan.left_out.is_empty() || !(much || urgency == Urgency::Now) {
            return false;
        }
        self.context = self.context.saturating_sub(plan.freed_tokens);
        let elision = Elision {
            turn,
            freed_tokens: plan.freed_tokens,
            elided: plan.left_out,
        };
        observer.progress(&EpisodeProgress::Elided(&elision));
        self.episode.add_elision(elision);
        true
    }

    fn act(
        &mut self,
        reply: PolicyReply,
        observer: &mut dyn EpisodeObserver,
    ) -> Result<Option<EpisodeEnding>, AgentError> {
        self.context = context(&reply.usage, &self.shown(), &reply.text);
        let (wanted, wrong) = match self.settings.wire {
            WireFormat::Json if reply.calls.is_empty() => (Vec::new(), Some(UnusableReply::NoCall)),
            WireFormat::Json => (reply.calls.clone(), None),
            WireFormat::Fenced => match calls(&reply.text) {
                Ok(found) => (found, None),
                Err(why) => (Vec::new(), Some(why)),
            },
        };
        let calls = match self.settings.wire {
            WireFormat::Json => wanted.clone(),
            // They are in the text already: a template would show them twice.
            WireFormat::Fenced => Vec::new(),
        };
        self.episode.add_reply(&reply, calls);
        let reply = Some((reply.text, without_ids(&wanted)));
        self.repeated = if reply == self.before {
            self.repeated + 1
        } else {
            0
        };
        self.before = reply;
        if self.repeated + 1 >= MAX_IDLE_REPLIES {
            return Ok(Some(EpisodeEnding::Looping));
        }
        let Some(why) = wrong else {
            self.idle = 0;
            return self.run_calls(&wanted, observer);
        };
        observer.progress(&EpisodeProgress::Unusable(&why));
        self.idle += 1;
        if self.idle >= MAX_IDLE_REPLIES {
            return Ok(Some(EpisodeEnding::NothingUsable));
        }
        let text = feedback::on_no_call(&why, self.settings.wire);
        self.episode.add_message(Message::User { text });
        Ok(None)
    }

    fn run_calls(
        &mut self,
        wanted: &[ToolCall],
        observer: &mut dyn EpisodeObserver,
    ) -> Result<Option<EpisodeEnding>, AgentError> {
        let message = self.episode.messages().len() as u32 - 1;
        let mut answers = Vec::new();
        let mut ending = Ok(None);
        for call in wanted {
            if let Ok(None) = ending
                && observer.interrupted()
            {
                ending = Ok(Some(EpisodeEnding::Interrupted));
            }
            // Every call gets an answer, so that the conversation can be resumed.
            if !matches!(ending, Ok(None)) {
                answers.push((call, CUT_SHORT.to_owned(), true));
                continue;
            }
            observer.progress(&EpisodeProgress::ToolCalled(call));
            let ToolAnswer {
                text,
                failed,
                effect,
            } = match self.tools.call(call) {
                // A killed process looks like a failure of the candidate.
                Ok(_) if observer.interrupted() => {
                    ending = Ok(Some(EpisodeEnding::Interrupted));
                    ToolAnswer::bad(CUT_SHORT)
                }
                Ok(answer) => answer,
                Err(error) => {
                    ending = Err(error.into());
                    ToolAnswer::bad(CUT_SHORT)
                }
            };
            observer.progress(&EpisodeProgress::ToolAnswered {
                call,
                text: &text,
                failed,
            });
            let (judged, submitted) = match effect {
                Effect::Nothing | Effect::Checked(_) => (None, false),
                Effect::Judged(verdict, files) => (Some((verdict, files)), false),
                Effect::Submitted(verdict, files) => (Some((verdict, files)), true),
            };
            if let Some((verdict, files)) = judged {
                observer.progress(&EpisodeProgress::Judged(&verdict));
                self.episode.add_attempt(message, &files, *verdict);
            }
            answers.push((call, text, failed));
            if submitted {
                ending = Ok(Some(EpisodeEnding::Finished));
                break;
            }
        }
        self.add_answers(answers);
        ending
    }

    /// As the wire format has it: one message a call, or one message for all in the policy's own form.
    fn add_answers(&mut self, answers: Vec<(&ToolCall, String, bool)>) {
        match self.settings.wire {
            WireFormat::Json => {
                for (call, text, failed) in answers {
                    self.add_tool_message(
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
            WireFormat::Fenced => {
                let parts: Vec<String> = answers
                    .iter()
                    .map(|(call, text, failed)| {
                        let how = if *failed { " failed" } else { "" };
                        format!("{}{how}:\n{text}", call.name)
                    })
                    .collect();
                let text = parts.join("\n\n");
                let tools = answers.iter().map(|(call, ..)| call.name.clone()).collect();
                self.add_tool_message(tools, Message::User { text });
            }
        }
    }

    fn add_tool_message(&mut self, tools: Vec<String>, message: Message) {
        self.context += elision::tokens(message.text());
        self.tool_messages.push(ToolMessage {
            message: self.episode.messages().len(),
            tools,
        });
        self.episode.add_message(message);
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

/// The messages of a resumed episode that answer calls.
fn tool_messages(messages: &[Message]) -> Vec<ToolMessage> {
    let mut called = Vec::new();
    let mut found = Vec::new();
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
        found.push(ToolMessage { message, tools });
    }
    found
}

/// Two replies are the same whatever their calls are numbered.
fn without_ids(calls: &[ToolCall]) -> Vec<ToolCall> {
    let without = |call: &ToolCall| ToolCall {
        id: String::new(),
        ..call.clone()
    };
    calls.iter().map(without).collect()
}
