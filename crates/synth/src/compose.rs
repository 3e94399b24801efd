//! Composers: who puts seeds together.

use warpsmith_tasks::Structure;

use crate::candidate::{Candidate, Made};
use crate::filter::Dropped;
use crate::grammar::{Composition, Size};
use crate::mix::Group;
use crate::seeds::Seeds;

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
}

/// Stacks seeds by the grammar.
pub struct Grammar<'a> {
    pub seeds: &'a Seeds,
    pub seed: u64,
}

impl Composer for Grammar<'_> {
    fn name(&self) -> String {
        "grammar".into()
    }

    fn compose(&mut self, index: u64, group: Group) -> Result<Candidate, Unmade> {
        let Group::Stacked(ops) = group else {
            return Err(Unmade::Nothing);
        };
        let composition =
            Composition::new(self.seeds, self.seed, index, ops).ok_or(Unmade::Nothing)?;
        let name = format!("torch{ops}-{index:06}-{}", composition.ops().join("-"));
        let seeds = composition.seeds().to_vec();
        candidate(index, group, seeds, name, Made::Composed(Box::new(composition)))
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
    })
}
