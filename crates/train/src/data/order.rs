//! The order of an epoch and its microbatches.

use std::collections::BTreeSet;

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

/// All of `count` in batches, in an order that is this epoch's: the same seed and epoch always give the same.
pub fn batches(count: usize, size: usize, seed: u64, epoch: u64) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..count).collect();
    // Far apart for neighbouring epochs and seeds.
    let mixed = seed ^ epoch.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    order.shuffle(&mut StdRng::seed_from_u64(mixed));
    order.chunks(size.max(1)).map(<[usize]>::to_vec).collect()
}

/// Neighbours put together while they have no more than `limit` tokens. One that is longer is alone.
pub fn packs(lengths: &[usize], limit: usize) -> Vec<std::ops::Range<usize>> {
    let mut packs: Vec<std::ops::Range<usize>> = Vec::new();
    let mut tokens = 0;
    for (place, length) in lengths.iter().enumerate() {
        match packs.last_mut() {
            Some(pack) if tokens + length <= limit => {
                pack.end = place + 1;
                tokens += length;
            }
            _ => {
                packs.push(place..place + 1);
                tokens = *length;
            }
        }
    }
    packs
}

/// Which of these to hold out: about `share` of the groups, whole, by a draw. Never all of them.
pub fn held_out(groups: &[&str], share: f64, seed: u64) -> Vec<bool> {
    let mut names: Vec<&str> = groups.to_vec();
    names.sort_unstable();
    names.dedup();
    let count = (share.clamp(0.0, 1.0) * names.len() as f64).round() as usize;
    let count = count.min(names.len().saturating_sub(1));
    names.shuffle(&mut StdRng::seed_from_u64(seed));
    let drawn: BTreeSet<&str> = names.into_iter().take(count).collect();
    groups.iter().map(|group| drawn.contains(group)).collect()
}

/// What is trained on, and what is held out: a task is in one of the two with all that belongs to it.
pub fn split<T>(
    items: Vec<T>,
    share: f64,
    seed: u64,
    task: impl Fn(&T) -> &str,
) -> (Vec<T>, Vec<T>) {
    let tasks: Vec<&str> = items.iter().map(&task).collect();
    let mut out = held_out(&tasks, share, seed).into_iter();
    let (held, training) = items
        .into_iter()
        .partition(|_| out.next().unwrap_or_default());
    (training, held)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_epoch_has_everything_once_and_the_next_another_order() {
        let first = batches(10, 4, 7, 0);
        assert_eq!(first, batches(10, 4, 7, 0));
        assert_eq!(first.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2]);
        let mut all = first.concat();
        all.sort_unstable();
        assert_eq!(all, (0..10).collect::<Vec<_>>());
        assert_ne!(first, batches(10, 4, 7, 1));
        assert_ne!(first, batches(10, 4, 8, 0));
    }

    #[test]
    fn a_task_is_held_out_whole() {
        let groups = ["a", "b", "a", "c", "d", "b"];
        let found = held_out(&groups, 0.5, 1);
        assert_eq!(found, held_out(&groups, 0.5, 1));
        assert_eq!((found[0], found[1]), (found[2], found[5]));
        let distinct = [found[0], found[1], found[3], found[4]];
        assert_eq!(distinct.iter().filter(|out| **out).count(), 2);
        assert_eq!(held_out(&groups, 0.0, 1), [false; 6]);
        assert!(held_out(&groups, 1.0, 1).contains(&false));
        assert_eq!(held_out(&["a"], 0.5, 1), [false]);
    }

    proptest! {
        #[test]
        fn packs_hold_everything_in_order_within_the_limit(
            lengths in prop::collection::vec(1_usize..50, 0..40), limit in 1_usize..120,
        ) {
            let packs = packs(&lengths, limit);
            let all: Vec<usize> = packs.iter().cloned().flatten().collect();
            prop_assert_eq!(all, (0..lengths.len()).collect::<Vec<_>>());
            for pack in &packs {
                let tokens: usize = lengths[pack.clone()].iter().sum();
                prop_assert!(pack.len() == 1 || tokens <= limit);
            }
            for pair in packs.windows(2) {
                let tokens: usize = lengths[pair[0].clone()].iter().sum();
                prop_assert!(tokens + lengths[pair[1].start] > limit);
            }
        }
    }
}
