//! What an expression stands for.

use std::rc::Rc;

use super::{DEPTH_LIMIT, Frame, ITEM_LIMIT, LOOP_LIMIT, Reader, STEP_LIMIT};
use crate::structure::graph::{Graph, Place};
use crate::structure::value::{Closure, Stored, Value};
use warpsmith_tasks::python::Expression;

impl Reader {
    pub(super) fn value(&mut self, expression: &Expression, frame: &mut Frame) -> Value {
        self.steps += 1;
        if self.steps > STEP_LIMIT || self.depth >= DEPTH_LIMIT {
            return Value::Constant;
        }
        self.depth += 1;
        let value = self.unbounded(expression, frame);
        self.depth -= 1;
        value
    }

    pub(super) fn unbounded(&mut self, expression: &Expression, frame: &mut Frame) -> Value {
        match expression {
            Expression::Name(name) => self.name(name, frame),
            Expression::None => Value::None,
            Expression::Constant | Expression::Unknown => Value::Constant,
            Expression::Text(text) => Value::Text(text.as_str().into()),
            Expression::Attribute(owner, name) => {
                let owner = self.value(owner, frame);
                self.attribute(&owner, name)
            }
            Expression::Call(callee, arguments) => self.call_expression(callee, arguments, frame),
            Expression::Index(owner, key) => {
                let owner = self.value(owner, frame);
                let is_number = **key == Expression::Constant
                    || matches!(&**key, Expression::Unary("neg", inner) if **inner == Expression::Constant);
                let key = self.value(key, frame);
                self.index(&owner, &key, is_number)
            }
            Expression::Binary(operator, left, right) => {
                let left = self.value(left, frame);
                let right = self.value(right, frame);
                self.binary(operator, left, right)
            }
            Expression::Unary(operator, inner) => match self.value(inner, frame) {
                Value::Tensor(place) => Value::Tensor(self.graph.apply(operator, &[place])),
                _ => Value::Constant,
            },
            Expression::Conditional { then, otherwise } => {
                let then = self.value(then, frame);
                let otherwise = self.value(otherwise, frame);
                self.choice(then, otherwise)
            }
            Expression::Sequence(items) => {
                let mut values = Vec::new();
                for item in items {
                    if let Expression::Star(inner) = item {
                        let inner = self.value(inner, frame);
                        values.extend(self.elements(&inner));
                    } else {
                        values.push(self.value(item, frame));
                    }
                }
                self.items(values)
            }
            Expression::Map(entries) => {
                let cell = self.store(Stored::Map(Vec::new()));
                for (key, value) in entries {
                    let value = self.value(value, frame);
                    match key {
                        Some(key) => {
                            let key = self.value(key, frame);
                            self.insert(cell, &key, value);
                        }
                        None => {
                            if let Value::Map(other) = value {
                                for (key, value) in self.stored_map(other) {
                                    self.insert(cell, &Value::Text(key.into()), value);
                                }
                            }
                        }
                    }
                }
                Value::Map(cell)
            }
            Expression::Comprehension { element, loops } => {
                let mut values = Vec::new();
                self.comprehension(element, loops, frame, &mut values);
                self.items(values)
            }
            Expression::Lambda(function) => Value::Function(Rc::new(Closure {
                function: Rc::clone(function),
                around: Self::visible(frame),
                class: None,
            })),
            Expression::Star(inner) => self.value(inner, frame),
            Expression::Assigned(name, inner) => {
                let value = self.value(inner, frame);
                self.bind(name, value.clone(), frame);
                value
            }
        }
    }

    pub(super) fn name(&self, name: &str, frame: &Frame) -> Value {
        frame
            .names
            .get(name)
            .or_else(|| frame.around.as_ref()?.around.get(name))
            .or_else(|| self.globals.get(name))
            .cloned()
            .unwrap_or_else(|| Value::External(name.into()))
    }

    pub(super) fn comprehension(
        &mut self,
        element: &Expression,
        loops: &[(Expression, Expression)],
        frame: &mut Frame,
        into: &mut Vec<Value>,
    ) {
        let Some(((target, over), rest)) = loops.split_first() else {
            into.push(self.value(element, frame));
            return;
        };
        let over = self.value(over, frame);
        for value in self.elements(&over) {
            if into.len() >= ITEM_LIMIT {
                return;
            }
            self.assign(target, value, frame);
            self.comprehension(element, rest, frame, into);
        }
    }

    pub(super) fn binary(&mut self, operator: &str, left: Value, right: Value) -> Value {
        match (&left, &right) {
            (Value::Tensor(_), _) | (_, Value::Tensor(_)) => {
                let operands = [self.operand(&left), self.operand(&right)];
                Value::Tensor(self.graph.apply(operator, &operands))
            }
            (Value::Items(left), Value::Items(right)) if operator == "add" => {
                let mut all = self.stored_items(*left);
                all.extend(self.stored_items(*right));
                self.items(all)
            }
            // `[layer] * n`: how often is a matter of sizes.
            (Value::Items(_), _) if operator == "mul" => left,
            // `a or b`, `a and b` of things that are no numbers.
            _ if operator == "or" || operator == "and" => self.choice(left, right),
            _ => Value::Constant,
        }
    }

    /// A tensor as it is, anything else as a constant.
    pub(super) fn operand(&mut self, value: &Value) -> Place {
        let mut tensors = Vec::new();
        self.tensors_in(value, &mut tensors);
        match tensors[..] {
            [] => Graph::CONSTANT,
            [only] => only,
            _ => self.graph.apply("stack", &tensors),
        }
    }

    pub(super) fn tensors_in(&self, value: &Value, into: &mut Vec<Place>) {
        let mut open = vec![value.clone()];
        let mut visits = 0;
        while let Some(value) = open.pop() {
            visits += 1;
            if visits > ITEM_LIMIT {
                return;
            }
            match value {
                Value::Tensor(place) => into.push(place),
                Value::Items(cell) => open.extend(self.stored_items(cell).into_iter().rev()),
                Value::Map(cell) => {
                    let entries = self.stored_map(cell).into_iter().rev();
                    open.extend(entries.map(|(_, value)| value));
                }
                _ => {}
            }
        }
    }

    /// What iterating over it gives: all of a known list, else one that stands for each.
    pub(super) fn elements(&mut self, value: &Value) -> Vec<Value> {
        match value {
            Value::Items(cell) | Value::Chain(cell) => {
                let mut items = self.stored_items(*cell);
                items.truncate(LOOP_LIMIT);
                items
            }
            Value::Map(cell) => self
                .stored_map(*cell)
                .into_iter()
                .take(LOOP_LIMIT)
                .map(|(key, _)| Value::Text(key.into()))
                .collect(),
            Value::Tensor(place) => vec![Value::Tensor(*place)],
            _ => vec![Value::Constant],
        }
    }

    pub(super) fn part(&mut self, value: &Value, position: usize) -> Value {
        match value {
            Value::Items(cell) | Value::Chain(cell) => {
                let items = self.stored_items(*cell);
                items
                    .get(position)
                    .or_else(|| items.last())
                    .cloned()
                    .unwrap_or(Value::Constant)
            }
            // The first result is the operator's own; others are told apart from it.
            Value::Tensor(place) if position > 0 => {
                Value::Tensor(self.graph.apply("part", &[*place]))
            }
            Value::Tensor(place) => Value::Tensor(*place),
            _ => Value::Constant,
        }
    }

    pub(super) fn index(&mut self, owner: &Value, key: &Value, is_number: bool) -> Value {
        match (owner, key) {
            (Value::Map(cell), key) => {
                let entries = self.stored_map(*cell);
                let named =
                    |(name, _): &&(String, Value)| *key == Value::Text(name.as_str().into());
                let found = entries.iter().find(named).or_else(|| entries.first());
                found.map_or(Value::Constant, |(_, value)| value.clone())
            }
            (Value::Items(_) | Value::Chain(_), _) => {
                // Which one is a constant we do not look at; a slice is as good as the whole.
                if is_number {
                    self.part(owner, 0)
                } else {
                    owner.clone()
                }
            }
            (Value::Tensor(place), key) => {
                let place = *place;
                if is_number && self.gives_several(place) {
                    return Value::Tensor(place);
                }
                let key = match self.operand(key) {
                    Graph::CONSTANT => None,
                    key => Some(key),
                };
                let operands: Vec<Place> = [place].into_iter().chain(key).collect();
                Value::Tensor(self.graph.apply("index", &operands))
            }
            _ => Value::Constant,
        }
    }

    /// `torch.max(x, dim)[0]` takes one of an operator's results, not a row of a tensor.
    pub(super) fn gives_several(&self, place: Place) -> bool {
        matches!(
            self.graph.nodes[place].label.as_str(),
            "max"
                | "min"
                | "median"
                | "mode"
                | "topk"
                | "sort"
                | "kthvalue"
                | "cummax"
                | "cummin"
                | "lstm"
                | "gru"
                | "rnn"
                | "multiheadattention"
                | "unique"
                | "chunk"
                | "split"
                | "unbind"
                | "tensorsplit"
                | "qr"
                | "svd"
        )
    }
}
