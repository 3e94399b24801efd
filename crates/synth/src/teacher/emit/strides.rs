//! Large strides, written as what they are made of: `(160 * 16384)` where a tensor has rows of 160 by 16384. A step back and one to
//! the left in rows of 56 is `- 56 - 1`. Whoever reads the task can find such numbers in it, where `57` could only be guessed.

use std::collections::HashMap;

/// Smaller numbers are as clear as their factors.
const LARGE: i64 = 64;
/// So far a window reaches, in any direction.
const REACH: i64 = 3;
/// Shorter lines are not told from the reach of a window.
const LINE: i64 = 4 * REACH;

pub(super) struct Strides {
    known: HashMap<i64, String>,
    /// Of each shape: its line, plane and so on, the longest first.
    units: Vec<Vec<(i64, String)>>,
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
        if quarters {
            let extents = shapes.clone().flatten();
            let extents = extents.map(|extent| (*extent, extent.to_string()));
            for (number, text) in extents.chain(products) {
                if number % 4 == 0 {
                    spell(number / 4, format!("({text} / 4)"));
                }
            }
        }
        Self {
            known,
            units: shapes.map(units).collect(),
        }
    }

    pub(super) fn spelled(&self, number: i64) -> String {
        if let Some(known) = self.known.get(&number) {
            return known.clone();
        }
        // Every second or third line.
        let is_several = |unit: i64| number % unit == 0 && (2..=REACH).contains(&(number / unit));
        let mut units = self.units.iter().flatten();
        match units.find(|(unit, _)| is_several(*unit)) {
            Some((unit, text)) if number >= LARGE => format!("({} * {text})", number / unit),
            _ => number.to_string(),
        }
    }

    /// The factors of a number that is some of the last extents of a shape multiplied.
    pub(super) fn product(&self, number: i64) -> Option<&str> {
        let known = self.known.get(&number)?;
        let inner = known.strip_prefix('(')?.strip_suffix(')')?;
        (!inner.contains('/')).then_some(inner)
    }

    /// ` + 56 - 1`: so many lines and so many elements further, where it can be said like that.
    pub(super) fn steps(&self, by: i64) -> String {
        if by.abs() > REACH && !self.known.contains_key(&by.abs()) {
            let mut ways = self.units.iter().filter_map(|units| walked(units, by));
            if let Some(way) = ways.next() {
                return way;
            }
        }
        said(by, &self.spelled(by.abs()))
    }
}

/// Lines, planes and so on of a shape, the longest first.
fn units(shape: &[i64]) -> Vec<(i64, String)> {
    let line = shape.iter().rev().find(|extent| **extent > 1);
    let line = line.map(|extent| (*extent, extent.to_string()));
    let mut units: Vec<(i64, String)> = line.into_iter().chain(products(shape)).collect();
    units.retain(|(number, _)| *number >= LINE);
    units.reverse();
    units
}

/// So many of the first, of the second and so on, and what is left: all within reach.
fn walked(units: &[(i64, String)], by: i64) -> Option<String> {
    let mut text = String::new();
    let mut rest = by;
    for (unit, word) in units {
        // To the nearest one.
        let times = (rest + rest.signum() * unit / 2) / unit;
        text += &match times.abs() {
            0 => continue,
            1 => said(times, word),
            several if several <= REACH => said(times, &format!("{several} * {word}")),
            _ => return None,
        };
        rest -= times * unit;
    }
    match rest.abs() {
        _ if text.is_empty() => None,
        0 => Some(text),
        few if few <= REACH => Some(text + &said(rest, &few.to_string())),
        _ => None,
    }
}

fn said(by: i64, size: &str) -> String {
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
        assert_eq!(whole.spelled(4096), "(2 * 2048)");
        assert_eq!(whole.spelled(4097), "4097");
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
        let shapes: [&[i64]; 2] = [&[16, 24, 56, 56], &[4, 32, 32, 32]];
        let strides = Strides::of(shapes.into_iter(), false);
        let said = |by: i64| strides.steps(by);
        assert_eq!([said(1), said(-3)], [" + 1", " - 3"]);
        assert_eq!([said(56), said(-56)], [" + 56", " - 56"]);
        assert_eq!([said(-57), said(55)], [" - 56 - 1", " + 56 - 1"]);
        assert_eq!(said(2 * 56 + 2), " + 2 * 56 + 2");
        assert_eq!(said(-(56 * 56) - 56 + 1), " - 56 * 56 - 56 + 1");
        assert_eq!(said(1024 + 32 + 1), " + 32 * 32 + 32 + 1");
        // Nothing that a window reaches.
        assert_eq!([said(300), said(11)], [" + 300", " + 11"]);
        // Every second line and plane.
        assert_eq!(strides.spelled(112), "(2 * 56)");
        assert_eq!(strides.spelled(2048), "(2 * 32 * 32)");
    }
}
