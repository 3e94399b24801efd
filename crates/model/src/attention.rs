//! Attention of a few new positions over a sequence's keys and values, on the processor.

use rayon::prelude::*;

use crate::cache::LayerCache;
use crate::products::dot;

/// Fewer products than this are not worth another thread: waking one costs more.
const PARALLEL_PRODUCTS: usize = 1 << 19;

/// What one call attends over.
pub(crate) struct Attention<'a> {
    pub(crate) cache: &'a LayerCache,
    /// Rows of all query heads side by side, for the last positions of the cache.
    pub(crate) queries: &'a [f32],
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
    /// Where the first of these rows stands in the sequence.
    pub(crate) first_position: usize,
}

impl Attention<'_> {
    /// Writes one row per query row; each sees itself and what came before.
    pub(crate) fn write(&self, output: &mut [f32]) {
        let kv_heads = self.cache.keys.len();
        // The query heads of one key head lie side by side: its keys are read once for all of them.
        let group = self.heads / kv_heads * self.head_dim;
        let products = output.len() * (self.first_position + 1);
        output
            .par_chunks_mut(group)
            .zip(self.queries.par_chunks(group))
            .enumerate()
            .with_min_len(if products < PARALLEL_PRODUCTS {
                usize::MAX
            } else {
                1
            })
            .for_each_init(Vec::new, |scores, (index, (output, queries))| {
                let (row, kv_head) = (index / kv_heads, index % kv_heads);
                let seen = (self.first_position + row + 1) * self.head_dim;
                let one = Group {
                    queries,
                    keys: &self.cache.keys[kv_head][..seen],
                    values: &self.cache.values[kv_head][..seen],
                    head_dim: self.head_dim,
                };
                one.attend(scores, output);
            });
    }
}

/// One position of the query heads that share a key head.
struct Group<'a> {
    queries: &'a [f32],
    keys: &'a [f32],
    values: &'a [f32],
    head_dim: usize,
}

impl Group<'_> {
    fn attend(&self, scores: &mut Vec<f32>, output: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
            #[expect(unsafe_code, reason = "the compiler cannot see the check above")]
            // SAFETY: the processor has the instructions this function is compiled for.
            unsafe {
                self.attend_avx2(scores, output);
            };
            return;
        }
        self.attend_anywhere(scores, output);
    }

    /// The same code, compiled for eight numbers at a time.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn attend_avx2(&self, scores: &mut Vec<f32>, output: &mut [f32]) {
        self.attend_anywhere(scores, output);
    }

    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "it must be compiled with the instructions of its caller"
    )]
    fn attend_anywhere(&self, scores: &mut Vec<f32>, output: &mut [f32]) {
        let scale = (self.head_dim as f32).sqrt().recip();
        let positions = self.keys.len() / self.head_dim;
        let heads = self.queries.len() / self.head_dim;
        scores.clear();
        scores.resize(heads * positions, 0.0);
        for (position, key) in self.keys.chunks_exact(self.head_dim).enumerate() {
            for (head, query) in self.queries.chunks_exact(self.head_dim).enumerate() {
                scores[head * positions + position] = dot(query, key) * scale;
            }
        }
        for scores in scores.chunks_exact_mut(positions) {
            softmax(scores);
        }
        output.fill(0.0);
        for (position, value) in self.values.chunks_exact(self.head_dim).enumerate() {
            for (head, output) in output.chunks_exact_mut(self.head_dim).enumerate() {
                let share = scores[head * positions + position];
                for (to, from) in output.iter_mut().zip(value) {
                    *to += share * from;
                }
            }
        }
    }
}

#[inline]
fn softmax(scores: &mut [f32]) {
    let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for score in scores.iter_mut() {
        *score = (*score - highest).exp();
        sum += *score;
    }
    for score in scores {
        *score /= sum;
    }
}
