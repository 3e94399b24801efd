//! The sizes that a task's text names. Structure leaves them out; two tasks of one operator differ by nothing else.

use super::{SubgraphHash, subgraph_hash};

/// Smaller numbers are kernel sizes, strides and dimensions, which many tasks share.
const SMALLEST: u64 = 8;

/// The hash of all numbers in a text that may be extents, whatever their order and however often each is named; `None` where
/// there is none.
pub(super) fn hash(source: &str) -> Option<SubgraphHash> {
    let mut extents: Vec<u64> = Vec::new();
    for line in source.lines() {
        let code = line.split('#').next().unwrap_or_default();
        let is_word = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '.';
        for word in code.split(|letter| !is_word(letter)) {
            let number: Option<u64> = word.replace('_', "").parse().ok();
            extents.extend(number.filter(|number| *number >= SMALLEST));
        }
    }
    extents.sort_unstable();
    extents.dedup();
    if extents.is_empty() {
        return None;
    }
    let words: Vec<String> = extents.iter().map(ToString::to_string).collect();
    Some(subgraph_hash(0, &words.join(" "), &[]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_and_where_they_stand_does_not() {
        let one = "batch_size = 16\ndim = 16384  # of 99\nconv2d = 1e-5, 2.5\n";
        let same = "def f():\n    return torch.rand(16_384, 16)\n";
        assert_eq!(hash(one), hash(same));
        assert_ne!(hash(one), hash("torch.rand(16, 8192)"));
        assert_eq!(hash("x = 3"), None);
    }
}
