//! What this machine can do for a fleet.

use warpsmith_judge::judge_version;
use warpsmith_machine::{Python, cpu, gpus};
use warpsmith_sandbox::{Isolation, effective};
use warpsmith_schema::Target;

use crate::FleetError;
use crate::wire::FleetPool;

/// The pool of a worker on this machine. One that lacks a required protection joins only where that is allowed, and then in a
/// pool of its own.
pub fn own_pool(
    target: Target,
    device: u32,
    python: &Python,
    isolation: Isolation,
) -> Result<FleetPool, FleetError> {
    let contained = effective().contained();
    if !contained && isolation == Isolation::Strict {
        return Err(FleetError::NoWorker {
            reason: "a required protection does not hold on this machine".to_owned(),
            hint: "`warpsmith doctor` shows which; `--isolation weak` goes without, and verdicts say so".to_owned(),
        });
    }
    let device = match target {
        Target::Cuda => gpus()
            .into_iter()
            .find(|gpu| gpu.index == device)
            .map(|gpu| gpu.name)
            .ok_or_else(|| FleetError::NoWorker {
                reason: format!("there is no GPU {device} on this machine"),
                hint: "`warpsmith doctor` lists the GPUs".to_owned(),
            })?,
        // Times on two cores say nothing about times on eight.
        Target::Cpu => {
            let cpu = cpu();
            let cores = if cpu.cores == 1 { "core" } else { "cores" };
            format!("{}, {} {cores}", cpu.name, cpu.cores)
        }
    };
    Ok(FleetPool {
        target,
        device,
        torch: python.torch.version.clone(),
        judge: judge_version(),
        contained,
    })
}

/// The machine's name in a network.
pub fn host_name() -> String {
    let name = fs_err::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(|_| "unnamed".to_owned(), |name| name.trim().to_owned())
}

/// A name for a worker: a subject's word, and different for each process.
pub fn worker_name() -> String {
    let plain = |letter: char| {
        if letter.is_ascii_alphanumeric() {
            letter
        } else {
            '-'
        }
    };
    let host: String = host_name().chars().map(plain).collect();
    format!("{host}-{}", std::process::id())
}
