//! Reading a module's text as a graph of operators, without running it.
//!
//! Statements are followed in order with values that know only what matters here: tensors and what made them, modules,
//! functions, and what holds them. Names, sizes and the order of independent lines leave no trace. Local functions,
//! methods and classes are followed where they are called. A loop over something unknown is followed once, both sides of
//! an `if` are. Steps and depth are bounded; past the bounds nothing more is learnt.

mod calls;
mod expressions;
mod objects;

use std::collections::BTreeMap;
use std::rc::Rc;

use super::graph::{Graph, Place};
use super::value::{Blueprint, Closure, Given, Names, Stored, Value};
use warpsmith_tasks::python::{Class, Expression, Statement};

/// Expressions and statements followed in one module. The largest network of `KernelBench` needs a few thousand.
const STEP_LIMIT: usize = 100_000;
/// Calls in calls, expressions in expressions.
const DEPTH_LIMIT: usize = 160;
/// A list grows no longer.
const ITEM_LIMIT: usize = 1024;
/// Elements of a known list that a loop visits.
const LOOP_LIMIT: usize = 64;

/// What there is to see in a module.
pub(super) struct Reading {
    pub(super) graph: Graph,
    /// What `forward` returns.
    pub(super) returned: Vec<Place>,
    /// Dimensions of each tensor that `get_inputs` gives; `None` where any of them cannot be seen.
    pub(super) ranks: Option<Vec<u8>>,
}

/// `None` where there is no class `Model` with a `forward`.
pub(super) fn read(module: &[Statement]) -> Option<Reading> {
    let mut reader = Reader {
        graph: Graph::new(),
        heap: Vec::new(),
        classes: Vec::new(),
        globals: Names::new(),
        steps: 0,
        depth: 0,
        conditional: 0,
    };
    let mut top = Frame::default();
    reader.module(module, &mut top);
    let Some(Value::Class(model)) = reader.globals.get("Model").cloned() else {
        return None;
    };
    reader.method(model, "forward")?;

    let inputs = reader.called("get_inputs");
    let ranks = reader.ranks(&inputs);
    let setup = reader.called("get_init_inputs");
    // Sizes are not looked at, but an activation may be given as well as a number.
    let setup = setup
        .into_iter()
        .map(|value| match value {
            Value::External(_) | Value::Layer(_) | Value::Class(_) | Value::Function(_) => value,
            _ => Value::Constant,
        })
        .collect();
    reader.steps = 0;
    let object = reader.instance(model, Given::positional(setup));
    let forward = reader.method(model, "forward")?;
    let count = forward.function.parameters.len().saturating_sub(1);
    let given = (0..count.max(inputs.len()))
        .map(|position| match inputs.get(position) {
            Some(Value::Constant | Value::Text(_) | Value::None) => Value::Constant,
            Some(Value::Items(_)) => {
                let inner = Value::Tensor(reader.graph.leaf("input", None));
                reader.items(vec![inner])
            }
            Some(Value::Tensor(place)) => {
                let rank = reader.graph.nodes[*place].rank;
                Value::Tensor(reader.graph.leaf("input", rank))
            }
            _ => Value::Tensor(reader.graph.leaf("input", None)),
        })
        .take(count)
        .collect();
    let result = reader.invoke(&forward, Some(object), Given::positional(given));
    let mut returned = Vec::new();
    reader.tensors_in(&result, &mut returned);
    Some(Reading {
        graph: reader.graph,
        returned,
        ranks,
    })
}

struct Reader {
    graph: Graph,
    heap: Vec<Stored>,
    classes: Vec<Blueprint>,
    globals: Names,
    steps: usize,
    depth: usize,
    /// How many branches are open: there nothing is undone.
    conditional: usize,
}

/// A function while it is followed.
#[derive(Default)]
struct Frame {
    names: Names,
    around: Option<Rc<Closure>>,
    instance: Option<Value>,
    returned: Vec<Value>,
    is_module: bool,
}

/// Whether the lines after these are reached.
#[derive(PartialEq, Clone, Copy)]
enum Then {
    Goes,
    Ends,
}

impl Reader {
    fn module(&mut self, statements: &[Statement], frame: &mut Frame) {
        frame.is_module = true;
        self.block(statements, frame);
    }

    fn called(&mut self, name: &str) -> Vec<Value> {
        let Some(Value::Function(closure)) = self.globals.get(name).cloned() else {
            return Vec::new();
        };
        match self.invoke(&closure, None, Given::default()) {
            Value::Items(cell) => self.stored_items(cell),
            Value::None => Vec::new(),
            other => vec![other],
        }
    }

    fn ranks(&self, inputs: &[Value]) -> Option<Vec<u8>> {
        inputs
            .iter()
            .filter_map(|input| match input {
                Value::Tensor(place) => Some(self.graph.nodes[*place].rank),
                Value::Constant | Value::None | Value::Text(_) => None,
                _ => Some(None),
            })
            .collect()
    }

    // Statements

    fn block(&mut self, statements: &[Statement], frame: &mut Frame) -> Then {
        if self.depth >= DEPTH_LIMIT {
            return Then::Goes;
        }
        self.depth += 1;
        let mut then = Then::Goes;
        for statement in statements {
            self.steps += 1;
            if self.steps > STEP_LIMIT {
                break;
            }
            then = self.statement(statement, frame);
            if then == Then::Ends {
                break;
            }
        }
        self.depth -= 1;
        then
    }

    fn statement(&mut self, statement: &Statement, frame: &mut Frame) -> Then {
        match statement {
            Statement::Assign(targets, value) => {
                let value = self.value(value, frame);
                for target in targets {
                    self.assign(target, value.clone(), frame);
                }
            }
            Statement::Update(target, operator, value) => {
                let left = self.value(target, frame);
                let right = self.value(value, frame);
                let value = self.binary(operator, left, right);
                self.assign(target, value, frame);
            }
            Statement::Expression(expression) => {
                self.value(expression, frame);
            }
            Statement::Return(value) => {
                let value = match value {
                    Some(value) => self.value(value, frame),
                    None => Value::None,
                };
                frame.returned.push(value);
                return Then::Ends;
            }
            Statement::If {
                test,
                then,
                otherwise,
            } => return self.branch(test, then, otherwise, frame),
            Statement::For { target, over, body } => {
                let over = self.value(over, frame);
                for element in self.elements(&over) {
                    self.assign(target, element, frame);
                    self.block(body, frame);
                }
            }
            Statement::Block(body) => return self.block(body, frame),
            Statement::Function(function) => {
                let value = Value::Function(Rc::new(Closure {
                    function: Rc::clone(function),
                    around: Self::visible(frame),
                    class: None,
                }));
                self.bind(&function.name, value, frame);
            }
            Statement::Class(class) => {
                let value = self.class(class, frame);
                self.bind(&class.name, value, frame);
            }
            Statement::Import { name, path } => {
                self.bind(name, Value::External(path.as_str().into()), frame);
            }
        }
        Then::Goes
    }

    fn branch(
        &mut self,
        test: &Expression,
        then: &[Statement],
        otherwise: &[Statement],
        frame: &mut Frame,
    ) -> Then {
        // `if __name__ == "__main__":`
        if frame.is_module
            && matches!(test, Expression::Binary(_, left, _) if **left == Expression::Name("__name__".into()))
        {
            return Then::Goes;
        }
        self.value(test, frame);
        self.conditional += 1;
        let before = frame.names.clone();
        let first = self.block(then, frame);
        let after = std::mem::replace(&mut frame.names, before.clone());
        let second = self.block(otherwise, frame);
        self.conditional -= 1;
        match (first, second) {
            (Then::Ends, Then::Ends) => return Then::Ends,
            (Then::Ends, Then::Goes) => {}
            (Then::Goes, Then::Ends) => frame.names = after,
            (Then::Goes, Then::Goes) => {
                // In the order of names, so that the same text always gives the same graph.
                for (name, left) in after.into_iter().collect::<BTreeMap<_, _>>() {
                    let merged = match frame.names.remove(&name) {
                        None => left,
                        Some(right) if right == left => right,
                        Some(right) if before.get(&name) == Some(&right) => match left {
                            Value::None => right,
                            left => left,
                        },
                        Some(right) if before.get(&name) == Some(&left) => match right {
                            Value::None => left,
                            right => right,
                        },
                        Some(right) => self.choice(left, right),
                    };
                    frame.names.insert(name, merged);
                }
            }
        }
        Then::Goes
    }

    fn choice(&mut self, left: Value, right: Value) -> Value {
        match (left, right) {
            (left, right) if left == right => left,
            (Value::Tensor(left), Value::Tensor(right)) => {
                Value::Tensor(self.graph.apply("choice", &[left, right]))
            }
            (Value::None | Value::Constant | Value::Unknown, other) | (other, _) => other,
        }
    }

    fn class(&mut self, class: &Class, frame: &mut Frame) -> Value {
        let bases = class
            .bases
            .iter()
            .map(|base| self.value(base, frame))
            .collect();
        let index = self.classes.len();
        self.classes.push(Blueprint {
            bases,
            members: Names::new(),
        });
        let mut inner = Frame {
            names: Self::visible(frame),
            ..Frame::default()
        };
        let outer: Vec<String> = inner.names.keys().cloned().collect();
        self.block(&class.body, &mut inner);
        for name in outer {
            if inner.names.get(&name) == frame.names.get(&name) {
                inner.names.remove(&name);
            }
        }
        for value in inner.names.values_mut() {
            if let Value::Function(closure) = value {
                *closure = Rc::new(Closure {
                    function: Rc::clone(&closure.function),
                    around: Self::visible(frame),
                    class: Some(index),
                });
            }
        }
        if let Some(blueprint) = self.classes.get_mut(index) {
            blueprint.members = inner.names;
        }
        Value::Class(index)
    }

    /// What a function defined here will know of where it was defined.
    fn visible(frame: &Frame) -> Names {
        if frame.is_module {
            return Names::new();
        }
        let mut names = frame
            .around
            .as_ref()
            .map(|closure| closure.around.clone())
            .unwrap_or_default();
        names.extend(
            frame
                .names
                .iter()
                .map(|(name, value)| (name.clone(), value.clone())),
        );
        names
    }

    fn bind(&mut self, name: &str, value: Value, frame: &mut Frame) {
        let names = if frame.is_module {
            &mut self.globals
        } else {
            &mut frame.names
        };
        names.insert(name.to_owned(), value);
    }

    fn assign(&mut self, target: &Expression, value: Value, frame: &mut Frame) {
        match target {
            Expression::Name(name) => self.bind(name, value, frame),
            Expression::Star(inner) => self.assign(inner, value, frame),
            Expression::Sequence(targets) => {
                for (position, target) in targets.iter().enumerate() {
                    let part = self.part(&value, position);
                    self.assign(target, part, frame);
                }
            }
            Expression::Attribute(owner, name) => {
                let owner = self.value(owner, frame);
                self.set_attribute(&owner, name, value);
            }
            Expression::Index(owner, key) => {
                let key = self.value(key, frame);
                match self.value(owner, frame) {
                    Value::Map(cell) => self.insert(cell, &key, value),
                    // Something is written into a tensor.
                    Value::Tensor(old) => {
                        let new = self.operand(&value);
                        let written = self.graph.apply("index_put", &[old, new]);
                        self.assign(owner, Value::Tensor(written), frame);
                    }
                    Value::Items(cell) => self.push(cell, value),
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn set_attribute(&mut self, owner: &Value, name: &str, value: Value) {
        let Value::Object(cell) = owner else {
            return;
        };
        // In a branch, doing nothing does not undo what the other branch does.
        let is_nothing = match &value {
            Value::None => true,
            Value::Layer(name) => &**name == "Identity",
            Value::Chain(cell) => self.stored_items(*cell).is_empty(),
            _ => false,
        };
        let keeps = self.conditional > 0 && is_nothing;
        if let Some(Stored::Object { attributes, .. }) = self.heap.get_mut(*cell) {
            if keeps && attributes.contains_key(name) {
                return;
            }
            attributes.insert(name.to_owned(), value);
        }
    }
}

fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}
