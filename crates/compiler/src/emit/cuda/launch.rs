//! How many blocks a kernel has, and of how many threads.
//!
//! Numbers are written as what they are made of: `(4096 * 163840 + 255) / 256` says where it comes from, and who learns from it
//! can copy the parts from the task, where multiplying them would be guessing.

/// Blocks, and the threads of one.
pub(crate) struct LaunchConfig {
    pub(crate) blocks: String,
    pub(crate) threads: String,
    /// All threads of a block.
    pub(crate) max_threads: i64,
}

impl LaunchConfig {
    /// A thread for every so many results of a shape.
    pub(super) fn over(shape: &[i64], each: i64, threads: i64) -> Self {
        Self {
            blocks: blocks(shape, threads * each),
            threads: threads.to_string(),
            max_threads: threads,
        }
    }
}

/// How many blocks there are, where each has so many places of a shape.
pub(super) fn blocks(shape: &[i64], each: i64) -> String {
    let factors = product(shape);
    if each == 1 {
        factors
    } else {
        format!("({factors} + {}) / {each}", each - 1)
    }
}

/// A shape's extents, multiplied; 64 bits wide where 32 are too few.
pub(super) fn product(shape: &[i64]) -> String {
    let wide = shape.iter().product::<i64>() > i64::from(i32::MAX);
    let factors = shape.iter().filter(|extent| **extent != 1);
    let mut factors: Vec<String> = factors.map(ToString::to_string).collect();
    match factors.first_mut() {
        None => factors.push("1".to_owned()),
        Some(first) if wide => first.push_str("LL"),
        Some(_) => {}
    }
    factors.join(" * ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_say_what_they_are_made_of() {
        assert_eq!(blocks(&[4096, 163_840], 256), "(4096 * 163840 + 255) / 256");
        assert_eq!(blocks(&[1, 1000], 256), "(1000 + 255) / 256");
        assert_eq!(blocks(&[8, 1, 512], 1), "8 * 512");
        assert_eq!(blocks(&[1, 1], 4), "(1 + 3) / 4");
        // 2^32 is more than an `int` holds, though the blocks are few.
        assert_eq!(
            blocks(&[65_536, 65_536], 1024),
            "(65536LL * 65536 + 1023) / 1024"
        );
    }
}
