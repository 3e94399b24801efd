//! Composers: who puts seeds together.

use warpsmith_decontaminate::Structure;

use crate::candidate::{CandidateSource, TaskCandidate};
use crate::filter::FilterRejection;
use crate::filter::FilterSeconds;
use crate::grammar::{Composition, TaskSize};
use crate::mix::TaskGroup;
use crate::seeds::{SeedCatalogue, TransformerLayer};
use crate::splitmix::SplitMix64;

/// Why there is no candidate.
#[derive(Debug, thiserror::Error)]
pub enum ComposeError {
    /// The composer found nothing that fits; the next index may do.
    #[error("nothing fits")]
    NoFit,
    /// What it said is no task.
    #[error("{0:?}")]
    Invalid(FilterRejection),
    /// It does not answer.
    #[error("the composer failed")]
    Policy(#[source] warpsmith_model::policy::PolicyError),
}

pub trait TaskComposer {
    /// As rows name it.
    fn name(&self) -> String;

    /// The candidate of an index: the same again for the same index, where the composer can.
    fn compose(&mut self, index: u64, group: TaskGroup) -> Result<TaskCandidate, ComposeError>;

    /// After how many candidates of a group nothing new is to be expected of it.
    fn supply(&self, group: TaskGroup) -> Option<usize>;
}

/// Stacks seeds by the grammar; layers of libraries stay alone.
pub struct GrammarComposer<'a> {
    pub seeds: &'a SeedCatalogue,
    pub layers: &'a [TransformerLayer],
    pub seed: u64,
}

/// They are drawn with repetition: after so many times their number most have been met.
const DRAWS_A_LAYER: usize = 3;

impl TaskComposer for GrammarComposer<'_> {
    fn name(&self) -> String {
        "grammar".into()
    }

    fn compose(&mut self, index: u64, group: TaskGroup) -> Result<TaskCandidate, ComposeError> {
        let ops = match group {
            TaskGroup::Stacked(ops) => ops,
            TaskGroup::Transformers => return self.layer(index),
        };
        let composition =
            Composition::new(self.seeds, self.seed, index, ops).ok_or(ComposeError::NoFit)?;
        let name = format!("torch{ops}-{index:06}-{}", composition.ops().join("-"));
        let seeds = composition.seeds().to_vec();
        candidate(
            index,
            group,
            seeds,
            name,
            CandidateSource::Composed(Box::new(composition)),
        )
    }

    fn supply(&self, group: TaskGroup) -> Option<usize> {
        (group == TaskGroup::Transformers).then_some(DRAWS_A_LAYER * self.layers.len())
    }
}

impl GrammarComposer<'_> {
    fn layer(&self, index: u64) -> Result<TaskCandidate, ComposeError> {
        let mut rng = SplitMix64::of_index(self.seed, index);
        let layer = rng.choose(self.layers).ok_or(ComposeError::NoFit)?;
        let class = layer.path.rsplit('.').next().unwrap_or(&layer.path);
        let name = format!("transformers-{index:06}-{class}");
        let (seeds, made) = (
            vec![layer.path.clone()],
            CandidateSource::Layer(layer.clone()),
        );
        candidate(index, TaskGroup::Transformers, seeds, name, made)
    }
}

/// A candidate of what was made, if its structure can be read.
pub(crate) fn candidate(
    index: u64,
    group: TaskGroup,
    seeds: Vec<String>,
    name: String,
    made: CandidateSource,
) -> Result<TaskCandidate, ComposeError> {
    let structure = Structure::of(&made.code(TaskSize::REDUCED)).map_err(|error| {
        ComposeError::Invalid(FilterRejection::new("nonsense", error.to_string()))
    })?;
    Ok(TaskCandidate {
        index,
        group,
        seeds,
        name,
        source: made,
        structure,
        nearest: None,
        seconds: FilterSeconds::default(),
    })
}
