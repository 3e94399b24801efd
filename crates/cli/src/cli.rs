//! The command line as clap reads it.

use clap::{Parser, Subcommand};

use crate::commands::{
    bench, bench_judge, cache, completions, doctor, evolve, explain, exploits, export, graph,
    judge, mcp, new, optimize, profile, replay, report, rollout, schema, serve, setup, synth,
};
#[cfg(feature = "fleet")]
use crate::commands::{fleet, worker};
#[cfg(feature = "local-models")]
use crate::commands::{models, train};
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::{OutputArgs, Printer};

/// Write fast GPU kernels with an agent, and judge them trusting none
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
    Doctor(doctor::DoctorArgs),
    Setup(setup::SetupArgs),
    New(new::NewArgs),
    Judge(Box<judge::JudgeArgs>),
    Profile(profile::ProfileArgs),
    Graph(graph::GraphArgs),
    Explain(explain::ExplainArgs),
    Replay(replay::ReplayArgs),
    Optimize(Box<optimize::OptimizeArgs>),
    Evolve(Box<evolve::EvolveArgs>),
    Synth(Box<synth::SynthArgs>),
    Rollout(Box<rollout::RolloutArgs>),
    Bench(Box<bench::BenchArgs>),
    #[cfg(feature = "local-models")]
    Train(train::TrainArgs),
    #[cfg(feature = "fleet")]
    Fleet(fleet::FleetVerbArgs),
    #[cfg(feature = "fleet")]
    Worker(worker::WorkerArgs),
    Report(report::ReportArgs),
    Export(export::ExportArgs),
    Serve(Box<serve::ServeArgs>),
    Mcp(mcp::McpArgs),
    Exploits(exploits::ExploitsArgs),
    BenchJudge(bench_judge::BenchJudgeArgs),
    #[cfg(feature = "local-models")]
    Models(models::ModelsArgs),
    Cache(cache::CacheArgs),
    Schema(schema::SchemaArgs),
    Completions(completions::CompletionsArgs),
}

impl Cli {
    pub(crate) fn run(&self, printer: &Printer) -> Result<Exit, Stop> {
        match &self.verb {
            Verb::Doctor(args) => doctor::run(args, printer),
            Verb::Setup(args) => setup::run(args, printer),
            Verb::New(args) => new::run(args, printer),
            Verb::Judge(args) => judge::run(args, printer),
            Verb::Profile(args) => profile::run(args, printer),
            Verb::Graph(args) => graph::run(args, printer),
            Verb::Explain(args) => explain::run(args, printer),
            Verb::Replay(args) => replay::run(args, printer),
            Verb::Optimize(args) => optimize::run(args, printer),
            Verb::Evolve(args) => evolve::run(args, printer),
            Verb::Synth(args) => synth::run(args, printer),
            Verb::Rollout(args) => rollout::run(args, printer),
            Verb::Bench(args) => bench::run(args, printer),
            #[cfg(feature = "local-models")]
            Verb::Train(args) => train::run(args, printer),
            #[cfg(feature = "fleet")]
            Verb::Fleet(args) => fleet::run(args, printer),
            #[cfg(feature = "fleet")]
            Verb::Worker(args) => worker::run(args, printer),
            Verb::Report(args) => report::run(args, printer),
            Verb::Export(args) => export::run(args, printer),
            Verb::Serve(args) => serve::run(args, printer),
            Verb::Mcp(args) => mcp::run(args, printer),
            Verb::Exploits(args) => exploits::run(args, printer),
            Verb::BenchJudge(args) => bench_judge::run(args, printer),
            #[cfg(feature = "local-models")]
            Verb::Models(args) => models::run(args, printer),
            Verb::Cache(args) => cache::run(args, printer),
            Verb::Schema(args) => schema::run(args, printer),
            Verb::Completions(args) => completions::run(args, printer),
        }
    }
}
