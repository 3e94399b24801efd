//! In place of `fleet` where the program was built without it.

use std::path::PathBuf;

use clap::Args;
use warpsmith_judge::Judge;
use warpsmith_sandbox::Isolation;
use warpsmith_schema::Target;
use warpsmith_store::RunFolder;

use crate::args::MachineArgs;
use crate::engine::JudgingOptions;
use crate::failure::Stop;
use crate::printer::Printer;

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct FleetArgs {}

/// There is none.
#[derive(Debug, Clone)]
pub(crate) enum Fleet {}

impl FleetArgs {
    #[cfg(feature = "local-models")]
    pub(crate) fn from_environment() -> Self {
        Self::default()
    }

    #[expect(
        clippy::unnecessary_wraps,
        clippy::unused_self,
        reason = "as with a fleet"
    )]
    pub(crate) fn connect(
        &self,
        _: &MachineArgs,
        _: Isolation,
        _: &Printer,
    ) -> Result<Option<Fleet>, Stop> {
        Ok(None)
    }
}

impl Fleet {
    pub(crate) fn target(&self) -> Target {
        match *self {}
    }

    pub(crate) fn device(&self) -> &str {
        match *self {}
    }

    pub(crate) fn usual_judges(&self) -> Result<usize, Stop> {
        match *self {}
    }

    pub(crate) fn judge(&self, _: &JudgingOptions, _: &RunFolder, _: PathBuf) -> Box<dyn Judge> {
        match *self {}
    }
}
