use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Message, TRAJECTORY_FORMAT, Target, Task, Verdict};

/// One episode: a policy, a task, the conversation, the judged attempts and their rewards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trajectory {
    pub format: u32,
    pub id: String,
    pub task: Task,
    pub target: Target,
    pub policy: PolicyVersion,
    /// Which of several episodes of the same task, from one.
    #[serde(default = "first")]
    pub sample: u32,
    pub mode: EpisodeMode,
    /// The complete conversation, including what elisions hid from the policy.
    pub messages: Vec<Message>,
    /// Tool results that were hidden from the policy because the conversation grew too long.
    #[serde(default)]
    pub elisions: Vec<Elision>,
    /// In the order they were judged.
    pub attempts: Vec<Attempt>,
    /// Index into `attempts` of the one that counts as the result.
    pub best: Option<u32>,
    pub ending: EpisodeEnding,
    pub usage: Usage,
    pub seconds: f64,
    /// Present where the policy can account for the tokens of every reply. A new sequence begins where the prompt does
    /// not extend the tokens before, as after an elision. Every sampled token is in exactly one sequence.
    pub tokens: Option<Vec<TokenRecord>>,
}

impl Trajectory {
    /// An empty one.
    pub fn begin(
        task: &Task,
        target: Target,
        policy: &PolicyVersion,
        sample: u32,
        mode: EpisodeMode,
    ) -> Self {
        Self {
            format: TRAJECTORY_FORMAT,
            id: String::new(),
            task: task.clone(),
            target,
            policy: policy.clone(),
            sample,
            mode,
            messages: Vec::new(),
            elisions: Vec::new(),
            attempts: Vec::new(),
            best: None,
            ending: EpisodeEnding::Interrupted,
            usage: Usage::default(),
            seconds: 0.0,
            tokens: None,
        }
    }
}

/// Tool results that were replaced by one line each, to shorten the prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Elision {
    /// The first turn, counted from one, whose prompt lacks them.
    pub turn: u32,
    /// Tokens that this freed, estimated from the length of the texts.
    pub freed_tokens: u64,
    pub elided: Vec<ElidedMessage>,
}

/// A message that one line replaces in the prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ElidedMessage {
    /// Index into `messages`, where its text is kept.
    pub message: u32,
    /// The line the policy sees instead.
    pub replacement: String,
}

fn first() -> u32 {
    1
}

/// How a policy is prompted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EpisodeMode {
    /// One prompt, one reply with the files; a failed one may be repaired a few times.
    Single,
    /// A loop of tool calls.
    Agent,
}

/// A submission that was judged during the episode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Attempt {
    /// Index of the assistant's message it came from.
    pub message: u32,
    /// What was judged: relative path to content.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    pub verdict: Verdict,
}

/// Which policy generated the replies.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct PolicyVersion {
    /// As on the command line, such as `openai:gpt-5` or `local:qwen2.5-coder-1.5b`.
    pub name: String,
    /// Hash of weights or script, where it can be known.
    pub hash: Option<String>,
    /// The training step that published it.
    pub step: Option<u64>,
}

/// Why an episode ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EpisodeEnding {
    /// The policy was done, or had used up its repairs.
    Finished,
    /// A limit on turns, tokens or time was reached.
    Limit {
        which: EpisodeLimit,
    },
    /// The conversation no longer fits into the policy's context.
    ContextFull,
    /// Several replies in a row held nothing that could be acted on.
    NothingUsable,
    /// The policy repeated itself.
    Looping,
    /// The policy does not cover this task and says so.
    NotCovered {
        message: String,
    },
    /// The policy could not be reached any more.
    PolicyFailed {
        message: String,
    },
    Interrupted,
}

/// A limit of an episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EpisodeLimit {
    Turns,
    Tokens,
    Time,
}

/// Tokens used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    /// Prompt tokens that were in the prefix cache, as far as the policy reports them.
    #[serde(default)]
    pub cached_tokens: u64,
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.prompt_tokens += other.prompt_tokens;
        self.completion_tokens += other.completion_tokens;
        self.cached_tokens += other.cached_tokens;
    }
}

/// One sequence of tokens as the policy read and sampled them. Training uses these ids and never tokenises text again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TokenRecord {
    pub ids: Vec<u32>,
    /// Of each sampled token, under the policy itself (before temperature and top-p); null for prompt tokens.
    pub logprobs: Vec<Option<f32>>,
    /// True for tokens that the policy sampled, the one that ends a turn included.
    pub loss_mask: Vec<bool>,
    /// Indices of the assistant messages that were sampled here: one for each contiguous run in `loss_mask`.
    pub replies: Vec<u32>,
    /// Hash of the chat template, where it can be known.
    pub template: Option<String>,
    /// Hash of the tokenizer, where it can be known.
    pub tokenizer: Option<String>,
}
