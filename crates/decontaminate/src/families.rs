//! A split into training and validation in which no two similar tasks are on different sides.

use std::collections::{BTreeMap, BTreeSet};

use crate::FingerprintIndex;
use crate::structure::Structure;

/// Tasks more similar than this are of one family. It lies below the threshold of near-duplicates, which a clean set has none
/// of: two chains of three operators that differ in the last are exactly this similar and do not belong together yet.
pub const FAMILY_THRESHOLD: f64 = 0.7;

/// Ids of the tasks for validation: about `share` of all, never more, whole families only. Ids must be unique. The same seed
/// gives the same answer for the same tasks, in any order.
pub fn validation_split(tasks: &[(String, Structure)], share: f64, seed: u64) -> BTreeSet<String> {
    let mut families = families(tasks);
    let shuffled = |family: &[&str]| {
        let first = family.first().copied().unwrap_or_default();
        *blake3::hash(format!("{seed}:{first}").as_bytes()).as_bytes()
    };
    families.sort_by_key(|family| shuffled(family));
    let mut wanted = (tasks.len() as f64 * share.clamp(0.0, 1.0)).round() as usize;
    let mut chosen = BTreeSet::new();
    for family in families {
        if family.len() <= wanted {
            wanted -= family.len();
            chosen.extend(family.into_iter().map(str::to_owned));
        }
    }
    chosen
}

/// Connected components of similarity, each with its ids in order.
fn families(tasks: &[(String, Structure)]) -> Vec<Vec<&str>> {
    let mut index = FingerprintIndex::default();
    let mut parents: Vec<usize> = Vec::new();
    for (place, (id, structure)) in tasks.iter().enumerate() {
        parents.push(place);
        for found in index.more_similar_than(structure, FAMILY_THRESHOLD) {
            let (left, right) = (root(&mut parents, place), root(&mut parents, found.place));
            parents[left] = right;
        }
        index.insert(id.clone(), structure.clone());
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
