//! Numbers in indices, written as what they are made of: `(160 * 16384)` where a tensor has rows of 160 by 16384, and `- 56 - 1` a line
//! back and one to the left in lines of 56. Whoever reads the task can find such numbers in it, where `57` could only be guessed.

use std::collections::HashMap;

/// Shorter quarters are as clear as numbers.
const QUARTER: i64 = 64;
/// Smaller numbers are as clear as their factors.
const LARGE: i64 = 16;
/// So many lines and elements away most of what a window sees lies.
const REACH: i64 = 3;
/// In shorter lines a few elements and a line less a few look alike.
const LINE: i64 = 16;

/// Of all shapes that a task goes through.
pub(super) struct Strides {
    /// In brackets where it is more than a number.
    known: HashMap<i64, String>,
    /// Those that are no extent themselves, without brackets.
    products: HashMap<i64, String>,
}

impl Strides {
    /// Made of these extents; in quarters too, where kernels take vectors of four.
    pub(super) fn of<'s>(shapes: impl Iterator<Item = &'s [i64]> + Clone, quarters: bool) -> Self {
        let mut known = HashMap::new();
        let mut spell = |number: i64, text: String| {
            let is_new = number >= LARGE && !known.contains_key(&number);
            if is_new {
                known.insert(number, text);
            }
            is_new
        };
        // An extent is a word of the task itself.
        for extent in shapes.clone().flatten() {
            spell(*extent, extent.to_string());
        }
        let mut products = HashMap::new();
        for (number, text) in shapes.clone().flat_map(self::products) {
            if spell(number, format!("({text})")) {
                products.insert(number, text);
            }
        }
        if quarters {
            let extents = shapes.clone().flatten();
            let extents = extents.map(|extent| (*extent, extent.to_string()));
            for (number, text) in extents.chain(shapes.flat_map(self::products)) {
                if number % 4 == 0 && number >= 4 * QUARTER {
                    spell(number / 4, format!("({text} / 4)"));
                }
            }
        }
        Self { known, products }
    }

    pub(super) fn knows(&self, number: i64) -> bool {
        self.known.contains_key(&number)
    }

    pub(super) fn spelled(&self, number: i64) -> String {
        let known = self.known.get(&number);
        known.cloned().unwrap_or_else(|| number.to_string())
    }

    /// The factors of a number that is some of the last extents of a shape multiplied.
    pub(super) fn product(&self, number: i64) -> Option<&str> {
        self.products.get(&number).map(String::as_str)
    }
}

/// Lines, planes and so on of one shape, the longest first.
pub(super) struct Lines(Vec<(i64, String)>);

impl Lines {
    pub(super) fn of(shape: &[i64]) -> Self {
        let line = shape.iter().rev().find(|extent| **extent > 1);
        let line = line.map(|extent| (*extent, extent.to_string()));
        let mut units: Vec<(i64, String)> = line.into_iter().chain(products(shape)).collect();
        units.retain(|(number, _)| *number >= LINE);
        units.reverse();
        Self(units)
    }

    /// Every second or third line or plane.
    pub(super) fn several(&self, number: i64) -> Option<String> {
        let is_several = |unit: i64| number % unit == 0 && (2..=REACH).contains(&(number / unit));
        let fits = (LARGE..=i64::from(i32::MAX)).contains(&number);
        let found = self.0.iter().find(|(unit, _)| fits && is_several(*unit));
        found.map(|(unit, text)| format!("({} * {text})", number / unit))
    }

    /// ` + 56 - 1`: so many planes, lines and elements further, where all are within reach.
    pub(super) fn steps(&self, by: i64) -> Option<String> {
        if by.abs() > i64::from(i32::MAX) {
            return None;
        }
        let mut text = String::new();
        let mut rest = by;
        for (unit, word) in &self.0 {
            // To the nearest one.
            let times = (rest + rest.signum() * unit / 2) / unit;
            text += &match times.abs() {
                0 => continue,
                1 => spelled_multiple(times, word),
                several if several <= REACH => {
                    spelled_multiple(times, &format!("{several} * {word}"))
                }
                _ => return None,
            };
            rest -= times * unit;
        }
        match rest.abs() {
            _ if text.is_empty() => None,
            0 => Some(text),
            few if few <= REACH => Some(text + &spelled_multiple(rest, &few.to_string())),
            _ => None,
        }
    }
}

/// With its sign before it.
pub(super) fn spelled_multiple(by: i64, size: &str) -> String {
    let sign = if by < 0 { '-' } else { '+' };
    format!(" {sign} {size}")
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
        assert_eq!(strides.product(160 * 16_384), Some("160 * 16384"));
        assert_eq!([strides.product(16_384), strides.product(4096)], [None; 2]);
    }

    #[test]
    fn steps_are_lines_and_elements() {
        let lines = Lines::of(&[16, 24, 56, 56]);
        let said = |by: i64| lines.steps(by).unwrap_or_default();
        assert_eq!([said(56), said(-56)], [" + 56", " - 56"]);
        assert_eq!([said(-57), said(55)], [" - 56 - 1", " + 56 - 1"]);
        assert_eq!(said(2 * 56 + 2), " + 2 * 56 + 2");
        assert_eq!(said(-(56 * 56) - 56 + 1), " - 56 * 56 - 56 + 1");
        // Elements of the same line, and nothing that a window reaches.
        assert_eq!(
            [1, -3, 28, 300].map(|by| lines.steps(by)),
            [const { None }; 4]
        );
        // Every second line and plane.
        assert_eq!(lines.several(112).as_deref(), Some("(2 * 56)"));
        assert_eq!(lines.several(2 * 3136).as_deref(), Some("(2 * 56 * 56)"));
        assert_eq!([lines.several(28), lines.several(56)], [None, None]);
        assert!(Lines::of(&[65_536, 16_384]).several(2 << 30).is_none());
    }
}
