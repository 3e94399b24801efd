//! From trajectories to what a network learns from.

mod collection;
mod episodes;
mod examples;
mod finding;
mod order;
mod read;
mod reward;

pub use collection::{BenchmarkTask, Columns, ColumnsError};
pub use episodes::{TokenEpisode, Tokens};
pub use examples::{Example, Examples, TooLong, TrainedReplies};
pub(crate) use finding::counted;
pub use finding::{Finding, Standings};
pub use order::{batches, held_out, packs, split};
pub use read::{TrainingData, read_trajectories};
pub use reward::{RewardKind, RewardRule};
