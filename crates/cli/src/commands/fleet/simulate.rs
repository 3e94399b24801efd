//! `warpsmith fleet simulate`

use clap::Args;
use serde_json::json;
use warpsmith_fleet::{SimulationPlan, SimulationReport, simulate};
use warpsmith_schema::FORMAT;

use crate::args::{Count, NotNegative, Positive};
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;

/// Reckon how busy a fleet would be, without one
///
/// The times are those of one H200 unless said otherwise: plain solutions that were edited, profile `rl`. The same seed gives the
/// same numbers.
#[derive(Debug, Args)]
pub(super) struct SimulateArgs {
    /// GPUs, each with a worker
    #[arg(long, value_name = "N", default_value = "128")]
    gpus: Count,
    /// Cores that compile, for each GPU; several are compared
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "1,2,3,4,8"
    )]
    cores: Vec<Count>,
    /// Judgements that a worker has begun at the same time
    #[arg(long, value_name = "N", default_value = "4")]
    slots: Count,
    /// Episodes for each GPU
    #[arg(long, value_name = "N", default_value = "32")]
    episodes: Count,
    /// Until the next reply of an episode is there
    #[arg(long, value_name = "SECONDS", default_value = "15")]
    reply: NotNegative,
    /// Core seconds to compile a solution
    #[arg(long, value_name = "SECONDS", default_value = "1.1")]
    compile: Positive,
    /// Seconds for which a judgement has the GPU
    #[arg(long, value_name = "SECONDS", default_value = "0.61")]
    gpu: Positive,
    /// Seconds of the server for a job
    #[arg(long, value_name = "SECONDS", default_value = "0.0002")]
    server: Positive,
    /// Standard deviation over mean of these times
    #[arg(long, value_name = "X", default_value = "0.5")]
    variation: NotNegative,
    /// Judgements for each GPU
    #[arg(long, value_name = "N", default_value = "400")]
    judgements: Count,
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
}

pub(super) fn run(args: &SimulateArgs, printer: &Printer) -> Result<Exit, Stop> {
    let count = |count: Count| u32::from(count) as usize;
    let gpus = count(args.gpus);
    let reports: Vec<SimulationReport> = args
        .cores
        .iter()
        .map(|cores| {
            simulate(&SimulationPlan {
                gpus,
                cores_a_gpu: count(*cores),
                slots_a_gpu: count(args.slots),
                episodes: gpus * count(args.episodes),
                reply_seconds: args.reply.into(),
                compile_seconds: args.compile.into(),
                gpu_seconds: args.gpu.into(),
                server_seconds: args.server.into(),
                variation: args.variation.into(),
                judgements: gpus * count(args.judgements),
                seed: args.seed,
            })
        })
        .collect();
    if printer.json() {
        printer.object(&json!({ "format": FORMAT, "simulations": reports }))?;
    } else {
        printer.lines(&table(&reports))?;
    }
    Ok(Exit::DONE)
}

fn table(reports: &[SimulationReport]) -> Vec<String> {
    let head = "cores/GPU  verdicts/min  GPU busy  cores busy  server busy  waiting  mean s  p95 s";
    let row = |report: &SimulationReport| {
        format!(
            "{:>9}  {:>12.0}  {:>7.0}%  {:>9.0}%  {:>10.1}%  {:>7.0}  {:>6.1}  {:>5.1}",
            report.plan.cores_a_gpu,
            report.verdicts_a_minute,
            report.gpu_utilization * 100.0,
            report.core_utilization * 100.0,
            report.server_utilization * 100.0,
            report.mean_queue,
            report.mean_seconds,
            report.p95_seconds
        )
    };
    let mut lines = vec![head.to_owned()];
    lines.extend(reports.iter().map(row));
    lines
}
