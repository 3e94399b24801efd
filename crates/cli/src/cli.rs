//! The command line as clap reads it.

use clap::{Parser, Subcommand};

use crate::args::OutputArgs;
use crate::commands::judge;
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;

/// Judge GPU kernels: compile, verify and time them, and trust none of them
#[derive(Debug, Parser)]
#[command(
    name = "warpsmith",
    version,
    max_term_width = 100,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Judge(judge::JudgeArgs),
}

impl Cli {
    pub(crate) fn run(&self, printer: &Printer) -> Result<Exit, Stop> {
        match &self.verb {
            Verb::Judge(args) => judge::run(args, printer),
        }
    }
}
