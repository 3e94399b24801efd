//! Large strides, written as what they are made of: `(160 * 16384)` where a tensor has rows of 160 by 16384.

use std::collections::HashMap;

/// Smaller numbers are as clear as their factors.
const LARGE: i64 = 64;

pub(super) struct Strides {
    known: HashMap<i64, String>,
}

impl Strides {
    /// Made of these extents; in quarters too, where kernels take vectors of four.
    pub(super) fn of<'s>(shapes: impl Iterator<Item = &'s [i64]> + Clone, quarters: bool) -> Self {
        let mut known = HashMap::new();
        let mut spell = |number: i64, text: String| {
            if number >= LARGE {
                known.entry(number).or_insert(text);
            }
        };
        // An extent is a word of the task itself.
        for extent in shapes.clone().flatten() {
            spell(*extent, extent.to_string());
        }
        let products: Vec<(i64, String)> = shapes.clone().flat_map(products).collect();
        for (number, text) in &products {
            spell(*number, format!("({text})"));
        }
        if !quarters {
            return Self { known };
        }
        let extents = shapes.flatten().map(|extent| (*extent, extent.to_string()));
        for (number, text) in extents.chain(products) {
            if number % 4 == 0 {
                spell(number / 4, format!("({text} / 4)"));
            }
        }
        Self { known }
    }

    pub(super) fn spelled(&self, number: i64) -> String {
        let known = self.known.get(&number);
        known.cloned().unwrap_or_else(|| number.to_string())
    }
}

/// Of the last two extents, the last three and so on, while they fit into an `int`.
fn products(shape: &[i64]) -> Vec<(i64, String)> {
    let extents: Vec<i64> = shape.iter().copied().filter(|one| *one > 1).collect();
    let mut found = Vec::new();
    for first in (0..extents.len().saturating_sub(1)).rev() {
        let factors = &extents[first..];
        let number: i64 = factors.iter().product();
        if number > i64::from(i32::MAX) {
            break;
        }
        let words: Vec<String> = factors.iter().map(ToString::to_string).collect();
        found.push((number, words.join(" * ")));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_are_products_of_what_lies_within() {
        let shapes: [&[i64]; 2] = [&[128, 160, 16_384], &[8, 1, 2048]];
        let whole = Strides::of(shapes.into_iter(), false);
        assert_eq!(whole.spelled(4096), "4096");
        let strides = Strides::of(shapes.into_iter(), true);
        assert_eq!(strides.spelled(160 * 16_384), "(160 * 16384)");
        assert_eq!(strides.spelled(40 * 16_384), "(160 * 16384 / 4)");
        assert_eq!(strides.spelled(8 * 2048), "16384");
        assert_eq!(strides.spelled(2048), "2048");
        assert_eq!(strides.spelled(4096), "(16384 / 4)");
        assert_eq!(strides.spelled(40), "40");
        assert_eq!(strides.spelled(1025), "1025");
    }
}
