//! How operators on numbers are written.

use warpsmith_schema::Target;

use super::cpu::SimdFunction;
use super::functions::{VECTORISED, float_function, function};
use super::{Helper, KernelWriter, Precedence};
use crate::plan::Strategy;
use crate::scalar::{Binary, Scalar, ScalarType, Unary};

impl KernelWriter<'_> {
    /// Whether loops are to become vector code: where there is no other way of being quick.
    fn for_vectors(&self) -> bool {
        self.plan.target == Target::Cpu && self.plan.strategy == Strategy::Tuned
    }

    /// The name of the function of our own that computes this, if there is one.
    fn simd_function(&mut self, op: Unary) -> Option<&'static str> {
        let function = SimdFunction::of(op).filter(|_| self.for_vectors())?;
        self.helpers.extend(function.calls().map(Helper::Simd));
        self.helpers.insert(Helper::Simd(function));
        Some(function.name())
    }

    /// The vector form of a function of the C library.
    fn vectorised(&mut self, name: &'static str) -> &'static str {
        let Some((_, vectorised)) = VECTORISED.iter().find(|(known, _)| *known == name) else {
            return name;
        };
        if !self.for_vectors() {
            return name;
        }
        self.helpers.insert(Helper::Vectorised(name));
        vectorised
    }

    pub(super) fn unary(&mut self, op: Unary, x: Scalar) -> (String, Precedence) {
        let cuda = self.plan.target == Target::Cuda;
        let call = |name: &str, text: &str| (format!("{name}({text})"), Precedence::Atom);
        let inner = self.value(x);
        if let Some(name) = self.simd_function(op) {
            return match op {
                Unary::Rsqrt => (format!("1.0f / {name}({inner})"), Precedence::Product),
                _ => call(name, &inner),
            };
        }
        match op {
            Unary::Neg => {
                let x = self.at_least(x, Precedence::Atom);
                (format!("-{x}"), Precedence::Product)
            }
            Unary::Not => {
                let x = self.at_least(x, Precedence::Atom);
                (format!("!{x}"), Precedence::Atom)
            }
            Unary::ToFloat => call("float", &inner),
            Unary::ToInt => call("int64_t", &inner),
            // The compiler's fast mathematics has none of these exact enough. In double it has, which needs no header; the last
            // word is a provided function in single precision.
            Unary::Tanh
            | Unary::Log
            | Unary::Log2
            | Unary::Log10
            | Unary::Sin
            | Unary::Cos
            | Unary::Tan
                if cuda && self.plan.strategy != Strategy::Tuned =>
            {
                let name = function(op);
                (format!("float({name}(double({inner})))"), Precedence::Atom)
            }
            Unary::Tanh | Unary::Log | Unary::Sin | Unary::Cos | Unary::Tan if cuda => {
                call(&self.provided(function(op)), &inner)
            }
            Unary::Log2 | Unary::Log10 if cuda => {
                let log = self.provided("log");
                let scale = match op {
                    Unary::Log2 => "1.44269504f",
                    _ => "0.434294482f",
                };
                (format!("{log}({inner}) * {scale}"), Precedence::Product)
            }
            Unary::Rsqrt if cuda => call("rsqrtf", &inner),
            Unary::Rsqrt => (format!("1.0f / sqrtf({inner})"), Precedence::Product),
            Unary::Abs if self.plan.arena.kind(x) == ScalarType::Int => call("llabs", &inner),
            op => {
                let name = match function(op) {
                    "abs" => "fabs",
                    other => other,
                };
                let name = self.vectorised(float_function(name));
                call(name, &inner)
            }
        }
    }

    pub(super) fn binary(&mut self, op: Binary, a: Scalar, b: Scalar) -> (String, Precedence) {
        let (sign, binds) = match op {
            Binary::Add => ("+", Precedence::Sum),
            Binary::Sub => ("-", Precedence::Sum),
            Binary::Mul => ("*", Precedence::Product),
            Binary::Less => ("<", Precedence::Compare),
            Binary::LessEqual => ("<=", Precedence::Compare),
            Binary::Equal => ("==", Precedence::Compare),
            Binary::NotEqual => ("!=", Precedence::Compare),
            Binary::And => ("&&", Precedence::Compare),
            Binary::Or => ("||", Precedence::Compare),
            Binary::Max | Binary::Min => {
                let sign = if op == Binary::Max { ">" } else { "<" };
                let (a, b) = (
                    self.at_least(a, Precedence::Sum),
                    self.at_least(b, Precedence::Sum),
                );
                return (format!("{a} {sign} {b} ? {a} : {b}"), Precedence::Choice);
            }
            Binary::ExactDiv if self.plan.target == Target::Cuda => {
                let (a, b) = (self.value(a), self.value(b));
                return (format!("__fdiv_rn({a}, {b})"), Precedence::Atom);
            }
            Binary::Div | Binary::ExactDiv => ("/", Precedence::Product),
            Binary::Pow | Binary::Atan2 | Binary::Fmod | Binary::Hypot => {
                let name = match op {
                    Binary::Pow => "pow",
                    Binary::Atan2 => "atan2",
                    Binary::Fmod => "fmod",
                    _ => "hypot",
                };
                let (a, b) = (self.value(a), self.value(b));
                // Fast mathematics would take the logarithm in passing.
                if self.plan.target == Target::Cuda && op == Binary::Pow {
                    if self.plan.strategy != Strategy::Tuned {
                        return (
                            format!("float(pow(double({a}), double({b})))"),
                            Precedence::Atom,
                        );
                    }
                    let pow = self.provided(name);
                    return (format!("{pow}({a}, {b})"), Precedence::Atom);
                }
                let name = match op {
                    Binary::Pow => self.vectorised("powf").to_owned(),
                    _ => format!("{name}f"),
                };
                return (format!("{name}({a}, {b})"), Precedence::Atom);
            }
        };
        let next = match binds {
            Precedence::Sum => Precedence::Product,
            Precedence::Compare => Precedence::Sum,
            _ => Precedence::Atom,
        };
        let left = self.at_least(
            a,
            if binds == Precedence::Compare {
                next
            } else {
                binds
            },
        );
        let right = self.at_least(b, next);
        (format!("{left} {sign} {right}"), binds)
    }
}
