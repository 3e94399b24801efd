//! `warpsmith fleet up|status|simulate`

mod simulate;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;
use warpsmith_fleet::{
    ClusterPlan, DOOR_PORT, FleetStatus, RunningFleet, SERVER_PORT, UpPlan, fleet_status,
};
use warpsmith_schema::FORMAT;

use crate::exit::Exit;
use crate::failure::Stop;
use crate::fleet::servers;
use crate::interrupt;
use crate::printer::Printer;

/// Judge on many machines
#[derive(Debug, Args)]
pub(crate) struct FleetVerbArgs {
    #[command(subcommand)]
    verb: FleetVerb,
}

#[derive(Debug, Subcommand)]
enum FleetVerb {
    Up(Box<UpArgs>),
    Status(StatusArgs),
    Simulate(simulate::SimulateArgs),
}

/// Start the server that connects machines, and print the address for them
///
/// It runs until Ctrl-C or SIGTERM. Jobs and results lie in the folder: the same command goes on with them, under the same
/// address.
#[derive(Debug, Args)]
struct UpArgs {
    /// Where token, jobs and results lie
    #[arg(long, value_name = "DIR", default_value = "runs/fleet")]
    out: PathBuf,
    /// The interface to listen on
    #[arg(long, value_name = "HOST", default_value = "0.0.0.0")]
    host: String,
    /// The port of the address that is printed
    #[arg(long, value_name = "N", default_value_t = DOOR_PORT)]
    port: u16,
    /// The port of the server, which workers must reach too
    #[arg(long, value_name = "N", default_value_t = SERVER_PORT)]
    server_port: u16,
    /// A token to use instead of one that is made
    #[arg(
        long,
        value_name = "TOKEN",
        env = "WARPSMITH_FLEET_TOKEN",
        hide_env_values = true
    )]
    token: Option<String>,
    /// The server's certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Who signed the certificate, where systems do not know it
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// `HOST:PORT` of each server of a cluster, this one included; all need the same `--token`
    #[arg(long, value_name = "HOST:PORT", requires = "cluster_port")]
    route: Vec<String>,
    /// The port by which the servers of a cluster reach this one
    #[arg(long, value_name = "N", requires = "route")]
    cluster_port: Option<u16>,
    /// `HOST:PORT` of another server of the cluster, told to those who join
    #[arg(long, value_name = "HOST:PORT")]
    other_server: Vec<String>,
    /// How many servers keep each job; 3 needs a cluster of three
    #[arg(long, value_name = "N", default_value_t = 1)]
    replicas: usize,
    /// Fetch nothing from the network
    #[arg(long)]
    offline: bool,
}

/// What workers do, what waits, and what failed
#[derive(Debug, Args)]
struct StatusArgs {
    /// The address that `fleet up` printed
    #[arg(value_name = "URL", env = "WARPSMITH_FLEET", hide_env_values = true)]
    fleet: String,
}

pub(crate) fn run(args: &FleetVerbArgs, printer: &Printer) -> Result<Exit, Stop> {
    match &args.verb {
        FleetVerb::Up(args) => up(args, printer),
        FleetVerb::Status(args) => status(args, printer),
        FleetVerb::Simulate(args) => simulate::run(args, printer),
    }
}

fn up(args: &UpArgs, printer: &Printer) -> Result<Exit, Stop> {
    let plan = UpPlan {
        folder: args.out.clone(),
        listen: args.host.clone(),
        door_port: args.port,
        server_port: args.server_port,
        tls: args.tls_cert.clone().zip(args.tls_key.clone()),
        authority: args.tls_ca.clone(),
        cluster: args.cluster_port.map(|port| ClusterPlan {
            port,
            routes: args.route.clone(),
        }),
        other_servers: args.other_server.clone(),
        replicas: args.replicas,
        offline: args.offline,
    };
    interrupt::drain_first();
    interrupt::drain_on_terminate();
    let fleet = RunningFleet::start(plan, args.token.clone(), printer.progress().as_ref())?;
    let address = fleet.address();
    if printer.json() {
        printer.object(&json!({ "format": FORMAT, "url": address }))?;
    } else {
        printer.data(&format!("{address}\n"))?;
        printer.note(&format!(
            "on each other machine: warpsmith worker --join {address}"
        ));
        printer.note(&format!(
            "to judge there: warpsmith rollout --fleet {address} …"
        ));
    }
    fleet.run(|| !interrupt::happened() && !interrupt::terminated())?;
    Ok(Exit::DONE)
}

fn status(args: &StatusArgs, printer: &Printer) -> Result<Exit, Stop> {
    let status = fleet_status(&servers(&args.fleet)?)?;
    if printer.json() {
        printer.object(&status)?;
    } else {
        printer.lines(&table(&status))?;
    }
    Ok(Exit::DONE)
}

fn table(status: &FleetStatus) -> Vec<String> {
    let mut lines = vec![format!(
        "{} workers, {} answers a minute, {} results kept",
        status.workers.len(),
        status.answers_a_minute,
        status.results
    )];
    for worker in &status.workers {
        let busy = if worker.draining {
            "draining".to_owned()
        } else if worker.busy.is_empty() {
            "idle".to_owned()
        } else {
            worker.busy.join(", ")
        };
        lines.push(format!(
            "{:<24} {:<28} {}/{} busy, {} answered, {} failed tries  {busy}",
            worker.name,
            worker.pool.device,
            worker.busy.len(),
            worker.slots,
            worker.answered,
            worker.failed_tries
        ));
    }
    for queue in &status.queues {
        lines.push(format!(
            "queue {}: {} waiting, {} under way",
            queue.pool, queue.waiting, queue.under_way
        ));
    }
    for failed in &status.failed_tries {
        lines.push(format!(
            "failed: {} on {}, try {}: {}",
            failed.task, failed.worker, failed.tried, failed.message
        ));
    }
    lines
}
