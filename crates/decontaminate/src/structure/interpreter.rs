//! An abstract interpreter that reads a module's source as a graph of operators, without running it.
//!
//! It executes statements in order on abstract values: tensors and the operators that made them, modules, functions, and
//! containers of these. Names, sizes and the order of independent lines leave no trace. Local functions, methods and classes are
//! entered where they are called. A loop over something unknown runs once. Both branches of an `if` run, and their values are
//! joined. Steps and depth are bounded; past the bounds everything is a constant.

mod calls;
mod expressions;
mod objects;

use std::collections::BTreeMap;
use std::rc::Rc;

use super::graph::{Graph, NodeId};
use super::value::{CallArguments, ClassDefinition, Closure, HeapObject, Names, Value};
use warpsmith_tasks::python::{Class, Expression, Statement};

/// Expressions and statements evaluated in one module. The largest network of `KernelBench` needs a few thousand.
const STEP_LIMIT: usize = 100_000;
/// Nested calls, blocks and expressions.
const DEPTH_LIMIT: usize = 160;
/// The length of an abstract list.
const ITEM_LIMIT: usize = 1024;
/// Iterations of a loop over a known list.
const LOOP_LIMIT: usize = 64;

/// What was found out about a module.
pub(super) struct TracedModule {
    pub(super) graph: Graph,
    /// The results of `forward`.
    pub(super) returned: Vec<NodeId>,
    /// The number of dimensions of each tensor that `get_inputs` returns; `None` if the source does not tell all of them.
    pub(super) ranks: Option<Vec<u8>>,
}

/// Interprets a module; `None` if there is no class `Model` with a `forward`.
pub(super) fn trace(module: &[Statement]) -> Option<TracedModule> {
    let mut interpreter = Interpreter {
        graph: Graph::new(),
        heap: Vec::new(),
        classes: Vec::new(),
        globals: Names::new(),
        steps: 0,
        depth: 0,
        branch_depth: 0,
    };
    let mut top = Frame::default();
    interpreter.module(module, &mut top);
    let Some(Value::Class(model)) = interpreter.globals.get("Model").cloned() else {
        return None;
    };
    interpreter.method(model, "forward")?;

    let inputs = interpreter.call_global("get_inputs");
    let ranks = interpreter.ranks(&inputs);
    let setup = interpreter.call_global("get_init_inputs");
    // Sizes do not count, but an argument may be an activation.
    let setup = setup
        .into_iter()
        .map(|value| match value {
            Value::External(_) | Value::Layer(_) | Value::Class(_) | Value::Function(_) => value,
            _ => Value::Constant,
        })
        .collect();
    interpreter.steps = 0;
    let object = interpreter.instance(model, CallArguments::positional(setup));
    let forward = interpreter.method(model, "forward")?;
    let count = forward.function.parameters.len().saturating_sub(1);
    let given = (0..count.max(inputs.len()))
        .map(|position| match inputs.get(position) {
            Some(Value::Constant | Value::Text(_) | Value::None) => Value::Constant,
            Some(Value::Items(_)) => {
                let inner = Value::Tensor(interpreter.graph.leaf("input", None));
                interpreter.items(vec![inner])
            }
            Some(Value::Tensor(node)) => {
                let rank = interpreter.graph.nodes[*node].rank;
                Value::Tensor(interpreter.graph.leaf("input", rank))
            }
            _ => Value::Tensor(interpreter.graph.leaf("input", None)),
        })
        .take(count)
        .collect();
    let result = interpreter.invoke(&forward, Some(object), CallArguments::positional(given));
    let mut returned = Vec::new();
    interpreter.tensors_in(&result, &mut returned);
    Some(TracedModule {
        graph: interpreter.graph,
        returned,
        ranks,
    })
}

struct Interpreter {
    graph: Graph,
    heap: Vec<HeapObject>,
    classes: Vec<ClassDefinition>,
    globals: Names,
    steps: usize,
    depth: usize,
    /// How many branches are open. Inside of them no attribute is reset to nothing.
    branch_depth: usize,
}

/// A function's activation.
#[derive(Default)]
struct Frame {
    names: Names,
    closure: Option<Rc<Closure>>,
    instance: Option<Value>,
    returned: Vec<Value>,
    is_module: bool,
}

/// Whether the statements after these are reached.
#[derive(PartialEq, Clone, Copy)]
enum Flow {
    Continues,
    Returns,
}

impl Interpreter {
    fn module(&mut self, statements: &[Statement], frame: &mut Frame) {
        frame.is_module = true;
        self.block(statements, frame);
    }

    fn call_global(&mut self, name: &str) -> Vec<Value> {
        let Some(Value::Function(closure)) = self.globals.get(name).cloned() else {
            return Vec::new();
        };
        match self.invoke(&closure, None, CallArguments::default()) {
            Value::Items(id) => self.stored_items(id),
            Value::None => Vec::new(),
            other => vec![other],
        }
    }

    fn ranks(&self, inputs: &[Value]) -> Option<Vec<u8>> {
        inputs
            .iter()
            .filter_map(|input| match input {
                Value::Tensor(node) => Some(self.graph.nodes[*node].rank),
                Value::Constant | Value::None | Value::Text(_) => None,
                _ => Some(None),
            })
            .collect()
    }

    fn block(&mut self, statements: &[Statement], frame: &mut Frame) -> Flow {
        if self.depth >= DEPTH_LIMIT {
            return Flow::Continues;
        }
        self.depth += 1;
        let mut then = Flow::Continues;
        for statement in statements {
            self.steps += 1;
            if self.steps > STEP_LIMIT {
                break;
            }
            then = self.statement(statement, frame);
            if then == Flow::Returns {
                break;
            }
        }
        self.depth -= 1;
        then
    }

    fn statement(&mut self, statement: &Statement, frame: &mut Frame) -> Flow {
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
                return Flow::Returns;
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
                    captured: Self::captured_names(frame),
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
        Flow::Continues
    }

    fn branch(
        &mut self,
        test: &Expression,
        then: &[Statement],
        otherwise: &[Statement],
        frame: &mut Frame,
    ) -> Flow {
        // `if __name__ == "__main__":`
        if frame.is_module
            && matches!(test, Expression::Binary(_, left, _) if **left == Expression::Name("__name__".into()))
        {
            return Flow::Continues;
        }
        self.value(test, frame);
        self.branch_depth += 1;
        let before = frame.names.clone();
        let first = self.block(then, frame);
        let after = std::mem::replace(&mut frame.names, before.clone());
        let second = self.block(otherwise, frame);
        self.branch_depth -= 1;
        match (first, second) {
            (Flow::Returns, Flow::Returns) => return Flow::Returns,
            (Flow::Returns, Flow::Continues) => {}
            (Flow::Continues, Flow::Returns) => frame.names = after,
            (Flow::Continues, Flow::Continues) => {
                // In the order of names, so that the same source always gives the same graph.
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
                        Some(right) => self.join(left, right),
                    };
                    frame.names.insert(name, merged);
                }
            }
        }
        Flow::Continues
    }

    fn join(&mut self, left: Value, right: Value) -> Value {
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
        self.classes.push(ClassDefinition {
            bases,
            members: Names::new(),
        });
        let mut inner = Frame {
            names: Self::captured_names(frame),
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
                    captured: Self::captured_names(frame),
                    class: Some(index),
                });
            }
        }
        if let Some(definition) = self.classes.get_mut(index) {
            definition.members = inner.names;
        }
        Value::Class(index)
    }

    /// The names that a function defined in this frame captures.
    fn captured_names(frame: &Frame) -> Names {
        if frame.is_module {
            return Names::new();
        }
        let mut names = frame
            .closure
            .as_ref()
            .map(|closure| closure.captured.clone())
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
                    let part = self.element(&value, position);
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
                    Value::Map(id) => self.insert(id, &key, value),
                    // A write into a tensor.
                    Value::Tensor(old) => {
                        let new = self.operand(&value);
                        let written = self.graph.apply("index_put", &[old, new]);
                        self.assign(owner, Value::Tensor(written), frame);
                    }
                    Value::Items(id) => self.push(id, value),
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn set_attribute(&mut self, owner: &Value, name: &str, value: Value) {
        let Value::Object(id) = owner else {
            return;
        };
        // In a branch, an attribute that does nothing does not replace what the other branch set.
        let is_nothing = match &value {
            Value::None => true,
            Value::Layer(name) => &**name == "Identity",
            Value::Chain(id) => self.stored_items(*id).is_empty(),
            _ => false,
        };
        let keeps = self.branch_depth > 0 && is_nothing;
        if let Some(HeapObject::Object { attributes, .. }) = self.heap.get_mut(*id) {
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
