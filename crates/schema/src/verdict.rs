use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{FORMAT, Number, Reward};

/// What the judge concluded about one submission.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    pub format: u32,
    pub status: Status,
    /// The rule that was broken, where there is one.
    pub rule: Option<Rule>,
    /// One sentence for a person.
    pub reason: Option<String>,
    pub compiled: bool,
    pub correct: bool,
    pub progress: AttemptProgress,
    pub profile: Profile,
    #[serde(default)]
    pub rules: Rules,
    pub target: Target,
    pub device: String,
    pub times_us: Option<Times>,
    /// Against baselines in strict fp32.
    pub speedup: Option<Speedup>,
    /// Against baselines in the candidate's own precision class.
    pub matched_precision: Option<MatchedPrecision>,
    pub numerics: Option<Numerics>,
    /// What PyTorch computed in a call, where the rules allow that.
    #[serde(default)]
    pub torch_operators: Option<Vec<OperatorShare>>,
    pub reward: Reward,
    pub seconds: StageSeconds,
    pub isolation: Option<IsolationReport>,
    pub trust: Trust,
    /// Sentences that a reader of the numbers should know.
    pub notes: Vec<String>,
    /// The folder of the evidence, with which the verdict can be replayed.
    pub evidence: Option<String>,
}

/// How a submission ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Passed,
    /// A rule on the sources or the built library forbids it; it was not run.
    Rejected,
    CompileFailed,
    Crashed,
    TimedOut,
    Mismatch,
    /// A check made while running caught it.
    Cheating,
}

impl Status {
    /// The word used in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Rejected => "rejected",
            Self::CompileFailed => "compile_failed",
            Self::Crashed => "crashed",
            Self::TimedOut => "timed_out",
            Self::Mismatch => "mismatch",
            Self::Cheating => "cheating",
        }
    }
}

/// The rule a submission broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The built library imports something outside the allow-list.
    ForbiddenImport,
    /// Triton, or another kernel language that is not CUDA C++ or C++.
    ForbiddenLanguage,
    /// The sources do not have the form they claim.
    Form,
    /// A PyTorch operator computed inside `forward`.
    ForbiddenOperator,
    /// The decoy reference was used.
    DecoyTouched,
    /// The output changed after it had been handed over.
    OutputChanged,
    /// The inputs were written to.
    InputChanged,
    /// The process broke the call protocol.
    Protocol,
    /// Kernels ran while there was no call to work on.
    BackgroundWork,
    /// Faster than the machine can be.
    BelowFloor,
    /// Correct when checked, wrong when timed.
    WrongWhenTimed,
    /// Correct with the weights it was loaded with, wrong once they were rewritten in place.
    StaleWeights,
    /// The outputs of several calls share memory.
    SharedOutput,
    /// The returned object is not a plain tensor, number or container of these.
    OutputType,
    StateDict,
    MemoryLimit,
    /// PyTorch computed everything, where it may compute what was not replaced.
    NothingReplaced,
}

/// Who may compute in `forward`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rules {
    /// The candidate's own kernels.
    #[default]
    Own,
    /// PyTorch too, what was not replaced, as KernelBench allows.
    Mixed,
}

impl Rules {
    pub fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Mixed => "mixed",
        }
    }
}

/// An operator of PyTorch that computed in a candidate's call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OperatorShare {
    pub name: String,
    /// In one call of the module.
    pub calls: f64,
    /// Of the call's time. Null on a GPU, where the host sees only the launch.
    pub share: Option<f64>,
}

/// How far an attempt got; the graded part of the ladder reward.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AttemptProgress {
    pub parsed: bool,
    pub compiled: bool,
    pub loaded: bool,
    pub ran: bool,
    pub shape_ok: bool,
    pub share_within_tolerance: Option<f64>,
}

/// How thoroughly to judge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Five checks and a hundred timed calls.
    Full,
    /// For reinforcement learning: stops at the first mismatch, times until the 5 % line is clear.
    Rl,
    /// Compiles and verifies; nothing is timed, no baseline measured.
    Verify,
}

/// Where kernels run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    Cuda,
    Cpu,
}

impl Target {
    pub fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Cpu => "cpu",
        }
    }
}

/// Medians in microseconds, measured from outside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Times {
    pub candidate: Number,
    pub eager: Number,
    pub compile: Option<Number>,
    /// Half the interquartile range over the median, of the candidate.
    pub spread: Number,
    /// Timed calls behind `candidate`.
    pub samples: u32,
    /// Median single call minus the constant.
    pub single: Number,
    /// Time per call in bursts, where bursts were run.
    pub burst: Option<Number>,
    /// The judge's overhead per call: the time of a call that computes nothing.
    pub constant: Number,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Speedup {
    pub eager: Number,
    pub compile: Option<Number>,
}

/// The precision class of a candidate or a baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    Fp32,
    Tf32,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MatchedPrecision {
    pub mode: Precision,
    pub eager_us: Number,
    pub compile_us: Option<Number>,
    pub speedup: Speedup,
}

/// Root-mean-square errors against float64, relative to the answer's magnitude.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Numerics {
    pub candidate_vs_fp64: Number,
    pub eager_vs_fp64: Number,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StageSeconds {
    pub compile: f64,
    pub verify: f64,
    pub time: f64,
    pub total: f64,
}

/// Which protections held, by name. The value says by which means, or why not.
pub type IsolationReport = BTreeMap<String, String>;

/// Each check by name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trust {
    /// The candidate was contained by every required protection.
    pub contained: bool,
    /// On the task's own inputs a trivial answer passes; only a transformed distribution rejects it.
    pub degenerate_inputs: bool,
    /// Work was batched or deferred between calls: the time of single calls counts.
    pub deferred_work: bool,
    /// How much of the comparison had a float64 answer.
    pub fp64: Option<String>,
    /// Share of elements excluded because the fp32 and fp64 references disagree at a discontinuity.
    pub excluded_share: f64,
    /// Distributions that the candidate was checked on, in order.
    #[serde(default)]
    pub draws: Vec<String>,
    /// How much of the state dict was moved off its initial values: `state`, `parameters` or `nothing`.
    #[serde(default)]
    pub moved: Option<String>,
    /// Share of wrong variants of this task that the checks before timing refuse, where that was measured.
    #[serde(default)]
    pub kill_rate: Option<f64>,
    pub checks: BTreeMap<String, TrustCheck>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrustCheck {
    Held,
    Failed,
    NotReached,
}

impl Verdict {
    /// A verdict in which no stage was reached yet; the judge fills it in stage by stage.
    pub fn unreached(status: Status, target: Target, profile: Profile, device: String) -> Self {
        let mut verdict = Self {
            format: FORMAT,
            status,
            rule: None,
            reason: None,
            compiled: false,
            correct: false,
            progress: AttemptProgress::default(),
            profile,
            rules: Rules::Own,
            target,
            device,
            times_us: None,
            speedup: None,
            matched_precision: None,
            numerics: None,
            torch_operators: None,
            reward: Reward::lowest(),
            seconds: StageSeconds::default(),
            isolation: None,
            trust: Trust::default(),
            notes: Vec::new(),
            evidence: None,
        };
        verdict.reward = Reward::of(&verdict);
        verdict
    }

    pub fn passed(&self) -> bool {
        self.status == Status::Passed
    }
}
