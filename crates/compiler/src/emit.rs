//! Kernels as text: one way of writing expressions for C++ and for CUDA, and loops around them for each.

mod attention;
pub(super) mod cpu;
pub(super) mod cuda;
mod functions;
pub(super) mod library;
mod loops;
pub(super) mod module_source;
mod operators;
pub(super) mod python;
mod row_kernel;
mod strides;
mod windows;

use std::collections::{BTreeSet, HashMap};

use cpu::SimdFunction;
use strides::{Lines, Strides, spelled_multiple};
use warpsmith_schema::Target;

use crate::index::{Index, IndexNames, Var};
use crate::plan::{BufferInfo, BufferOrigin, Plan, Strategy};
use crate::scalar::{BoundsCheck, Buffer, Node, Scalar, ScalarType};

/// What a file declares or includes because a kernel calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Helper {
    /// A device function of `warpsmith.h`.
    Provided,
    /// A function of the C library, declared so that loops over it are vectorised.
    Vectorised(&'static str),
    /// One of our own for vectors on a CPU.
    Simd(SimdFunction),
}

/// Writes the body of one kernel.
pub(super) struct KernelWriter<'p> {
    pub(super) plan: &'p mut Plan,
    buffers: &'p [String],
    lines: Vec<String>,
    depth: usize,
    vars: HashMap<Var, String>,
    values: HashMap<Scalar, String>,
    taken: BTreeSet<String>,
    strides: Strides,
    /// Whether places in buffers are written by their coordinates.
    by_coordinates: bool,
    pub(super) helpers: BTreeSet<Helper>,
    /// Buffers that are read, in the order of their first use.
    pub(super) read: Vec<Buffer>,
}

/// How tightly an expression binds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Precedence {
    Choice,
    Compare,
    Sum,
    Product,
    Atom,
}

impl IndexNames for KernelWriter<'_> {
    fn name(&self, var: Var) -> String {
        let known = self.vars.get(&var).cloned();
        known.unwrap_or_else(|| format!("unknown{}", var.id))
    }

    fn number(&self, number: i64) -> String {
        self.strides.spelled(number)
    }
}

/// Names for an index into a buffer, which may be written as lines of that buffer.
struct BufferIndexNames<'w, 'p> {
    writer: &'w KernelWriter<'p>,
    lines: Lines,
    own: Strides,
}

impl IndexNames for BufferIndexNames<'_, '_> {
    fn name(&self, var: Var) -> String {
        self.writer.name(var)
    }

    fn number(&self, number: i64) -> String {
        match self.own.product(number) {
            Some(_) if self.writer.plan.is_regular() => self.own.spelled(number),
            _ => self.writer.number(number),
        }
    }

    fn factor(&self, number: i64) -> String {
        match self.lines.several(number) {
            Some(several) if !self.writer.strides.knows(number) => several,
            _ => self.number(number),
        }
    }

    fn offset(&self, by: i64) -> String {
        let steps = self.lines.steps(by);
        steps.unwrap_or_else(|| spelled_multiple(by, &self.number(by.abs())))
    }
}

impl<'p> KernelWriter<'p> {
    pub(super) fn new(plan: &'p mut Plan, buffers: &'p [String]) -> Self {
        let taken = buffers.iter().cloned().collect();
        let told = plan.known_shapes.iter().map(Vec::as_slice);
        // What is reduced may be part of an extent: a group of channels.
        let reduced = plan.reductions.iter();
        let told = told.chain(reduced.map(|reduction| reduction.extents.as_slice()));
        let strides = Strides::of(told, plan.strategy == Strategy::Tuned);
        Self {
            plan,
            buffers,
            lines: Vec::new(),
            depth: 1,
            vars: HashMap::new(),
            values: HashMap::new(),
            taken,
            strides,
            by_coordinates: false,
            helpers: BTreeSet::new(),
            read: Vec::new(),
        }
    }

    /// A count, written as the product of the extents it consists of.
    pub(super) fn count(&self, number: i64) -> String {
        match self.strides.product(number) {
            Some(factors) => factors.to_owned(),
            None => number.to_string(),
        }
    }

    /// A literal in single precision. The divisor of a mean is written as a product of extents.
    fn literal(&self, value: f64) -> String {
        let single = value as f32;
        let factors = |whole: u32| self.strides.product(whole.into());
        if let Some(factors) = reciprocal(single).and_then(factors) {
            return format!("(1.0f / ({factors}))");
        }
        // Rounded once, as the number itself is.
        let is_whole = value.fract() == 0.0 && (0.0..=f64::from(i32::MAX)).contains(&value);
        match is_whole.then_some(value as u32).and_then(factors) {
            Some(factors) => format!("float({factors})"),
            None => float(value),
        }
    }

    pub(super) fn line(&mut self, text: impl AsRef<str>) {
        let text = text.as_ref();
        let indented = if text.starts_with("#pragma") || text.is_empty() {
            text.to_owned()
        } else {
            format!("{}{text}", "    ".repeat(self.depth))
        };
        self.lines.push(indented);
    }

    /// A line that ends with a brace.
    pub(super) fn open(&mut self, text: impl AsRef<str>) {
        self.line(text);
        self.depth += 1;
    }

    pub(super) fn close(&mut self) {
        self.depth -= 1;
        self.line("}");
    }

    pub(super) fn text(&self) -> String {
        self.lines.join("\n")
    }

    /// The full name of a device function or type of `warpsmith.h`, which the file then includes.
    pub(super) fn provided(&mut self, name: &str) -> String {
        self.helpers.insert(Helper::Provided);
        format!("warpsmith::{name}")
    }

    pub(super) fn unique(&mut self, wanted: &str) -> String {
        let mut name = wanted.to_owned();
        let mut number = 2;
        while !self.taken.insert(name.clone()) {
            name = format!("{wanted}{number}");
            number += 1;
        }
        name
    }

    /// Saves the values and names that `exit_scope` restores.
    pub(super) fn scope(&self) -> (HashMap<Scalar, String>, BTreeSet<String>) {
        (self.values.clone(), self.taken.clone())
    }

    pub(super) fn exit_scope(&mut self, scope: (HashMap<Scalar, String>, BTreeSet<String>)) {
        (self.values, self.taken) = scope;
    }

    pub(super) fn name_variable(&mut self, var: Var, name: &str) {
        self.taken.insert(name.to_owned());
        self.vars.insert(var, name.to_owned());
    }

    pub(super) fn set(&mut self, scalar: Scalar, text: String) {
        self.values.insert(scalar, text);
    }

    pub(super) fn buffer(&self, buffer: Buffer) -> &str {
        &self.buffers[buffer.0]
    }

    pub(super) fn index(&self, index: &Index) -> String {
        index.code(self)
    }

    /// An index into a buffer, as text.
    pub(super) fn place(&self, buffer: Buffer, index: &Index) -> String {
        let shape = &self.plan.buffers[buffer.0].shape;
        if self.by_coordinates
            && let Some(place) = self.place_by_coordinates(shape, index)
        {
            return place;
        }
        // What was made on the way may have lines that nobody has heard of.
        let told = self.plan.known_shapes.contains(shape);
        let lines = Lines::of(if told { shape } else { &[] });
        // What was made on the way has strides of its own, which another tensor's may equal by chance.
        let own = Strides::of([shape.as_slice()].into_iter(), false);
        index.code(&BufferIndexNames {
            writer: self,
            lines,
            own,
        })
    }

    /// Declares variables for the operands of these values that do not depend on `inner`.
    pub(super) fn define(&mut self, roots: &[Scalar], inner: &[Var]) {
        let known = |one: Scalar| self.values.contains_key(&one);
        let order = self.plan.arena.ordered_until(roots, &known);
        let mut uses: HashMap<Scalar, usize> = HashMap::new();
        let mut crosses = BTreeSet::new();
        for one in &order {
            let within = !inner.is_empty() && self.plan.arena.depends_on(*one, inner);
            for operand in self.plan.arena.operands(*one) {
                *uses.entry(operand).or_default() += 1;
                if within {
                    crosses.insert(operand);
                }
            }
        }
        let chosen = self.chosen_loads(&order);
        for one in order {
            if chosen.contains(&one) || !inner.is_empty() && self.plan.arena.depends_on(one, inner)
            {
                continue;
            }
            let often = uses.get(&one).is_some_and(|uses| *uses > 1);
            let deserves = match self.plan.arena.node(one) {
                Node::Const(_)
                | Node::Int(_)
                | Node::Place(_)
                | Node::Finished(_)
                | Node::Reduced(..) => false,
                Node::Load { buffer, .. } => {
                    let origin = &self.plan.buffers[buffer.0].origin;
                    !matches!(origin, BufferOrigin::Scalar(_))
                }
                Node::Select(condition, then, _)
                    if chosen.contains(then) && self.is_guarded_load(*condition, *then) =>
                {
                    true
                }
                Node::Inside(_) => often,
                _ => {
                    often
                        || self.plan.arena.named(one).is_some()
                        || crosses.contains(&one)
                        || !inner.is_empty() && roots.contains(&one)
                }
            };
            if deserves {
                let text = self.expression(one).0;
                let wanted = match self.plan.arena.node(one) {
                    Node::Load { buffer, .. } => format!("{}_at", self.buffer(*buffer)),
                    Node::Inside(_) => "inside".to_owned(),
                    Node::Select(_, then, _) if chosen.contains(then) => {
                        match self.plan.arena.node(*then) {
                            Node::Load { buffer, .. } => format!("{}_at", self.buffer(*buffer)),
                            _ => "v".to_owned(),
                        }
                    }
                    _ => match self.plan.arena.named(one) {
                        // Apart from functions and buffers.
                        Some(name) => format!("{name}_v"),
                        None => "v".to_owned(),
                    },
                };
                let name = self.unique(&wanted);
                let kind = c_type(self.plan.arena.kind(one));
                self.line(format!("const {kind} {name} = {text};"));
                self.values.insert(one, name);
            }
        }
    }

    /// An expression for a value, in which values with variables are these variables.
    pub(super) fn value(&mut self, scalar: Scalar) -> String {
        self.part(scalar).0
    }

    /// Like `value`, in brackets unless it is a single name.
    pub(super) fn operand(&mut self, scalar: Scalar) -> String {
        self.at_least(scalar, Precedence::Atom)
    }

    fn part(&mut self, scalar: Scalar) -> (String, Precedence) {
        if let Some(name) = self.values.get(&scalar) {
            return (name.clone(), Precedence::Atom);
        }
        self.expression(scalar)
    }

    fn at_least(&mut self, scalar: Scalar, binds: Precedence) -> String {
        let (text, how) = self.part(scalar);
        if how >= binds {
            text
        } else {
            format!("({text})")
        }
    }

    fn expression(&mut self, scalar: Scalar) -> (String, Precedence) {
        match self.plan.arena.node(scalar).clone() {
            Node::Const(bits) => (self.literal(f64::from_bits(bits)), Precedence::Atom),
            Node::Int(value) => (value.to_string(), Precedence::Atom),
            Node::Place(index) => (self.index(&index), Precedence::Sum),
            Node::Load {
                buffer,
                index,
                looked_up,
                guard,
            } => self.load(buffer, &index, &looked_up, &guard),
            Node::Unary(op, x) => self.unary(op, x),
            Node::Binary(op, a, b) => self.binary(op, a, b),
            Node::Select(condition, then, otherwise)
                if !self.values.contains_key(&then) && self.is_guarded_load(condition, then) =>
            {
                let otherwise = self.at_least(otherwise, Precedence::Choice);
                let (loaded, _) = self.expression(then);
                // Outside it would be zero.
                let inside = loaded
                    .rsplit_once(" : ")
                    .map_or(loaded.as_str(), |(text, _)| text);
                (format!("{inside} : {otherwise}"), Precedence::Choice)
            }
            Node::Select(condition, then, otherwise) => {
                let condition = self.at_least(condition, Precedence::Compare);
                let (then, otherwise) = (
                    self.at_least(then, Precedence::Sum),
                    self.at_least(otherwise, Precedence::Choice),
                );
                (
                    format!("{condition} ? {then} : {otherwise}"),
                    Precedence::Choice,
                )
            }
            Node::Inside(guard) => (self.guard(&guard), Precedence::Choice),
            Node::Reduced(..) | Node::Finished(_) => ("unfinished".to_owned(), Precedence::Atom),
        }
    }

    /// Whether a load has this very condition as its guard.
    fn is_guarded_load(&self, condition: Scalar, load: Scalar) -> bool {
        let arena = &self.plan.arena;
        match (arena.node(condition), arena.node(load)) {
            (Node::Inside(within), Node::Load { guard, .. }) => within == guard,
            _ => false,
        }
    }

    /// Loads that only a choice by their own guard reads: they are part of it.
    fn chosen_loads(&self, order: &[Scalar]) -> BTreeSet<Scalar> {
        let mut chosen = BTreeSet::new();
        if !self.plan.is_regular() {
            return chosen;
        }
        for one in order {
            if let Node::Select(condition, then, _) = self.plan.arena.node(*one)
                && self.is_guarded_load(*condition, *then)
            {
                let is_other = |other: &&Scalar| {
                    *other != one && self.plan.arena.operands(**other).contains(then)
                };
                if !order.iter().any(|other| is_other(&other)) {
                    chosen.insert(*then);
                }
            }
        }
        chosen
    }

    fn load(
        &mut self,
        buffer: Buffer,
        index: &Index,
        looked_up: &[(Scalar, i64)],
        guard: &[BoundsCheck],
    ) -> (String, Precedence) {
        if !self.read.contains(&buffer) {
            self.read.push(buffer);
        }
        let mut place = self.place(buffer, index);
        for (scalar, stride) in looked_up {
            let value = self.at_least(*scalar, Precedence::Product);
            let part = if *stride == 1 {
                value
            } else {
                format!("{value} * {}", self.number(*stride))
            };
            place = if place == "0" {
                part
            } else {
                format!("{place} + {part}")
            };
        }
        let BufferInfo {
            origin, element, ..
        } = &self.plan.buffers[buffer.0];
        let element = *element;
        if matches!(origin, BufferOrigin::Scalar(_)) {
            return (self.buffer(buffer).to_owned(), Precedence::Atom);
        }
        let loaded = if element.is_narrow_float() {
            format!("float({}[{place}])", self.buffer(buffer))
        } else {
            format!("{}[{place}]", self.buffer(buffer))
        };
        if guard.is_empty() {
            return (loaded, Precedence::Atom);
        }
        let zero = match element.scalar() {
            ScalarType::Float => "0.0f",
            ScalarType::Int => "0",
            ScalarType::Bool => "false",
        };
        (
            format!("{} ? {loaded} : {zero}", self.guard(guard)),
            Precedence::Choice,
        )
    }

    fn guard(&self, guard: &[BoundsCheck]) -> String {
        if self.by_coordinates {
            return self.within_borders(guard);
        }
        let mut parts = Vec::new();
        for BoundsCheck { index, low, high } in guard {
            let text = index.operand(self);
            let (least, greatest) = index.range();
            if least < *low {
                parts.push(format!("{text} >= {low}"));
            }
            if greatest >= *high {
                parts.push(format!("{text} < {high}"));
            }
        }
        if parts.len() == 1 {
            return parts.remove(0);
        }
        format!("({})", parts.join(" && "))
    }
}

/// The type of an index on a GPU: 32 bits are quicker where they suffice.
pub(super) fn integer(plan: &Plan) -> &'static str {
    let large = |shape: &[i64]| shape.iter().product::<i64>() >= 1 << 31;
    if plan.target == Target::Cpu || plan.buffers.iter().any(|buffer| large(&buffer.shape)) {
        "int64_t"
    } else {
        "int"
    }
}

pub(super) fn c_type(kind: ScalarType) -> &'static str {
    match kind {
        ScalarType::Float => "float",
        ScalarType::Int => "int64_t",
        ScalarType::Bool => "bool",
    }
}

/// A literal in single precision.
pub(super) fn float(value: f64) -> String {
    let single = value as f32;
    if single == f32::INFINITY {
        return "INFINITY".to_owned();
    }
    if single == f32::NEG_INFINITY {
        return "(-INFINITY)".to_owned();
    }
    if single.is_nan() {
        return "NAN".to_owned();
    }
    if let Some(whole) = reciprocal(single) {
        return format!("(1.0f / {whole}.0f)");
    }
    let text = format!("{single:?}f");
    if single < 0.0 {
        format!("({text})")
    } else {
        text
    }
}

/// The whole number whose reciprocal this is, if the digits do not show it: the factor of a mean.
fn reciprocal(single: f32) -> Option<u32> {
    let whole = (1.0 / f64::from(single)).round();
    let digits = format!("{single:e}");
    let digits = digits.split_once('e').map_or(0, |(digits, _)| digits.len());
    let fits = (16.0..=16_777_216.0).contains(&whole)
        && ((1.0 / whole) as f32).to_bits() == single.to_bits();
    // Two digits and a point.
    (fits && digits > 3).then_some(whole as u32)
}
