//! Flags that several verbs share.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use warpsmith_machine::PythonChoice;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// Print exactly one JSON object on stdout
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Say nothing on stderr but errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Show every protection, check and version
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Machine")]
pub(crate) struct MachineArgs {
    /// Where kernels run; `auto` is cuda if a GPU, nvcc and a CUDA torch are there
    #[arg(long, value_enum, default_value_t, hide_possible_values = false)]
    pub(crate) target: TargetChoice,
    /// Which GPU
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) device: u32,
    #[command(flatten)]
    pub(crate) python: PythonArgs,
}

#[derive(Debug, Clone, Args)]
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

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum TargetChoice {
    #[default]
    Auto,
    Cuda,
    Cpu,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProfileChoice {
    /// Five checks and a hundred timed calls
    #[default]
    Full,
    /// For reinforcement learning: stops as soon as the answer is clear
    Rl,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum IsolationChoice {
    /// Refuse to run where a required protection is missing
    #[default]
    Strict,
    /// Run anyway; the verdict says `trust.contained = false`
    Weak,
}
