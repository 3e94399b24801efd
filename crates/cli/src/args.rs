//! Flags that several verbs share.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use warpsmith_machine::PythonChoice;
use warpsmith_schema::{CountedAttempt, Precision, Rules};

/// What makes a judge.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub(crate) struct JudgingArgs {
    /// How thoroughly to judge
    #[arg(long, value_enum, default_value_t)]
    pub(crate) profile: ProfileChoice,
    /// `own`: kernels compute all of `forward`; `mixed`: PyTorch may compute the rest
    #[arg(long, value_enum, default_value_t)]
    pub(crate) rules: RulesChoice,
    /// Do not measure `torch.compile`
    #[arg(long)]
    pub(crate) no_compile: bool,
    /// What to do where a required protection cannot be had
    #[arg(long, value_enum, default_value_t)]
    pub(crate) isolation: IsolationChoice,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) machine: MachineArgs,
}

#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Machine")]
pub(crate) struct MachineArgs {
    /// Where kernels run; `auto` is cuda if a GPU, nvcc and a CUDA torch are there
    #[arg(long, value_enum, default_value_t, hide_possible_values = false)]
    pub(crate) target: TargetChoice,
    /// Which GPU
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) device: u32,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) python: PythonArgs,
}

#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Machine")]
pub(crate) struct PythonArgs {
    /// The Python with torch to use, instead of one on the PATH or our own
    #[arg(
        long,
        value_name = "PATH",
        env = "WARPSMITH_PYTHON",
        hide_env_values = true
    )]
    python: Option<PathBuf>,
    /// Fetch nothing from the network
    #[arg(long)]
    pub(crate) offline: bool,
}

impl PythonArgs {
    pub(crate) fn choice(&self) -> PythonChoice {
        match &self.python {
            Some(path) if !path.as_os_str().is_empty() => PythonChoice::Given(path.clone()),
            _ => PythonChoice::Auto,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TargetChoice {
    #[default]
    Auto,
    Cuda,
    Cpu,
}

/// Which attempt of an episode is its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CountsChoice {
    /// The quickest that passed
    Best,
    /// The last
    Final,
}

impl From<CountsChoice> for CountedAttempt {
    fn from(choice: CountsChoice) -> Self {
        match choice {
            CountsChoice::Best => Self::Best,
            CountsChoice::Final => Self::Final,
        }
    }
}

/// What runs a language model of this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ModelOn {
    /// A GPU where there is one that can hold it
    #[default]
    Auto,
    Gpu,
    Cpu,
}

/// How a language model of this process is had.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(
    not(feature = "local-models"),
    expect(dead_code, reason = "there is none")
)]
pub(crate) struct LocalModelOptions {
    pub(crate) offline: bool,
    pub(crate) on: ModelOn,
    /// Which GPU.
    pub(crate) device: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ProfileChoice {
    /// Five checks and a hundred timed calls
    #[default]
    Full,
    /// For reinforcement learning: stops as soon as the answer is clear
    Rl,
    /// Compile and verify; time nothing
    Verify,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RulesChoice {
    /// The solution's own kernels
    #[default]
    Own,
    /// PyTorch too, what was not replaced, as KernelBench allows
    Mixed,
}

impl From<RulesChoice> for Rules {
    fn from(choice: RulesChoice) -> Self {
        match choice {
            RulesChoice::Own => Self::Own,
            RulesChoice::Mixed => Self::Mixed,
        }
    }
}

/// Of products that a GPU's library computes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PrecisionChoice {
    /// As exact as PyTorch with TF32 off
    #[default]
    Fp32,
    /// Operands rounded to 10 bits, on tensor cores
    Tf32,
}

impl From<PrecisionChoice> for Precision {
    fn from(choice: PrecisionChoice) -> Self {
        match choice {
            PrecisionChoice::Fp32 => Self::Fp32,
            PrecisionChoice::Tf32 => Self::Tf32,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum IsolationChoice {
    /// Refuse to run where a required protection is missing
    #[default]
    Strict,
    /// Run anyway; the verdict says `trust.contained = false`
    Weak,
}

/// How many of something that there is at least one of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub(crate) struct Count(u32);

impl TryFrom<u32> for Count {
    type Error = &'static str;

    fn try_from(value: u32) -> Result<Self, Self::Error> {
        match value {
            0 => Err("must be a whole number from 1 to 4294967295"),
            some => Ok(Self(some)),
        }
    }
}

impl FromStr for Count {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().unwrap_or(0).try_into()
    }
}

impl From<Count> for u32 {
    fn from(count: Count) -> Self {
        count.0
    }
}

/// A number that can only be of its kind: whatever else is said is refused where it is said, with what it must be.
macro_rules! number {
    ($(#[$what:meta])* $name:ident: $must:literal, $holds:expr) => {
        $(#[$what])*
        #[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
        #[serde(try_from = "f64", into = "f64")]
        pub(crate) struct $name(f64);

        impl TryFrom<f64> for $name {
            type Error = &'static str;

            fn try_from(value: f64) -> Result<Self, Self::Error> {
                let holds: fn(f64) -> bool = $holds;
                if value.is_finite() && holds(value) {
                    Ok(Self(value))
                } else {
                    Err($must)
                }
            }
        }

        impl FromStr for $name {
            type Err = &'static str;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().unwrap_or(f64::NAN).try_into()
            }
        }

        impl From<$name> for f64 {
            fn from(number: $name) -> Self {
                number.0
            }
        }
    };
}

number!(Positive: "must be a number above 0", |value| value > 0.0);
number!(NotNegative: "must be a number, 0 or more", |value| value >= 0.0);
#[cfg(feature = "local-models")]
number!(Finite: "must be a number", |_| true);
#[cfg(feature = "local-models")]
number!(Share: "must be a number from 0 to 1", |value| (0.0..=1.0).contains(&value));
number!(
    /// A share that leaves something.
    ShareBelowOne: "must be a number, at least 0 and less than 1", |value| (0.0..1.0).contains(&value)
);
