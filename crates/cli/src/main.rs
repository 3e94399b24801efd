//! The `warpsmith` binary: reads the command line, runs one verb, maps its result to an exit code.

mod args;
mod cli;
#[cfg(all(test, feature = "local-models", not(feature = "fleet")))]
mod cli_reference;
mod commands;
mod config;
mod engine;
mod episodes;
mod examples;
mod exit;
mod failure;
#[cfg(feature = "fleet")]
mod fleet;
#[cfg(not(feature = "fleet"))]
#[path = "no_fleet.rs"]
mod fleet;
mod highlights;
mod interrupt;
#[cfg(feature = "local-models")]
mod language_model;
mod live;
mod logging;
mod nearest;
mod policy;
mod printer;
mod remaining;
mod render;
mod runs;
mod source;
mod tuning;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Arg, Command, CommandFactory, FromArgMatches};

use crate::cli::Cli;
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::{OutputArgs, Printer};

fn main() -> ExitCode {
    let command = with_negative_numbers(Cli::command());
    let parsed = command
        .try_get_matches()
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let exit = match parsed {
        Ok(cli) => run(&cli),
        Err(error) => usage(&error),
    };
    ExitCode::from(exit.code())
}

/// A number that must not be negative is refused for what it is, and not taken for a flag that there is not.
fn with_negative_numbers(command: Command) -> Command {
    let accept = |argument: Arg| {
        let takes = argument.get_action().takes_values();
        argument.allow_negative_numbers(takes)
    };
    command
        .mut_args(accept)
        .mut_subcommands(with_negative_numbers)
}

fn run(cli: &Cli) -> Exit {
    let printer = Printer::new(&cli.output);
    let result = logging::install(cli.output.verbose)
        .and_then(|()| interrupt::listen(printer.clone()).map_err(Stop::from))
        .and_then(|()| cli.run(&printer));
    if interrupt::happened() {
        // Who was asked to come to an end, and had come to it, was not interrupted.
        if let (Ok(exit), false) = (&result, interrupt::killing()) {
            return *exit;
        }
        interrupt::kill_descendants();
        interrupt::say(&printer);
        return Exit::INTERRUPTED;
    }
    match result {
        Ok(exit) => exit,
        // `warpsmith … | head` is nobody's failure.
        Err(stop) if stop.is_closed_pipe() => Exit::DONE,
        Err(stop) => {
            printer.failure(&stop);
            stop.exit()
        }
    }
}

/// Help and the version are answers; anything else is wrong usage, said as `--json` promises where it was asked for.
fn usage(error: &clap::Error) -> Exit {
    // Nothing can be said where stderr is closed.
    let _ = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Exit::DONE,
        _ => {
            if std::env::args_os().any(|argument| argument == "--json") {
                let printer = Printer::new(&OutputArgs {
                    json: true,
                    quiet: true,
                    verbose: 0,
                });
                printer.failed_usage(error);
            }
            Exit::USAGE
        }
    }
}
