//! `warpsmith train`

mod demos;
mod dry_run;
mod learning;
mod offline;
mod pack;
mod pipeline;
mod reinforce;
mod sft;
mod show;
mod tracking;
mod value;

use clap::{Args, Subcommand};

use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;

/// Train a local model on trajectories: SFT, RFT, value pretraining, PPO, GRPO
///
/// The same command with the same `--out` goes on where the run stopped, whatever stopped it, and comes to the same end bit
/// for bit. Ctrl-C finishes the step it is at and keeps it; a second one stops at once.
#[derive(Debug, Args)]
pub(crate) struct TrainArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Sft(Box<sft::SftArgs>),
    Rft(Box<sft::RftArgs>),
    Value(Box<value::ValueArgs>),
    Ppo(Box<reinforce::PpoArgs>),
    Grpo(Box<reinforce::GrpoArgs>),
    Pipeline(Box<pipeline::PipelineArgs>),
    Demos(demos::DemosArgs),
    Pack(pack::PackArgs),
}

pub(crate) fn run(args: &TrainArgs, printer: &Printer) -> Result<Exit, Stop> {
    match &args.what {
        What::Sft(args) => sft::run(args, printer),
        What::Rft(args) => sft::run_rft(args, printer),
        What::Value(args) => value::run(args, printer),
        What::Ppo(args) => reinforce::run_ppo(args, printer),
        What::Grpo(args) => reinforce::run_grpo(args, printer),
        What::Pipeline(args) => pipeline::run(args, printer),
        What::Demos(args) => demos::run(args, printer),
        What::Pack(args) => pack::run(args, printer),
    }
}
