//! What is computed for one element: a graph of scalar operations over loads. Equal nodes are stored once.

mod element;
mod source;

use std::collections::{BTreeSet, HashMap};

use crate::index::{Index, Var};
pub(super) use element::ElementType;
pub(super) use source::Source;

/// A place in an [`Arena`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Scalar(pub(super) u32);

/// A buffer of the plan, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Buffer(pub(super) usize);

/// A reduction of the plan, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ReductionId(pub(super) usize);

/// The type of a value while it is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum ScalarType {
    Float,
    Int,
    Bool,
}

/// The condition `low <= index < high`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct BoundsCheck {
    pub(super) index: Index,
    pub(super) low: i64,
    pub(super) high: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Unary {
    Neg,
    Abs,
    Sqrt,
    Rsqrt,
    Exp,
    /// Of what is never positive.
    ExpNegative,
    Expm1,
    Log,
    Log1p,
    Log2,
    Log10,
    Exp2,
    Sin,
    Cos,
    Tan,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Tanh,
    Asinh,
    Acosh,
    Atanh,
    Erf,
    Erfc,
    Floor,
    Ceil,
    Round,
    Trunc,
    Not,
    ToFloat,
    /// Towards zero.
    ToInt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    /// Correctly rounded on every target, so that a mean of equal numbers is that number.
    ExactDiv,
    Max,
    Min,
    Pow,
    Atan2,
    Fmod,
    Hypot,
    Less,
    LessEqual,
    Equal,
    NotEqual,
    And,
    Or,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Node {
    /// The bits of a float, so that nodes can be compared.
    Const(u64),
    Int(i64),
    /// The value of a loop expression.
    Place(Index),
    Load {
        buffer: Buffer,
        index: Index,
        /// Added to the index: a value that was loaded, times a stride.
        looked_up: Vec<(Scalar, i64)>,
        /// The load gives zero where one of these conditions is false.
        guard: Vec<BoundsCheck>,
    },
    Unary(Unary, Scalar),
    Binary(Binary, Scalar, Scalar),
    /// Condition, then, else.
    Select(Scalar, Scalar, Scalar),
    Inside(Vec<BoundsCheck>),
    /// The result of a reduction at these coordinates.
    Reduced(ReductionId, Vec<Index>),
    /// A variable of the kernel that holds a finished reduction.
    Finished(ReductionId),
}

impl Node {
    /// The same operation on other operands.
    fn with_operands(self, new: impl Fn(Scalar) -> Scalar) -> Self {
        match self {
            Self::Load {
                buffer,
                index,
                looked_up,
                guard,
            } => Self::Load {
                buffer,
                index,
                looked_up: looked_up.into_iter().map(|(x, s)| (new(x), s)).collect(),
                guard,
            },
            Self::Unary(op, x) => Self::Unary(op, new(x)),
            Self::Binary(op, a, b) => Self::Binary(op, new(a), new(b)),
            Self::Select(c, a, b) => Self::Select(new(c), new(a), new(b)),
            other => other,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Arena {
    nodes: Vec<(Node, ScalarType)>,
    known: HashMap<Node, Scalar>,
    /// Names for variables in the emitted code.
    names: HashMap<Scalar, &'static str>,
    variables: u32,
    /// The element type and the number of elements of each buffer.
    buffers: Vec<(ScalarType, i64)>,
}

impl Arena {
    pub(super) fn var(&mut self, extent: i64) -> Var {
        self.variables += 1;
        Var {
            id: self.variables,
            extent,
        }
    }

    /// Buffers are numbered in the order in which they are announced here.
    pub(super) fn buffer(&mut self, kind: ScalarType, size: i64) -> Buffer {
        self.buffers.push((kind, size));
        Buffer(self.buffers.len() - 1)
    }

    pub(super) fn node(&self, scalar: Scalar) -> &Node {
        &self.nodes[scalar.0 as usize].0
    }

    pub(super) fn kind(&self, scalar: Scalar) -> ScalarType {
        self.nodes[scalar.0 as usize].1
    }

    pub(super) fn name(&mut self, scalar: Scalar, name: &'static str) -> Scalar {
        self.names.entry(scalar).or_insert(name);
        scalar
    }

    pub(super) fn named(&self, scalar: Scalar) -> Option<&'static str> {
        self.names.get(&scalar).copied()
    }

    fn intern(&mut self, node: Node, kind: ScalarType) -> Scalar {
        if let Some(known) = self.known.get(&node) {
            return *known;
        }
        let scalar = Scalar(self.nodes.len() as u32);
        self.known.insert(node.clone(), scalar);
        self.nodes.push((node, kind));
        scalar
    }

    pub(super) fn constant(&mut self, value: f64) -> Scalar {
        // Both zeros are one.
        let value = if value == 0.0 { 0.0 } else { value };
        self.intern(Node::Const(value.to_bits()), ScalarType::Float)
    }

    pub(super) fn int(&mut self, value: i64) -> Scalar {
        self.intern(Node::Int(value), ScalarType::Int)
    }

    pub(super) fn as_constant(&self, scalar: Scalar) -> Option<f64> {
        match self.node(scalar) {
            Node::Const(bits) => Some(f64::from_bits(*bits)),
            _ => None,
        }
    }

    pub(super) fn place(&mut self, index: Index) -> Scalar {
        self.intern(Node::Place(index), ScalarType::Int)
    }

    pub(super) fn load(&mut self, buffer: Buffer, index: Index) -> Scalar {
        self.look_up(buffer, index, Vec::new())
    }

    pub(super) fn look_up(
        &mut self,
        buffer: Buffer,
        index: Index,
        looked_up: Vec<(Scalar, i64)>,
    ) -> Scalar {
        let (kind, _) = self.buffers[buffer.0];
        let node = Node::Load {
            buffer,
            index,
            looked_up,
            guard: Vec::new(),
        };
        self.intern(node, kind)
    }

    pub(super) fn reduced(
        &mut self,
        reduction: ReductionId,
        at: Vec<Index>,
        kind: ScalarType,
    ) -> Scalar {
        self.intern(Node::Reduced(reduction, at), kind)
    }

    pub(super) fn finished(&mut self, reduction: ReductionId, kind: ScalarType) -> Scalar {
        self.intern(Node::Finished(reduction), kind)
    }

    /// Whether all conditions are true. Conditions that always are have been left out.
    pub(super) fn in_bounds(&mut self, guard: Vec<BoundsCheck>) -> Scalar {
        self.intern(Node::Inside(guard), ScalarType::Bool)
    }

    pub(super) fn unary(&mut self, op: Unary, x: Scalar) -> Scalar {
        let kind = match op {
            Unary::Not => ScalarType::Bool,
            Unary::ToInt => ScalarType::Int,
            Unary::Neg | Unary::Abs if self.kind(x) == ScalarType::Int => ScalarType::Int,
            _ => ScalarType::Float,
        };
        if op == Unary::ToFloat && self.kind(x) == ScalarType::Float {
            return x;
        }
        if op == Unary::ToFloat
            && let Node::Int(whole) = *self.node(x)
        {
            return self.constant(whole as f64);
        }
        if op == Unary::ToInt && self.kind(x) == ScalarType::Int {
            return x;
        }
        self.intern(Node::Unary(op, x), kind)
    }

    pub(super) fn binary(&mut self, op: Binary, a: Scalar, b: Scalar) -> Scalar {
        let (x, y) = (self.as_constant(a), self.as_constant(b));
        // What changes no value of any input, not even its sign or whether it is finite.
        match (op, x, y) {
            (Binary::Mul | Binary::Div, _, Some(1.0))
            | (Binary::Add | Binary::Sub, _, Some(0.0)) => {
                return a;
            }
            (Binary::Mul, Some(1.0), _) | (Binary::Add, Some(0.0), _) => return b,
            (Binary::Mul, Some(x), Some(y)) => return self.constant(x * y),
            (Binary::Add, Some(x), Some(y)) => return self.constant(x + y),
            (Binary::Sub, Some(x), Some(y)) => return self.constant(x - y),
            (Binary::Div, Some(x), Some(y)) => return self.constant(x / y),
            _ => {}
        }
        let kind = match op {
            Binary::Less
            | Binary::LessEqual
            | Binary::Equal
            | Binary::NotEqual
            | Binary::And
            | Binary::Or => ScalarType::Bool,
            _ if self.kind(a) == ScalarType::Float || self.kind(b) == ScalarType::Float => {
                ScalarType::Float
            }
            _ => ScalarType::Int,
        };
        self.intern(Node::Binary(op, a, b), kind)
    }

    pub(super) fn select(&mut self, condition: Scalar, then: Scalar, otherwise: Scalar) -> Scalar {
        if then == otherwise {
            return then;
        }
        let kind =
            if self.kind(then) == ScalarType::Float || self.kind(otherwise) == ScalarType::Float {
                ScalarType::Float
            } else {
                self.kind(then)
            };
        self.intern(Node::Select(condition, then, otherwise), kind)
    }

    pub(super) fn add(&mut self, a: Scalar, b: Scalar) -> Scalar {
        self.binary(Binary::Add, a, b)
    }

    pub(super) fn sub(&mut self, a: Scalar, b: Scalar) -> Scalar {
        self.binary(Binary::Sub, a, b)
    }

    pub(super) fn mul(&mut self, a: Scalar, b: Scalar) -> Scalar {
        self.binary(Binary::Mul, a, b)
    }

    pub(super) fn div(&mut self, a: Scalar, b: Scalar) -> Scalar {
        self.binary(Binary::Div, a, b)
    }

    pub(super) fn max(&mut self, a: Scalar, b: Scalar) -> Scalar {
        self.binary(Binary::Max, a, b)
    }

    pub(super) fn less(&mut self, a: Scalar, b: Scalar) -> Scalar {
        self.binary(Binary::Less, a, b)
    }

    pub(super) fn operands(&self, scalar: Scalar) -> Vec<Scalar> {
        match self.node(scalar) {
            Node::Const(_)
            | Node::Int(_)
            | Node::Place(_)
            | Node::Inside(_)
            | Node::Reduced(..)
            | Node::Finished(_) => Vec::new(),
            Node::Load { looked_up, .. } => looked_up.iter().map(|(one, _)| *one).collect(),
            Node::Unary(_, x) => vec![*x],
            Node::Binary(_, a, b) => vec![*a, *b],
            Node::Select(c, a, b) => vec![*c, *a, *b],
        }
    }

    /// All nodes that these values depend on, each once and after its operands.
    pub(super) fn ordered(&self, of: &[Scalar]) -> Vec<Scalar> {
        self.ordered_until(of, &|_| false)
    }

    /// Like `ordered`, but without known nodes and without nodes that only these need.
    pub(super) fn ordered_until(
        &self,
        of: &[Scalar],
        known: &dyn Fn(Scalar) -> bool,
    ) -> Vec<Scalar> {
        fn visit(
            arena: &Arena,
            one: Scalar,
            known: &dyn Fn(Scalar) -> bool,
            (seen, order): (&mut BTreeSet<Scalar>, &mut Vec<Scalar>),
        ) {
            if !known(one) && seen.insert(one) {
                for operand in arena.operands(one) {
                    visit(arena, operand, known, (seen, order));
                }
                order.push(one);
            }
        }
        let (mut seen, mut order) = (BTreeSet::new(), Vec::new());
        for one in of {
            visit(self, *one, known, (&mut seen, &mut order));
        }
        order
    }

    /// The index expressions that a node itself holds.
    pub(super) fn indices(&self, scalar: Scalar) -> Vec<&Index> {
        match self.node(scalar) {
            Node::Place(index) => vec![index],
            Node::Load { index, guard, .. } => {
                let guards = guard.iter().map(|within| &within.index);
                std::iter::once(index).chain(guards).collect()
            }
            Node::Inside(guard) => guard.iter().map(|within| &within.index).collect(),
            Node::Reduced(_, at) => at.iter().collect(),
            _ => Vec::new(),
        }
    }

    pub(super) fn depends_on(&self, scalar: Scalar, vars: &[Var]) -> bool {
        self.ordered(&[scalar]).into_iter().any(|one| {
            let indices = self.indices(one);
            indices
                .into_iter()
                .any(|index| vars.iter().any(|var| index.depends_on(*var)))
        })
    }

    /// The total size of the buffers whose loads have, for most steps of a variable, a stride of at most `apart`. A buffer with
    /// two such loads counts twice.
    pub(super) fn contiguous(&self, values: &[Scalar], var: Var, apart: i64) -> i64 {
        let size = |one: &Scalar| match self.node(*one) {
            Node::Load {
                buffer,
                index,
                looked_up,
                ..
            } => {
                let each = looked_up.iter();
                let steps = each.map(|(one, stride)| Some(self.step(*one, var)? * stride));
                let further: Option<i64> = steps.sum();
                let step = index.usual_stride(var).zip(further);
                let near = step.is_some_and(|(step, more)| (1..=apart).contains(&(step + more)));
                if near { self.buffers[buffer.0].1 } else { 0 }
            }
            _ => 0,
        };
        self.ordered(values).iter().map(size).sum()
    }

    /// How much a number grows in most steps of a variable; `None` where that is unknown.
    fn step(&self, scalar: Scalar, var: Var) -> Option<i64> {
        match self.node(scalar) {
            Node::Place(index) => index.usual_stride(var),
            Node::Int(_) | Node::Const(_) => Some(0),
            // Borders come first, what lies between them last.
            Node::Select(_, _, otherwise) => self.step(*otherwise, var),
            Node::Binary(Binary::Add, a, b) => Some(self.step(*a, var)? + self.step(*b, var)?),
            Node::Binary(Binary::Sub, a, b) => Some(self.step(*a, var)? - self.step(*b, var)?),
            _ => (!self.depends_on(scalar, &[var])).then_some(0),
        }
    }

    /// The value with nodes replaced where `change` returns a replacement.
    pub(super) fn rebuilt(
        &mut self,
        scalar: Scalar,
        change: &mut dyn FnMut(&mut Self, Scalar) -> Option<Scalar>,
    ) -> Scalar {
        let mut done = HashMap::new();
        for one in self.ordered(&[scalar]) {
            if let Some(new) = change(self, one) {
                done.insert(one, new);
                continue;
            }
            let (node, kind) = self.nodes[one.0 as usize].clone();
            let node = node.with_operands(|old| done.get(&old).copied().unwrap_or(old));
            let new = self.intern(node, kind);
            if let Some(name) = self.named(one) {
                self.name(new, name);
            }
            done.insert(one, new);
        }
        done[&scalar]
    }

    /// The value with guarded loads: where a condition is false, nothing outside a buffer is loaded.
    pub(super) fn guarded(&mut self, scalar: Scalar, by: &[BoundsCheck]) -> Scalar {
        self.with_load_guards(scalar, by, |arena, buffer, index| {
            let (least, greatest) = index.range();
            least < 0 || greatest >= arena.buffers[buffer.0].1
        })
    }

    /// The value with masked loads: where the condition is false, nothing is loaded. For values that are not used there.
    pub(super) fn masked(&mut self, scalar: Scalar, by: &BoundsCheck) -> Scalar {
        self.with_load_guards(scalar, std::slice::from_ref(by), |_, _, _| true)
    }

    /// The value with further conditions on some of its loads.
    fn with_load_guards(
        &mut self,
        scalar: Scalar,
        by: &[BoundsCheck],
        concerns: impl Fn(&Self, Buffer, &Index) -> bool,
    ) -> Scalar {
        self.rebuilt(scalar, &mut |arena, one| {
            let (
                Node::Load {
                    buffer,
                    index,
                    looked_up,
                    guard,
                },
                kind,
            ) = arena.nodes[one.0 as usize].clone()
            else {
                return None;
            };
            if !looked_up.is_empty() || !concerns(arena, buffer, &index) {
                return None;
            }
            let mut all = guard;
            all.extend(by.iter().cloned());
            all.sort();
            all.dedup();
            let node = Node::Load {
                buffer,
                index,
                looked_up,
                guard: all,
            };
            Some(arena.intern(node, kind))
        })
    }
}

impl BoundsCheck {
    /// `None` where the condition is always true.
    pub(super) fn new(index: Index, low: i64, high: i64) -> Option<Self> {
        let (least, greatest) = index.range();
        (least < low || greatest >= high).then_some(Self { index, low, high })
    }
}
