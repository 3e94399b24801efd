//! Composers: who puts seeds together.

use warpsmith_decontaminate::Structure;

use crate::candidate::{Candidate, Made};
use crate::filter::Dropped;
use crate::grammar::{Composition, Luck, Size};
use crate::mix::Group;
use crate::seeds::{Layer, Seeds};
use crate::spent::Spent;

/// Why there is no candidate.
#[derive(Debug, thiserror::Error)]
pub enum Unmade {
    /// The composer found nothing that fits; the next index may do.
    #[error("nothing fits")]
    Nothing,
    /// What it said is no task.
    #[error("{0:?}")]
    Nonsense(Dropped),
    /// It does not answer.
    #[error("the composer failed")]
    Failed(#[source] warpsmith_model::policy::PolicyError),
}

pub trait Composer {
    /// As rows name it.
    fn name(&self) -> String;

    /// The candidate of an index: the same again for the same index, where the composer can.
    fn compose(&mut self, index: u64, group: Group) -> Result<Candidate, Unmade>;

    /// After how many candidates of a group nothing new is to be expected of it.
    fn supply(&self, group: Group) -> Option<usize>;
}

/// Stacks seeds by the grammar; layers of libraries stay alone.
pub struct Grammar<'a> {
    pub seeds: &'a Seeds,
    pub layers: &'a [Layer],
    pub seed: u64,
}

/// They are drawn with repetition: after so many times their number most have been met.
const DRAWS_A_LAYER: usize = 3;

impl Composer for Grammar<'_> {
    fn name(&self) -> String {
        "grammar".into()
    }

    fn compose(&mut self, index: u64, group: Group) -> Result<Candidate, Unmade> {
        let ops = match group {
            Group::Stacked(ops) => ops,
            Group::Transformers => return self.layer(index),
        };
        let composition =
            Composition::new(self.seeds, self.seed, index, ops).ok_or(Unmade::Nothing)?;
        let name = format!("torch{ops}-{index:06}-{}", composition.ops().join("-"));
        let seeds = composition.seeds().to_vec();
        candidate(
            index,
            group,
            seeds,
            name,
            Made::Composed(Box::new(composition)),
        )
    }

    fn supply(&self, group: Group) -> Option<usize> {
        (group == Group::Transformers).then_some(DRAWS_A_LAYER * self.layers.len())
    }
}

impl Grammar<'_> {
    fn layer(&self, index: u64) -> Result<Candidate, Unmade> {
        let mut luck = Luck::new(self.seed, index);
        let layer = luck.one(self.layers).ok_or(Unmade::Nothing)?;
        let class = layer.path.rsplit('.').next().unwrap_or(&layer.path);
        let name = format!("transformers-{index:06}-{class}");
        let (seeds, made) = (vec![layer.path.clone()], Made::Layer(layer.clone()));
        candidate(index, Group::Transformers, seeds, name, made)
    }
}

/// A candidate of what was made, if its structure can be read.
pub(crate) fn candidate(
    index: u64,
    group: Group,
    seeds: Vec<String>,
    name: String,
    made: Made,
) -> Result<Candidate, Unmade> {
    let structure = Structure::of(&made.code(Size::REDUCED))
        .map_err(|error| Unmade::Nonsense(Dropped::new("nonsense", error.to_string())))?;
    Ok(Candidate {
        index,
        group,
        seeds,
        name,
        made,
        structure,
        nearest: None,
        spent: Spent::default(),
    })
}
