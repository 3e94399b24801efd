use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Message, TRAJECTORY_FORMAT, Target, Task, Verdict};

/// One episode: a policy, a task, what was said and done, and what it was worth.
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
    /// Whole, whatever was left out of what the policy was shown.
    pub messages: Vec<Message>,
    /// Where the conversation grew too long: which tool answers the policy was no longer shown.
    #[serde(default)]
    pub elisions: Vec<Elision>,
    /// In the order they were judged.
    pub attempts: Vec<Attempt>,
    /// Index into `attempts` of the one that counts as the result.
    pub best: Option<u32>,
    pub ending: Ending,
    pub usage: Usage,
    pub seconds: f64,
    /// Present where the policy can account for the tokens of every reply. A new sequence begins where the conversation
    /// did not go on from the tokens before, as after an elision; every sampled token is in exactly one of them.
    pub tokens: Option<Vec<TokenRecord>>,
}

impl Trajectory {
    /// One of which nothing has been said yet.
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
            ending: Ending::Interrupted,
            usage: Usage::default(),
            seconds: 0.0,
            tokens: None,
        }
    }
}

/// Tool answers that made room: from one turn on, a line that says so stood in the place of each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Elision {
    /// The first turn, counted from one, that was asked without them.
    pub turn: u32,
    /// Tokens that this freed, guessed from the length of the texts.
    pub freed_tokens: u64,
    pub left_out: Vec<ElidedMessage>,
}

/// A message that was shown in one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ElidedMessage {
    /// Index of the message, whose text is kept there.
    pub message: u32,
    /// What the policy was shown instead.
    pub shown: String,
}

fn first() -> u32 {
    1
}

/// How a policy is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EpisodeMode {
    /// One prompt, one reply with the files; a failed one may be repaired a few times.
    Single,
    /// A loop of tool calls.
    Agent,
}

/// A submission that was judged on the way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Attempt {
    /// Index of the assistant's message it came from.
    pub message: u32,
    /// What was judged: relative path to content.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    pub verdict: Verdict,
}

/// Which policy spoke.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct PolicyVersion {
    /// As on the command line, such as `openai:gpt-5` or `local:qwen2.5-coder-1.5b`.
    pub name: String,
    /// Hash of weights or script, where it can be known.
    pub hash: Option<String>,
    /// Learner's step that published it.
    pub step: Option<u64>,
}

/// Why an episode ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Ending {
    /// The policy was done, or had used its repairs.
    Finished,
    /// A limit on turns, tokens or time was reached.
    Limit {
        which: Limit,
    },
    /// The conversation no longer fits into the policy's context.
    ContextFull,
    /// Reply after reply held nothing that could be acted on.
    NothingUsable,
    /// The policy said the same again and again.
    Looping,
    /// The policy knows that it has no answer to this task.
    NotCovered {
        message: String,
    },
    /// The policy could not be asked any more.
    PolicyFailed {
        message: String,
    },
    Interrupted,
}

/// A limit of an episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    Turns,
    Tokens,
    Time,
}

/// Tokens that were paid for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    /// Those of the prompts that had been read before and were not read again, as far as the policy tells.
    #[serde(default)]
    pub reused_tokens: u64,
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.prompt_tokens += other.prompt_tokens;
        self.completion_tokens += other.completion_tokens;
        self.reused_tokens += other.reused_tokens;
    }
}

/// One sequence of tokens as the policy read and sampled them: training never tokenises text again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TokenRecord {
    pub ids: Vec<u32>,
    /// Of each sampled token, under the policy itself (before temperature and top-p); null for tokens that were given.
    pub logprobs: Vec<Option<f32>>,
    /// True for tokens that the policy sampled, the one that ends a turn included.
    pub loss_mask: Vec<bool>,
    /// The assistant's messages, by index, whose tokens were sampled here: one for each unbroken run in `loss_mask`.
    pub replies: Vec<u32>,
    /// Hash of the chat template, where it can be known.
    pub template: Option<String>,
    /// Hash of the tokenizer, where it can be known.
    pub tokenizer: Option<String>,
}
