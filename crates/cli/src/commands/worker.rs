//! `warpsmith worker`

use std::env;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use warpsmith_fleet::{
    FleetAddress, FleetError, FleetServers, LEASE, MAX_TRIES, WorkerPlan, host_name, own_pool,
    work, worker_name,
};
use warpsmith_judge::{Cancellation, EvidencePlace, Judge, JudgeConfig, JudgePool, LocalJudge};
use warpsmith_rollout::StopRequest;
use warpsmith_schema::{FORMAT, Profile, Rules};

use crate::args::{Count, IsolationChoice, MachineArgs};
use crate::engine::{Engine, JudgingOptions};
use crate::exit::Exit;
use crate::failure::Stop;
use crate::interrupt;
use crate::printer::Printer;
use crate::runs::usual_judges;

/// Judge for a fleet on this machine
///
/// Takes jobs that this machine's device can do until Ctrl-C or SIGTERM; then it ends what it is at and leaves. Exit code 3:
/// the fleet cannot be reached.
#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    /// The address that `fleet up` printed; `-` reads it from standard input
    #[arg(
        long,
        value_name = "URL",
        env = "WARPSMITH_FLEET",
        hide_env_values = true
    )]
    join: String,
    /// Jobs at the same time; else 4 that share a GPU, and 1 on a CPU
    #[arg(long, value_name = "N")]
    slots: Option<Count>,
    /// How long to wait for the fleet to be there
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    wait: u64,
    /// What to do where a required protection cannot be had
    #[arg(long, value_enum, default_value_t)]
    isolation: IsolationChoice,
    #[command(flatten)]
    machine: MachineArgs,
}

/// In place of an address.
const STDIN: &str = "-";

const RETRY: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &WorkerArgs, printer: &Printer) -> Result<Exit, Stop> {
    if args.join != STDIN {
        return Err(start_again(&args.join)?);
    }
    let address = io::read_to_string(io::stdin())?;
    interrupt::drain_first();
    interrupt::drain_on_terminate();
    let servers = patiently(address.trim(), args.wait)?;
    let engine = Engine::prepare(&args.machine, printer)?;
    let pool = own_pool(
        engine.target,
        args.machine.device,
        &engine.python,
        args.isolation.into(),
    )?;
    let slots = args.slots.map_or(usual_judges(engine.target), u32::from) as usize;
    let place = engine.caches.evidence().join(worker_name());
    let config = engine.options(JudgingOptions {
        profile: Profile::Full,
        rules: Rules::Own,
        isolation: args.isolation.into(),
        compile_mode: None,
        seed: None,
    });
    let (sharing, evidence, made) = (JudgePool::of(slots), place.clone(), AtomicUsize::new(0));
    let plan = WorkerPlan {
        name: worker_name(),
        host: host_name(),
        pool: pool.clone(),
        slots,
        lease: LEASE,
        max_tries: MAX_TRIES,
        make_judge: Arc::new(move |judging| {
            let config = JudgeConfig {
                profile: judging.profile,
                rules: judging.rules,
                isolation: judging.isolation(),
                compile_mode: judging.compile_mode.clone(),
                pool: Some(sharing.clone()),
                ..config.clone()
            };
            // Each its own: bundles are named by task and submission, and another judge may judge them in another way.
            let number = made.fetch_add(1, Ordering::Relaxed).to_string();
            let judge = LocalJudge::start(config)?
                .keeping_evidence(EvidencePlace::ByHash {
                    folder: evidence.join(number),
                    quota: None,
                })
                .cancelled_by(Cancellation::when(interrupt::killing));
            Ok(Box::new(judge) as Box<dyn Judge>)
        }),
        baselines: Some(engine.caches.baselines()),
        stop: Arc::new(|| {
            match (
                interrupt::killing(),
                interrupt::happened() || interrupt::terminated(),
            ) {
                (true, _) => StopRequest::Abort,
                (false, true) => StopRequest::Drain,
                (false, false) => StopRequest::Continue,
            }
        }),
    };
    let joined = || {
        printer.note(&format!(
            "joined as {}: {}, {slots} at a time",
            worker_name(),
            pool.device
        ));
    };
    let summary = work(&servers, plan, joined);
    // Bundles go with their verdicts; what is left was nobody's.
    let _ = fs_err::remove_dir_all(&place);
    let summary = summary?;
    if printer.json() {
        printer.object(&json!({
            "format": FORMAT, "answered": summary.answered, "failed_tries": summary.failed_tries,
        }))?;
    } else {
        printer.data(&format!(
            "{} answered, {} failed tries\n",
            summary.answered, summary.failed_tries
        ))?;
    }
    Ok(Exit::DONE)
}

/// A job of a cluster may begin before the first machine is ready.
fn patiently(address: &str, wait_seconds: u64) -> Result<FleetServers, Stop> {
    let begun = Instant::now();
    let address: FleetAddress = address.parse()?;
    loop {
        match address.servers() {
            Err(FleetError::Unreachable { .. })
                if begun.elapsed().as_secs() < wait_seconds && !interrupt::happened() =>
            {
                thread::sleep(RETRY);
            }
            found => return Ok(found?),
        }
    }
}

/// Puts this program in its own place, with the address where no other process can read it: a candidate sees the command line
/// and the environment of the process that its sandbox was made from. Returns only if that fails.
fn start_again(address: &str) -> Result<Stop, Stop> {
    // A wrong one is said here.
    address.parse::<FleetAddress>()?;
    let mut words = Vec::new();
    let mut given = env::args_os().skip(1);
    while let Some(word) = given.next() {
        match word.to_str() {
            Some("--join") => drop(given.next()),
            Some(word) if word.starts_with("--join=") => {}
            _ => words.push(word),
        }
    }
    words.push(format!("--join={STDIN}").into());
    let (reader, mut writer) = io::pipe()?;
    // Far less than a pipe takes.
    writer.write_all(address.as_bytes())?;
    drop(writer);
    let error = Command::new(env::current_exe()?)
        .args(words)
        .env_remove("WARPSMITH_FLEET")
        .stdin(reader)
        .exec();
    Ok(error.into())
}
