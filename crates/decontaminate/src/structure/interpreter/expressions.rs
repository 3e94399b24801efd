//! Evaluation of expressions.

use std::rc::Rc;

use super::{DEPTH_LIMIT, Frame, ITEM_LIMIT, Interpreter, LOOP_LIMIT, STEP_LIMIT};
use crate::structure::graph::{Graph, NodeId};
use crate::structure::value::{Closure, HeapObject, Value};
use warpsmith_tasks::python::Expression;

impl Interpreter {
    pub(super) fn value(&mut self, expression: &Expression, frame: &mut Frame) -> Value {
        self.steps += 1;
        if self.steps > STEP_LIMIT || self.depth >= DEPTH_LIMIT {
            return Value::Constant;
        }
        self.depth += 1;
        let value = self.evaluate(expression, frame);
        self.depth -= 1;
        value
    }

    pub(super) fn evaluate(&mut self, expression: &Expression, frame: &mut Frame) -> Value {
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
                Value::Tensor(node) => Value::Tensor(self.graph.apply(operator, &[node])),
                _ => Value::Constant,
            },
            Expression::Conditional { then, otherwise } => {
                let then = self.value(then, frame);
                let otherwise = self.value(otherwise, frame);
                self.join(then, otherwise)
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
                let id = self.store(HeapObject::Map(Vec::new()));
                for (key, value) in entries {
                    let value = self.value(value, frame);
                    match key {
                        Some(key) => {
                            let key = self.value(key, frame);
                            self.insert(id, &key, value);
                        }
                        None => {
                            if let Value::Map(other) = value {
                                for (key, value) in self.stored_map(other) {
                                    self.insert(id, &Value::Text(key.into()), value);
                                }
                            }
                        }
                    }
                }
                Value::Map(id)
            }
            Expression::Comprehension { element, loops } => {
                let mut values = Vec::new();
                self.comprehension(element, loops, frame, &mut values);
                self.items(values)
            }
            Expression::Lambda(function) => Value::Function(Rc::new(Closure {
                function: Rc::clone(function),
                captured: Self::captured_names(frame),
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
            .or_else(|| frame.closure.as_ref()?.captured.get(name))
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
            // `[layer] * n`: the count is a size.
            (Value::Items(_), _) if operator == "mul" => left,
            // `a or b`, `a and b` of values that are no tensors.
            _ if operator == "or" || operator == "and" => self.join(left, right),
            _ => Value::Constant,
        }
    }

    /// A tensor as it is, several stacked, anything else as a constant.
    pub(super) fn operand(&mut self, value: &Value) -> NodeId {
        let mut tensors = Vec::new();
        self.tensors_in(value, &mut tensors);
        match tensors[..] {
            [] => Graph::CONSTANT,
            [only] => only,
            _ => self.graph.apply("stack", &tensors),
        }
    }

    pub(super) fn tensors_in(&self, value: &Value, into: &mut Vec<NodeId>) {
        let mut open = vec![value.clone()];
        let mut visits = 0;
        while let Some(value) = open.pop() {
            visits += 1;
            if visits > ITEM_LIMIT {
                return;
            }
            match value {
                Value::Tensor(node) => into.push(node),
                Value::Items(id) => open.extend(self.stored_items(id).into_iter().rev()),
                Value::Map(id) => {
                    let entries = self.stored_map(id).into_iter().rev();
                    open.extend(entries.map(|(_, value)| value));
                }
                _ => {}
            }
        }
    }

    /// What iterating yields: the items of a known list, else one value that stands for all.
    pub(super) fn elements(&mut self, value: &Value) -> Vec<Value> {
        match value {
            Value::Items(id) | Value::Chain(id) => {
                let mut items = self.stored_items(*id);
                items.truncate(LOOP_LIMIT);
                items
            }
            Value::Map(id) => self
                .stored_map(*id)
                .into_iter()
                .take(LOOP_LIMIT)
                .map(|(key, _)| Value::Text(key.into()))
                .collect(),
            Value::Tensor(node) => vec![Value::Tensor(*node)],
            _ => vec![Value::Constant],
        }
    }

    pub(super) fn element(&mut self, value: &Value, position: usize) -> Value {
        match value {
            Value::Items(id) | Value::Chain(id) => {
                let items = self.stored_items(*id);
                items
                    .get(position)
                    .or_else(|| items.last())
                    .cloned()
                    .unwrap_or(Value::Constant)
            }
            // The first result is the operator's own; the others get a node of their own.
            Value::Tensor(node) if position > 0 => {
                Value::Tensor(self.graph.apply("part", &[*node]))
            }
            Value::Tensor(node) => Value::Tensor(*node),
            _ => Value::Constant,
        }
    }

    pub(super) fn index(&mut self, owner: &Value, key: &Value, is_number: bool) -> Value {
        match (owner, key) {
            (Value::Map(id), key) => {
                let entries = self.stored_map(*id);
                let named =
                    |(name, _): &&(String, Value)| *key == Value::Text(name.as_str().into());
                let found = entries.iter().find(named).or_else(|| entries.first());
                found.map_or(Value::Constant, |(_, value)| value.clone())
            }
            (Value::Items(_) | Value::Chain(_), _) => {
                // The value of the index does not count; a slice stands for the whole.
                if is_number {
                    self.element(owner, 0)
                } else {
                    owner.clone()
                }
            }
            (Value::Tensor(node), key) => {
                let node = *node;
                if is_number && self.gives_several(node) {
                    return Value::Tensor(node);
                }
                let key = match self.operand(key) {
                    Graph::CONSTANT => None,
                    key => Some(key),
                };
                let operands: Vec<NodeId> = [node].into_iter().chain(key).collect();
                Value::Tensor(self.graph.apply("index", &operands))
            }
            _ => Value::Constant,
        }
    }

    /// Whether an operator has several results: `torch.max(x, dim)[0]` is one of them and not a row of a tensor.
    pub(super) fn gives_several(&self, node: NodeId) -> bool {
        matches!(
            self.graph.nodes[node].label.as_str(),
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
