//! How one person writes a module.

use crate::splitmix::SplitMix64;

/// Where the numbers of a task stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConstantStyle {
    /// As names after the class.
    Below,
    /// As names before it.
    Above,
    /// Where they are used.
    None,
}

/// How constants of the same kind share a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpaceStyle {
    OneALine,
    /// `height = width = 64`, where they are equal.
    Chained,
    /// `height, width = 64, 32`.
    Together,
}

impl SpaceStyle {
    /// Lines `NAME = NUMBER`, those of space put together.
    pub(super) fn joined(self, lines: Vec<String>) -> Vec<String> {
        if self == Self::OneALine {
            return lines;
        }
        let mut joined: Vec<String> = Vec::new();
        let mut space: Vec<(String, String)> = Vec::new();
        let mut place = 0;
        for line in lines {
            match line.split_once(" = ") {
                Some((name, number)) if SpaceNames::has(name) => {
                    place = joined.len();
                    space.push((name.to_owned(), number.to_owned()));
                }
                _ => joined.push(line),
            }
        }
        let Some((_, first)) = space.first() else {
            return joined;
        };
        let names: Vec<&str> = space.iter().map(|(name, _)| name.as_str()).collect();
        let numbers: Vec<&str> = space.iter().map(|(_, number)| number.as_str()).collect();
        let line = if self == Self::Chained && numbers.iter().all(|number| *number == first) {
            format!("{} = {first}", names.join(" = "))
        } else {
            format!("{} = {}", names.join(", "), numbers.join(", "))
        };
        joined.insert(place.min(joined.len()), line);
        joined
    }
}

/// What dimensions of space are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpaceNames {
    /// Depth, height and width.
    Words,
    /// Depth, width and height.
    Turned,
    Letters,
    Numbers,
}

impl SpaceNames {
    /// Of one to three dimensions.
    pub(super) fn of(self, dims: usize) -> &'static [&'static str] {
        match (self, dims) {
            (Self::Letters, 1) => &["L"],
            (Self::Letters, 2) => &["H", "W"],
            (Self::Letters, _) => &["D", "H", "W"],
            (Self::Numbers, 1) => &["dim1"],
            (Self::Numbers, 2) => &["dim1", "dim2"],
            (Self::Numbers, _) => &["dim1", "dim2", "dim3"],
            (Self::Turned, 1) => &["seq_length"],
            (Self::Turned, 2) => &["width", "height"],
            (Self::Turned, _) => &["depth", "width", "height"],
            (Self::Words, 1) => &["length"],
            (Self::Words, 2) => &["height", "width"],
            (Self::Words, _) => &["depth", "height", "width"],
        }
    }

    /// Whether it is one of several for the same tensor.
    fn has(name: &str) -> bool {
        let all = [Self::Words, Self::Letters, Self::Numbers];
        all.iter().any(|names| names.of(3).contains(&name))
    }
}

#[derive(Debug, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a habit of its own, drawn by itself"
)]
pub(super) struct WritingStyle {
    pub(super) constants: ConstantStyle,
    /// `__init__` takes what modules are made with.
    pub(super) arguments: bool,
    /// The signature has defaults, as that of the layer inside.
    pub(super) defaults: bool,
    /// Numbers of `forward` are attributes.
    pub(super) settings: bool,
    pub(super) old_super: bool,
    pub(super) hints: bool,
    pub(super) class_doc: bool,
    pub(super) forward_doc: bool,
    pub(super) long_docs: bool,
    pub(super) comments: bool,
    /// `import torch.nn.functional as F`.
    pub(super) imports_functional: bool,
    /// An `__init__` even where there is nothing to set up.
    pub(super) empty_init: bool,
    /// Activations are modules.
    pub(super) module_activations: bool,
    /// Two blank lines where one is allowed.
    pub(super) airy: bool,
    /// Each result has a name of its own.
    pub(super) numbered: bool,
    /// Comments stand above their lines.
    pub(super) comments_above: bool,
    pub(super) spaces: SpaceStyle,
    /// Constants stand in no order: the width before the height.
    pub(super) shuffled: bool,
    /// Large constants are products: `1024 * 4`.
    pub(super) products: bool,
    /// Extents after the first are one constant: `input_shape = (64, 128)`.
    pub(super) shape_constant: bool,
    /// The constructor has a docstring of its own.
    pub(super) init_doc: bool,
    /// Tuples are written with the names of other constants.
    pub(super) derived: bool,
    /// Arguments that are no extents have no constants.
    pub(super) bare: bool,
    /// Equal signs of constants stand below each other.
    pub(super) aligned: bool,
    /// Constants have remarks.
    pub(super) remarks: bool,
    /// Numbers for each dimension are tuples, even where they are equal.
    pub(super) tuples: bool,
    /// What the dimensions of space are called.
    pub(super) space: SpaceNames,
    /// What results are called.
    pub(super) variable: &'static str,
}

impl WritingStyle {
    pub(super) fn draw(rng: &mut SplitMix64) -> Self {
        Self {
            constants: match rng.below(20) {
                0..=13 => ConstantStyle::Below,
                14..=15 => ConstantStyle::Above,
                _ => ConstantStyle::None,
            },
            arguments: rng.chance(88),
            defaults: rng.chance(45),
            settings: rng.chance(70),
            old_super: rng.chance(65),
            hints: rng.chance(35),
            class_doc: rng.chance(75),
            forward_doc: rng.chance(45),
            long_docs: rng.chance(55),
            comments: rng.chance(25),
            imports_functional: rng.chance(70),
            empty_init: rng.chance(85),
            module_activations: rng.chance(40),
            airy: rng.chance(40),
            numbered: rng.chance(8),
            comments_above: rng.chance(40),
            shuffled: rng.chance(30),
            products: rng.chance(28),
            shape_constant: rng.chance(10),
            init_doc: rng.chance(28),
            derived: rng.chance(75),
            bare: rng.chance(12),
            aligned: rng.chance(6),
            remarks: rng.chance(15),
            tuples: rng.chance(15),
            space: rng.choose_of([
                SpaceNames::Words,
                SpaceNames::Words,
                SpaceNames::Words,
                SpaceNames::Turned,
                SpaceNames::Letters,
                SpaceNames::Numbers,
            ]),
            spaces: rng.choose_of([
                SpaceStyle::OneALine,
                SpaceStyle::OneALine,
                SpaceStyle::Chained,
                SpaceStyle::Together,
            ]),
            variable: rng.choose_of(["x", "x", "x", "x", "out", "y", "h"]),
        }
    }
}
