//! How episodes are run.

use std::time::Instant;

use warpsmith_model::policy::SamplingParams;
use warpsmith_schema::Target;

use crate::shell::ShellSandbox;
use crate::wire::WireFormat;

/// How an episode of one reply and its repairs is run.
#[derive(Debug, Clone, Copy)]
pub struct SingleSettings {
    pub target: Target,
    pub prompt: PromptStyle,
    /// Attempts after the first, each told what was wrong with the one before.
    pub repairs: u32,
    /// The policy is not asked after this moment.
    pub deadline: Option<Instant>,
    pub sampling: SamplingParams,
}

/// How much a policy is told before a task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PromptStyle {
    /// All rules and an example, for a policy that has never seen them.
    #[default]
    Full,
    /// The form of a reply alone, for a policy that was trained on demonstrations with the same words.
    Short,
}

/// How an episode of tool calls is run.
#[derive(Debug, Clone)]
pub struct AgentSettings {
    pub target: Target,
    pub sampling: SamplingParams,
    pub wire: WireFormat,
    pub size: ModelSize,
    pub limits: AgentLimits,
    pub sandbox: ShellSandbox,
}

/// Where an episode of tool calls ends at the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentLimits {
    pub turns: u32,
    /// Of the conversation, replies included.
    pub tokens: u64,
    /// The policy is not asked after this moment.
    pub deadline: Option<Instant>,
}

/// How much a policy can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelSize {
    /// A small model with a small context: the compact skill, short answers.
    Small,
    Large,
}

impl ModelSize {
    /// The limits of an episode where nothing else is said.
    pub fn limits(self) -> AgentLimits {
        let (turns, tokens) = match self {
            Self::Small => (8, 8 << 10),
            Self::Large => (40, 128 << 10),
        };
        AgentLimits {
            turns,
            tokens,
            deadline: None,
        }
    }

    /// The most characters of one tool's answer.
    pub(crate) fn answer_characters(self) -> usize {
        match self {
            Self::Small => 1500,
            Self::Large => 12_000,
        }
    }
}

/// Whether the deadline has passed.
pub(crate) fn is_past(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() > deadline)
}
