//! An operator as rules see it: its operands, and its arguments by name.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::number;
use crate::not_covered::NotCovered;
use crate::scalar::{Arena, Scalar, ScalarType};
use crate::tensor::Tensor;

/// An operator that is applied.
pub(crate) struct OperatorCall<'g> {
    pub(crate) op: &'g str,
    pub(crate) inputs: Vec<Option<Tensor>>,
    pub(super) arguments: &'g BTreeMap<String, Value>,
    pub(crate) result: usize,
    /// Of the result, as the graph has it.
    pub(crate) shape: Vec<i64>,
    pub(crate) kind: ScalarType,
    pub(super) read: RefCell<BTreeSet<String>>,
}

impl OperatorCall<'_> {
    pub(crate) fn refuse(&self, what: &str) -> NotCovered {
        NotCovered::Given {
            op: self.op.to_owned(),
            what: what.to_owned(),
        }
    }

    /// An argument that no rule has looked at.
    pub(super) fn unread_argument(&self) -> Option<&String> {
        // They change nothing that is computed.
        const IDLE: [&str; 8] = [
            "inplace",
            "_stacklevel",
            "out",
            "momentum",
            "sparse",
            "sparse_grad",
            "scale_grad_by_freq",
            "recompute_scale_factor",
        ];
        let read = self.read.borrow();
        self.arguments.iter().find_map(|(name, value)| {
            let looked_at = read.contains(name) || IDLE.contains(&name.as_str()) || value.is_null();
            (!looked_at).then_some(name)
        })
    }

    pub(crate) fn input(&self, place: usize) -> Result<&Tensor, NotCovered> {
        let tensor = self.inputs.get(place).and_then(Option::as_ref);
        tensor.ok_or_else(|| self.refuse(&format!("no tensor number {}", place + 1)))
    }

    pub(crate) fn optional(&self, place: usize) -> Option<&Tensor> {
        self.inputs.get(place).and_then(Option::as_ref)
    }

    pub(crate) fn argument(&self, name: &str) -> Option<&Value> {
        self.read.borrow_mut().insert(name.to_owned());
        self.arguments.get(name).filter(|value| !value.is_null())
    }

    /// A tensor, or a number in its place.
    pub(crate) fn operand(&self, place: usize, name: &str) -> Result<Tensor, NotCovered> {
        if let Some(tensor) = self.optional(place) {
            return Ok(tensor.clone());
        }
        let of = self.inputs.iter().flatten().next();
        let counts = of.is_none_or(|one| one.kind == ScalarType::Int);
        match self.argument(name).and_then(Value::as_i64) {
            Some(whole) if counts => Ok(Tensor::number(whole as f64, ScalarType::Int, &[])),
            _ => Ok(Tensor::constant(self.number(name)?, &[])),
        }
    }

    pub(crate) fn number(&self, name: &str) -> Result<f64, NotCovered> {
        let value = self.argument(name).and_then(number);
        value.ok_or_else(|| self.refuse(&format!("no number `{name}`")))
    }

    pub(crate) fn number_or(&self, name: &str, default: f64) -> Result<f64, NotCovered> {
        match self.argument(name) {
            None => Ok(default),
            Some(_) => self.number(name),
        }
    }

    pub(crate) fn integer(&self, name: &str) -> Result<i64, NotCovered> {
        let value = self.argument(name).and_then(Value::as_i64);
        value.ok_or_else(|| self.refuse(&format!("no integer `{name}`")))
    }

    pub(crate) fn integer_or(&self, name: &str, default: i64) -> Result<i64, NotCovered> {
        match self.argument(name) {
            None => Ok(default),
            Some(_) => self.integer(name),
        }
    }

    pub(crate) fn flag(&self, name: &str, default: bool) -> Result<bool, NotCovered> {
        match self.argument(name) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(self.refuse(&format!("`{name}` that is no flag"))),
        }
    }

    /// A flag that must be off.
    pub(crate) fn without(&self, name: &str) -> Result<(), NotCovered> {
        if self.flag(name, false)? {
            return Err(self.refuse(&format!("`{name}`")));
        }
        Ok(())
    }

    pub(crate) fn text(&self, name: &str, default: &str) -> Result<String, NotCovered> {
        match self.argument(name) {
            None => Ok(default.to_owned()),
            Some(Value::String(text)) => Ok(text.clone()),
            Some(_) => Err(self.refuse(&format!("`{name}` that is no word"))),
        }
    }

    /// One number or several.
    pub(crate) fn integers(&self, name: &str) -> Result<Option<Vec<i64>>, NotCovered> {
        let Some(value) = self.argument(name) else {
            return Ok(None);
        };
        let one = value.as_i64().map(|one| vec![one]);
        let many = || {
            let items = value.as_array()?.iter();
            items.map(Value::as_i64).collect::<Option<Vec<i64>>>()
        };
        match one.or_else(many) {
            Some(found) => Ok(Some(found)),
            None => Err(self.refuse(&format!("`{name}` that is no integers"))),
        }
    }

    /// One for each of so many dimensions; a single one is for all, none is the default.
    pub(crate) fn each(
        &self,
        name: &str,
        dims: usize,
        default: &[i64],
    ) -> Result<Vec<i64>, NotCovered> {
        match self.integers(name)?.as_deref() {
            None | Some([]) => Ok(default.to_vec()),
            Some([one]) => Ok(vec![*one; dims]),
            Some(many) if many.len() == dims => Ok(many.to_vec()),
            Some(_) => Err(self.refuse(&format!("`{name}` of another length"))),
        }
    }

    /// A dimension, counted from behind where it is negative.
    pub(crate) fn dim_of(&self, dim: i64, rank: usize) -> Result<usize, NotCovered> {
        let from_front = if dim < 0 { dim + rank as i64 } else { dim };
        match usize::try_from(from_front) {
            Ok(dim) if dim < rank => Ok(dim),
            _ => Err(self.refuse(&format!("no dimension {dim}"))),
        }
    }

    pub(crate) fn dim(&self, name: &str, rank: usize) -> Result<usize, NotCovered> {
        self.dim_of(self.integer(name)?, rank)
    }

    /// The dimensions named; all where none is.
    pub(crate) fn dims(&self, name: &str, rank: usize) -> Result<Vec<usize>, NotCovered> {
        let mut dims = match self.integers(name)? {
            None => (0..rank).collect(),
            Some(none) if none.is_empty() => (0..rank).collect(),
            Some(dims) => dims
                .into_iter()
                .map(|dim| self.dim_of(dim, rank))
                .collect::<Result<Vec<_>, _>>()?,
        };
        dims.sort_unstable();
        dims.dedup();
        Ok(dims)
    }

    /// What several tensors are broadcast to.
    pub(crate) fn broadcast_shape(&self, tensors: &[Tensor]) -> Result<Vec<i64>, NotCovered> {
        let rank = tensors.iter().map(Tensor::rank).max().unwrap_or(0);
        let mut shape = vec![1; rank];
        for tensor in tensors {
            let skipped = rank - tensor.rank();
            for (extent, own) in shape[skipped..].iter_mut().zip(&tensor.shape) {
                if *extent == 1 {
                    *extent = *own;
                } else if *own != 1 && *own != *extent {
                    return Err(self.refuse("shapes that do not fit"));
                }
            }
        }
        Ok(shape)
    }

    /// Element by element.
    pub(crate) fn map(
        &self,
        tensors: &[Tensor],
        name: &'static str,
        kind: ScalarType,
        compute: impl Fn(&mut Arena, &[Scalar]) -> Scalar + 'static,
    ) -> Result<Tensor, NotCovered> {
        let shape = self.broadcast_shape(tensors)?;
        let parts: Vec<Tensor> = tensors.iter().map(|one| one.broadcast(&shape)).collect();
        let work = parts.iter().map(|part| part.work).sum::<u32>() + 1;
        Ok(Tensor::computed(&shape, kind, work, move |arena, at| {
            let values: Vec<Scalar> = parts.iter().map(|part| (part.at)(arena, at)).collect();
            let value = compute(arena, &values);
            arena.name(value, name)
        }))
    }

    /// Of numbers, to floats.
    pub(crate) fn float_map(
        &self,
        tensors: &[Tensor],
        name: &'static str,
        compute: impl Fn(&mut Arena, &[Scalar]) -> Scalar + 'static,
    ) -> Result<Tensor, NotCovered> {
        let floats: Vec<Tensor> = tensors.iter().map(Tensor::to_float).collect();
        self.map(&floats, name, ScalarType::Float, compute)
    }

    /// Of floats to floats, of whole numbers to whole numbers.
    pub(crate) fn number_map(
        &self,
        tensors: &[Tensor],
        name: &'static str,
        compute: impl Fn(&mut Arena, &[Scalar]) -> Scalar + 'static,
    ) -> Result<Tensor, NotCovered> {
        if self.kind == ScalarType::Float {
            return self.float_map(tensors, name, compute);
        }
        let whole = |one: &Tensor| one.kind == ScalarType::Int;
        if self.kind != ScalarType::Int || !tensors.iter().all(whole) {
            return Err(self.refuse("elements that are no numbers"));
        }
        self.map(tensors, name, ScalarType::Int, compute)
    }
}
