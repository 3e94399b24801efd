//! A split in which no task meets a relative of its own on the other side.

use std::collections::{BTreeMap, BTreeSet};

use crate::Benchmark;
use crate::structure::Structure;

/// Tasks more alike than this are of one family. Lower than what makes twins, which a clean set has none of: three
/// operators in a row of which the last is another one are just that alike, and do not yet belong together.
pub const FAMILY: f64 = 0.7;

/// Which tasks are for validation: about `share` of them, never more, whole families only. Tasks are given with their ids,
/// which are unique. The same seed gives the same answer for the same tasks, in whatever order they are.
pub fn validation(tasks: &[(String, Structure)], share: f64, seed: u64) -> BTreeSet<String> {
    let mut families = families(tasks);
    let luck = |family: &[&str]| {
        let first = family.first().copied().unwrap_or_default();
        *blake3::hash(format!("{seed}:{first}").as_bytes()).as_bytes()
    };
    families.sort_by_key(|family| luck(family));
    let mut room = (tasks.len() as f64 * share.clamp(0.0, 1.0)).round() as usize;
    let mut chosen = BTreeSet::new();
    for family in families {
        if family.len() <= room {
            room -= family.len();
            chosen.extend(family.into_iter().map(str::to_owned));
        }
    }
    chosen
}

/// Whoever is alike is of one family, and so are all of theirs. Ids in order.
fn families(tasks: &[(String, Structure)]) -> Vec<Vec<&str>> {
    let mut all = Benchmark::default();
    let mut parents: Vec<usize> = Vec::new();
    for (place, (id, structure)) in tasks.iter().enumerate() {
        parents.push(place);
        for found in all.alike(structure, FAMILY) {
            let (left, right) = (root(&mut parents, place), root(&mut parents, found.place));
            parents[left] = right;
        }
        all.insert(id.clone(), structure.clone());
    }
    let mut families: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for (place, (id, _)) in tasks.iter().enumerate() {
        let root = root(&mut parents, place);
        families.entry(root).or_default().push(id);
    }
    let mut families: Vec<Vec<&str>> = families.into_values().collect();
    for family in &mut families {
        family.sort_unstable();
    }
    families
}

fn root(parents: &mut [usize], mut place: usize) -> usize {
    while parents[place] != place {
        parents[place] = parents[parents[place]];
        place = parents[place];
    }
    place
}
