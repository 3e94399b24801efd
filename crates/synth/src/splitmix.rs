//! Random numbers that never change: a set is named by its seed, so no library's next version may change its stream.

const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// `SplitMix64`, by Steele, Lea and Flood.
#[derive(Debug, Clone)]
pub(crate) struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// The stream of one of many things that are drawn from a seed.
    pub(crate) fn of_index(seed: u64, index: u64) -> Self {
        let mut rng = Self { state: seed };
        rng.state = rng.next() ^ index.wrapping_mul(GOLDEN_GAMMA);
        rng
    }

    /// The stream of a text and a seed.
    pub(crate) fn of_text(text: &str, seed: u64) -> Self {
        // FNV-1a is enough to tell texts apart.
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self {
            state: hash ^ seed.wrapping_mul(GOLDEN_GAMMA),
        }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN_GAMMA);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`. The bias of the remainder does not show for small bounds.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of a list; `None` if it is empty.
    pub(crate) fn choose<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() {
            return None;
        }
        from.get(self.below(from.len()))
    }

    /// One of an array, which must not be empty.
    pub(crate) fn choose_of<T: Copy, const N: usize>(&mut self, choices: [T; N]) -> T {
        choices[self.below(N)]
    }

    /// In any order.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// An index, drawn by weights; `None` if all weights are zero.
    pub(crate) fn weighted(&mut self, weights: &[usize]) -> Option<usize> {
        let total: usize = weights.iter().sum();
        if total == 0 {
            return None;
        }
        let mut left = self.below(total);
        for (index, weight) in weights.iter().enumerate() {
            if left < *weight {
                return Some(index);
            }
            left -= weight;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the reference implementation, <https://prng.di.unimi.it/splitmix64.c>, with state 1234567.
    #[test]
    fn numbers_are_those_of_the_reference() {
        let mut rng = SplitMix64 { state: 1_234_567 };
        let found = [rng.next(), rng.next(), rng.next()];
        assert_eq!(
            found,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }
}
