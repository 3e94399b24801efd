//! Settings of every run of many episodes.

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::args::Count;
use crate::episodes::EpisodeSettings;

#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub(crate) struct RunSettings {
    /// Only the first N tasks
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<Count>,
    /// Episodes that run at the same time; else 16 for `openai:`, 48 for `local:` on a GPU and 8 on a processor, and enough
    /// for the judges with a script or the teacher
    #[arg(long, value_name = "N")]
    pub(crate) concurrency: Option<Count>,
    /// Judges side by side; else 4 that share a GPU, and 1 on a CPU
    #[arg(long, value_name = "N")]
    pub(crate) judges: Option<Count>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) episodes: EpisodeSettings,
}

impl RunSettings {
    pub(crate) fn limited<T>(&self, mut tasks: Vec<T>) -> Vec<T> {
        tasks.truncate(
            self.limit
                .map_or(usize::MAX, |limit| u32::from(limit) as usize),
        );
        tasks
    }
}
