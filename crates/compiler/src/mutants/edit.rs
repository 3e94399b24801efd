//! Writes the graph in which one value is computed otherwise.

use serde_json::{Value, json};
use warpsmith_schema::{Dtype, GraphValue, OpGraph, ValueSource};

/// The values before the one that is replaced, and what takes its place.
pub(super) struct Editor<'g> {
    graph: &'g OpGraph,
    place: usize,
    values: Vec<GraphValue>,
}

/// The graph in which `place` is the value that `make` names. Everything before `place` keeps its number.
pub(super) fn replaced(
    graph: &OpGraph,
    place: usize,
    make: impl FnOnce(&mut Editor<'_>) -> Option<usize>,
) -> Option<OpGraph> {
    let mut editor = Editor {
        graph,
        place,
        values: graph.values[..place].to_vec(),
    };
    let made = make(&mut editor)?;
    let next = editor.values.len();
    let renumbered = |number: usize| match number.cmp(&place) {
        std::cmp::Ordering::Less => number,
        std::cmp::Ordering::Equal => made,
        std::cmp::Ordering::Greater => number - place - 1 + next,
    };
    let mut values = editor.values;
    for value in &graph.values[place + 1..] {
        let mut value = value.clone();
        if let ValueSource::Applied { inputs, .. } = &mut value.from {
            for input in inputs.iter_mut().flatten() {
                *input = renumbered(*input);
            }
        }
        values.push(value);
    }
    let returns = graph.returns.iter().map(|number| renumbered(*number));
    Some(OpGraph {
        returns: returns.collect(),
        values,
        nesting: graph.nesting.clone(),
    })
}

impl Editor<'_> {
    pub(super) fn original_value(&self) -> GraphValue {
        self.graph.values[self.place].clone()
    }

    /// The value as it was; it gets a number.
    pub(super) fn original(&mut self) -> usize {
        let value = self.original_value();
        self.push_value(value)
    }

    /// The value as it was, with other operands.
    pub(super) fn with_inputs(&mut self, change: impl FnOnce(&mut Vec<Option<usize>>)) -> usize {
        let mut value = self.original_value();
        if let ValueSource::Applied { inputs, .. } = &mut value.from {
            change(inputs);
        }
        self.push_value(value)
    }

    pub(super) fn push_value(&mut self, value: GraphValue) -> usize {
        self.values.push(value);
        self.values.len() - 1
    }

    pub(super) fn shape(&self, number: usize) -> Vec<u64> {
        self.values[number].shape.clone()
    }

    pub(super) fn dtype(&self, number: usize) -> Dtype {
        self.values[number].dtype
    }

    /// Applies an operator. `arguments` is an object.
    pub(super) fn push(
        &mut self,
        op: &str,
        inputs: &[usize],
        arguments: Value,
        (shape, dtype): (Vec<u64>, Dtype),
    ) -> usize {
        let arguments = match arguments {
            Value::Object(map) => map.into_iter().collect(),
            _ => std::collections::BTreeMap::new(),
        };
        let inputs = inputs.iter().map(|input| Some(*input)).collect();
        self.push_value(GraphValue {
            shape,
            dtype,
            from: ValueSource::Applied {
                op: op.to_owned(),
                inputs,
                arguments,
                result: 0,
            },
            line: None,
        })
    }

    /// An operator of one operand that keeps its form.
    pub(super) fn unary(&mut self, op: &str, of: usize, arguments: Value) -> usize {
        let form = (self.shape(of), self.dtype(of));
        self.push(op, &[of], arguments, form)
    }

    /// An operator of two operands with the form of the first.
    pub(super) fn binary(&mut self, op: &str, one: usize, other: usize) -> usize {
        let form = (self.shape(one), self.dtype(one));
        let arguments = match op {
            "add" | "sub" => json!({"alpha": 1}),
            _ => json!({}),
        };
        self.push(op, &[one, other], arguments, form)
    }

    pub(super) fn narrowed(&mut self, of: usize, dim: usize, length: u64) -> usize {
        let mut shape = self.shape(of);
        shape[dim] = length;
        let dtype = self.dtype(of);
        let arguments = json!({"dim": dim, "start": 0, "length": length});
        self.push("narrow", &[of], arguments, (shape, dtype))
    }

    /// The last elements along a dimension are zeros.
    pub(super) fn tail_zeroed(&mut self, of: usize, dim: usize, cut: u64) -> usize {
        let form = (self.shape(of), self.dtype(of));
        let kept = self.narrowed(of, dim, form.0[dim] - cut);
        let mut pad = vec![0; 2 * (form.0.len() - dim)];
        if let Some(last) = pad.last_mut() {
            *last = cut;
        }
        let arguments = json!({"pad": pad, "mode": "constant", "value": 0.0});
        self.push("pad", &[kept], arguments, form)
    }

    /// A value cast and broadcast to the form of the one that is replaced, if it can be.
    pub(super) fn fitted(&mut self, mut of: usize) -> Option<usize> {
        let value = self.original_value();
        let shape = self.shape(of);
        let missing = value.shape.len().checked_sub(shape.len())?;
        let mut wanted = shape.iter().zip(&value.shape[missing..]);
        if !wanted.all(|(have, want)| have == want || *have == 1) {
            return None;
        }
        if self.dtype(of) != value.dtype {
            of = self.cast(of, value.dtype);
        }
        if shape != value.shape {
            let arguments = json!({"size": value.shape});
            of = self.push("expand", &[of], arguments, (value.shape, value.dtype));
        }
        Some(of)
    }

    pub(super) fn cast(&mut self, of: usize, dtype: Dtype) -> usize {
        let shape = self.shape(of);
        self.push("to", &[of], json!({"dtype": dtype}), (shape, dtype))
    }

    /// A value that went through another type.
    pub(super) fn rounded(&mut self, of: usize, through: Dtype) -> usize {
        let dtype = self.dtype(of);
        let narrow = self.cast(of, through);
        self.cast(narrow, dtype)
    }

    /// Along one dimension, which stays with an extent of one.
    pub(super) fn reduced(&mut self, op: &str, of: usize, dim: usize) -> usize {
        let mut shape = self.shape(of);
        shape[dim] = 1;
        let dtype = self.dtype(of);
        let mut arguments = json!({"dim": [dim], "keepdim": true});
        if matches!(op, "sum" | "mean") {
            arguments["dtype"] = Value::Null;
        }
        self.push(op, &[of], arguments, (shape, dtype))
    }
}
