/// Random numbers that are the same for ever: a set is named by its seed, and no library's next version may change it.
/// (`SplitMix64`, by Steele, Lea and Flood.)
#[derive(Debug, Clone)]
pub(crate) struct Luck(u64);

impl Luck {
    pub(crate) fn new(seed: u64, index: u64) -> Self {
        let mut luck = Self(seed);
        let mixed = luck.next() ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        luck.0 = mixed;
        luck
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `bound`, which is small: the bias of the remainder is not seen.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of them; `None` of nothing.
    pub(crate) fn one<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        if of.is_empty() {
            return None;
        }
        let at = self.below(of.len());
        of.get(at)
    }

    /// One of a list that is not empty.
    pub(crate) fn of<T: Copy, const N: usize>(&mut self, choices: [T; N]) -> T {
        choices[self.below(N)]
    }

    /// Places with weights; `None` if all are zero.
    pub(crate) fn weighted(&mut self, weights: &[usize]) -> Option<usize> {
        let total: usize = weights.iter().sum();
        if total == 0 {
            return None;
        }
        let mut left = self.below(total);
        for (place, weight) in weights.iter().enumerate() {
            if left < *weight {
                return Some(place);
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
        let mut luck = Luck(1_234_567);
        let found = [luck.next(), luck.next(), luck.next()];
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
