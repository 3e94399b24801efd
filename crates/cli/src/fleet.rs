//! Judges on other machines, in place of those of this one.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use warpsmith_fleet::{
    FleetAddress, FleetClient, FleetError, FleetJudge, FleetJudging, FleetPool, FleetServers,
    PoolChoice, host_name,
};
use warpsmith_judge::{Cancellation, Judge};
use warpsmith_sandbox::Isolation;
use warpsmith_schema::Target;
use warpsmith_store::RunFolder;

use crate::args::{MachineArgs, TargetChoice};
use crate::engine::JudgingOptions;
use crate::failure::Stop;
use crate::interrupt;
use crate::printer::Printer;

/// How long to wait for the first worker.
const FIRST_WORKER: Duration = Duration::from_mins(2);
/// A worker that is done finds another job: what waits hides the way.
const JUDGES_A_SLOT: usize = 2;

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Fleet")]
pub(crate) struct FleetArgs {
    /// Judge on the workers of this fleet: the address that `fleet up` printed
    #[arg(
        long,
        value_name = "URL",
        env = "WARPSMITH_FLEET",
        hide_env_values = true
    )]
    fleet: Option<String>,
    /// Which of its devices, by a part of the name, where it has several
    #[arg(long, value_name = "NAME", env = "WARPSMITH_FLEET_DEVICE")]
    fleet_device: Option<String>,
}

/// The workers of one device model.
#[derive(Clone)]
pub(crate) struct Fleet {
    client: Arc<FleetClient>,
    pool: FleetPool,
}

impl FleetArgs {
    /// For verbs whose flags are full.
    #[cfg(feature = "local-models")]
    pub(crate) fn from_environment() -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            fleet: variable("WARPSMITH_FLEET"),
            fleet_device: variable("WARPSMITH_FLEET_DEVICE"),
        }
    }

    pub(crate) fn connect(
        &self,
        machine: &MachineArgs,
        isolation: Isolation,
        printer: &Printer,
    ) -> Result<Option<Fleet>, Stop> {
        let Some(address) = self.fleet.as_ref().filter(|address| !address.is_empty()) else {
            return Ok(None);
        };
        let client = FleetClient::connect(&servers(address)?, "a run")?;
        let choice = PoolChoice {
            target: match machine.target {
                TargetChoice::Auto => None,
                TargetChoice::Cuda => Some(Target::Cuda),
                TargetChoice::Cpu => Some(Target::Cpu),
            },
            device: self.fleet_device.clone(),
            weak_isolation: isolation == Isolation::Weak,
        };
        let pool = client.choose(&choice, FIRST_WORKER)?;
        let slots = client.slots(&pool)?;
        printer.note(&format!(
            "judging on a fleet: {}, {slots} at a time",
            pool.device
        ));
        Ok(Some(Fleet { client, pool }))
    }
}

pub(crate) fn servers(address: &str) -> Result<FleetServers, Stop> {
    Ok(address.parse::<FleetAddress>()?.servers()?)
}

impl Fleet {
    pub(crate) fn target(&self) -> Target {
        self.pool.target
    }

    pub(crate) fn device(&self) -> &str {
        &self.pool.device
    }

    /// As many as keep its workers busy.
    pub(crate) fn usual_judges(&self) -> Result<usize, Stop> {
        Ok((self.client.slots(&self.pool)? * JUDGES_A_SLOT).max(1))
    }

    /// A judge for a run, which brings its evidence into this folder of it.
    pub(crate) fn judge(
        &self,
        options: &JudgingOptions,
        folder: &RunFolder,
        evidence: PathBuf,
    ) -> Box<dyn Judge> {
        let judging = FleetJudging {
            profile: options.profile,
            rules: options.rules,
            compile_mode: options.compile_mode.clone(),
            weak_isolation: options.isolation == Isolation::Weak,
        };
        // The same run asks for the same jobs when it goes on; another has them judged anew.
        let path = folder.path();
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let scope = format!("{}:{}", host_name(), path.display());
        let judge = FleetJudge::new(self.client.clone(), self.pool.clone(), judging, scope)
            .keeping_evidence(evidence)
            .cancelled_by(Cancellation::when(interrupt::killing));
        Box::new(judge)
    }
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet")
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

impl From<FleetError> for Stop {
    fn from(error: FleetError) -> Self {
        Self(error.failure())
    }
}
