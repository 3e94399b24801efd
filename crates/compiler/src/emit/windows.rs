//! Windows of regular code, written by coordinates: `hidden[((plane * 53 + d * 3 + k - 1) * 59 + h * 3 + l - 1) * 10 + w]`. All numbers
//! in it stand in the task; a product of some of them would have to be worked out.

use super::{KernelWriter, integer};
use crate::index::{Index, IndexNames, Var};
use crate::scalar::BoundsCheck;

/// Dimensions of space, by how many there are.
const SPACE: [&[&str]; 4] = [&[], &["w"], &["h", "w"], &["d", "h", "w"]];

/// Numbers as they are.
struct PlainNumbers<'w, 'p>(&'w KernelWriter<'p>);

impl IndexNames for PlainNumbers<'_, '_> {
    fn name(&self, var: Var) -> String {
        self.0.name(var)
    }
}

impl KernelWriter<'_> {
    /// Declares where in space a row of these extents lies, and in which plane; its coordinates.
    pub(super) fn declare_window(&mut self, outer: &[i64]) -> Option<Vec<Index>> {
        let [images, channels, space @ ..] = outer else {
            return None;
        };
        let names = SPACE.get(space.len())?;
        let int = integer(self.plan);
        // In the order of the dimensions: what is compared in this order is the same condition.
        let plane = self.plan.arena.var(images * channels);
        let vars: Vec<Var> = space.iter().map(|one| self.plan.arena.var(*one)).collect();
        let quotient = |inner: &[String]| match inner {
            [] => "row".to_owned(),
            [one] => format!("row / {one}"),
            several => format!("row / ({})", several.join(" * ")),
        };
        let mut inner: Vec<String> = Vec::new();
        for (var, name) in vars
            .iter()
            .zip(*names)
            .rev()
            .filter(|(var, _)| var.extent > 1)
        {
            let (name, extent) = (self.unique(name), var.extent);
            self.line(format!(
                "const {int} {name} = {} % {extent};",
                quotient(&inner)
            ));
            self.name_variable(*var, &name);
            inner.insert(0, extent.to_string());
        }
        let name = self.unique("plane");
        self.line(format!("const {int} {name} = {};", quotient(&inner)));
        self.name_variable(plane, &name);
        let plane = Index::from(plane);
        let mut at = vec![plane.divided(*channels), plane.remainder(*channels)];
        at.extend(vars.into_iter().map(Index::from));
        Some(at)
    }

    /// A place in a buffer of this shape, dimension after dimension.
    pub(super) fn place_by_coordinates(&self, shape: &[i64], index: &Index) -> Option<String> {
        let mut place = String::new();
        for (extent, at) in shape.iter().zip(index.by_dimension(shape)?) {
            let at = at.code(&PlainNumbers(self));
            if place.is_empty() {
                if at != "0" {
                    place = at;
                }
                continue;
            }
            if *extent > 1 {
                place = if place.contains(' ') {
                    format!("({place}) * {extent}")
                } else {
                    format!("{place} * {extent}")
                };
            }
            if at != "0" {
                place = format!("{place} + {at}");
            }
        }
        Some(if place.is_empty() {
            "0".to_owned()
        } else {
            place
        })
    }

    /// Both borders of every dimension that has some: which of them can be met would have to be worked out.
    pub(super) fn within_borders(&self, guard: &[BoundsCheck]) -> String {
        let sides = |check: &BoundsCheck| {
            let at = check.index.code(&PlainNumbers(self));
            format!("{at} >= {} && {at} < {}", check.low, check.high)
        };
        let sides: Vec<String> = guard.iter().map(sides).collect();
        format!("({})", sides.join(" && "))
    }
}
