//! Choices that are the same for the same seed, on every machine.

/// A counter through a mixing function (splitmix64).
#[derive(Debug, Clone)]
pub(super) struct Luck(u64);

impl Luck {
    /// By everything that distinguishes one episode from another.
    pub(super) fn new(text: &str, seed: u64) -> Self {
        // FNV-1a: a few names are told apart, nothing more.
        let hashed = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self(hashed ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, count: usize) -> usize {
        (self.next() % count.max(1) as u64) as usize
    }

    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub(super) fn of<T: Copy>(&mut self, choices: &[T]) -> Option<T> {
        let place = self.below(choices.len());
        choices.get(place).copied()
    }
}
