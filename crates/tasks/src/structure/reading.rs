//! Reading a module's text as a graph of operators, without running it.
//!
//! Statements are followed in order with values that know only what matters here: tensors and what made them, modules,
//! functions, and what holds them. Names, sizes and the order of independent lines leave no trace. Local functions,
//! methods and classes are followed where they are called. A loop over something unknown is followed once, both sides of
//! an `if` are. Steps and depth are bounded; past the bounds nothing more is learnt.

mod calls;

use std::collections::BTreeMap;
use std::rc::Rc;

use super::graph::{Graph, Place};
use super::operators::is_metadata;
use super::value::{Blueprint, Cell, Closure, Given, Names, Stored, Value};
use crate::python::{Class, Expression, Statement};

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
            (Value::None | Value::Constant, other) => other,
            (other, _) => other,
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
        let mut inner = Frame::default();
        inner.names = Self::visible(frame);
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
        let keeps = self.conditional > 0 && matches!(value, Value::None);
        if let Some(Stored::Object { attributes, .. }) = self.heap.get_mut(*cell) {
            if keeps && attributes.contains_key(name) {
                return;
            }
            attributes.insert(name.to_owned(), value);
        }
    }

    // Expressions

    fn value(&mut self, expression: &Expression, frame: &mut Frame) -> Value {
        self.steps += 1;
        if self.steps > STEP_LIMIT || self.depth >= DEPTH_LIMIT {
            return Value::Constant;
        }
        self.depth += 1;
        let value = self.unbounded(expression, frame);
        self.depth -= 1;
        value
    }

    fn unbounded(&mut self, expression: &Expression, frame: &mut Frame) -> Value {
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

    fn name(&self, name: &str, frame: &Frame) -> Value {
        frame
            .names
            .get(name)
            .or_else(|| frame.around.as_ref()?.around.get(name))
            .or_else(|| self.globals.get(name))
            .cloned()
            .unwrap_or_else(|| Value::External(name.into()))
    }

    fn comprehension(
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

    fn binary(&mut self, operator: &str, left: Value, right: Value) -> Value {
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
    fn operand(&mut self, value: &Value) -> Place {
        let mut tensors = Vec::new();
        self.tensors_in(value, &mut tensors);
        match tensors[..] {
            [] => Graph::CONSTANT,
            [only] => only,
            _ => self.graph.apply("stack", &tensors),
        }
    }

    fn tensors_in(&self, value: &Value, into: &mut Vec<Place>) {
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
    fn elements(&mut self, value: &Value) -> Vec<Value> {
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

    fn part(&mut self, value: &Value, position: usize) -> Value {
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

    fn index(&mut self, owner: &Value, key: &Value, is_number: bool) -> Value {
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
    fn gives_several(&self, place: Place) -> bool {
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

    fn attribute(&mut self, owner: &Value, name: &str) -> Value {
        match owner {
            Value::External(path) => Value::External(format!("{path}.{name}").into()),
            Value::Object(cell) => self.object_attribute(*cell, name),
            Value::Super(cell, class) => self.super_attribute(*cell, *class, name),
            Value::Class(class) => self
                .member(*class, name)
                .unwrap_or_else(|| Value::Member(Box::new(owner.clone()), name.into())),
            Value::Tensor(place) => match name {
                "T" | "mT" | "H" | "mH" => Value::Tensor(self.graph.apply("permute", &[*place])),
                "data" | "grad" | "real" | "values" => Value::Tensor(*place),
                "indices" => Value::Tensor(self.graph.apply("part", &[*place])),
                // Called or not, there is no tensor in it.
                _ if is_metadata(name) => Value::Constant,
                _ => Value::Member(Box::new(owner.clone()), name.into()),
            },
            Value::Layer(_) if name.contains("weight") || name.contains("bias") => {
                Value::Tensor(self.graph.leaf("weight", None))
            }
            Value::None => Value::Constant,
            _ => Value::Member(Box::new(owner.clone()), name.into()),
        }
    }

    fn object_attribute(&mut self, cell: Cell, name: &str) -> Value {
        let Some(Stored::Object { class, attributes }) = self.heap.get(cell) else {
            return Value::Constant;
        };
        if let Some(value) = attributes.get(name) {
            return value.clone();
        }
        let class = *class;
        match self.member(class, name) {
            Some(Value::Function(closure)) if closure.function.is_static => {
                Value::Function(closure)
            }
            Some(Value::Function(closure)) => Value::Bound(Box::new(Value::Object(cell)), closure),
            Some(value) => value,
            None => Value::Member(Box::new(Value::Object(cell)), name.into()),
        }
    }

    fn super_attribute(&mut self, cell: Cell, class: usize, name: &str) -> Value {
        let bases = self.bases(class);
        let found = bases.into_iter().find_map(|base| match base {
            Value::Class(base) => self.member(base, name),
            _ => None,
        });
        match found {
            Some(Value::Function(closure)) => Value::Bound(Box::new(Value::Object(cell)), closure),
            Some(value) => value,
            None if name == "forward" => match self.external_base(class) {
                Some(layer) => Value::Layer(layer),
                None => Value::Constant,
            },
            None => Value::Constant,
        }
    }

    fn bases(&self, class: usize) -> Vec<Value> {
        self.classes
            .get(class)
            .map(|blueprint| blueprint.bases.clone())
            .unwrap_or_default()
    }

    /// A member of a class or of those it is derived from, in order. A class comes after its bases, so this ends.
    fn member(&self, class: usize, name: &str) -> Option<Value> {
        let mut open = vec![class];
        while let Some(class) = open.pop() {
            let blueprint = self.classes.get(class)?;
            if let Some(value) = blueprint.members.get(name) {
                return Some(value.clone());
            }
            open.extend(blueprint.bases.iter().rev().filter_map(|base| match base {
                Value::Class(base) if *base < class => Some(*base),
                _ => None,
            }));
        }
        None
    }

    fn method(&self, class: usize, name: &str) -> Option<Rc<Closure>> {
        match self.member(class, name)? {
            Value::Function(closure) => Some(closure),
            _ => None,
        }
    }

    /// The module from elsewhere that a class is derived from: `nn.ReLU`, but not `nn.Module` itself.
    fn external_base(&self, class: usize) -> Option<Rc<str>> {
        let mut open = vec![class];
        while let Some(class) = open.pop() {
            for base in &self.classes.get(class)?.bases {
                match base {
                    Value::External(path) => {
                        let name = last(path);
                        if name != "Module" && name != "object" && name != "ABC" {
                            return Some(name.into());
                        }
                    }
                    Value::Class(base) if *base < class => open.push(*base),
                    _ => {}
                }
            }
        }
        None
    }

    // The heap

    fn store(&mut self, stored: Stored) -> Cell {
        self.heap.push(stored);
        self.heap.len() - 1
    }

    fn items(&mut self, mut values: Vec<Value>) -> Value {
        values.truncate(ITEM_LIMIT);
        Value::Items(self.store(Stored::Items(values)))
    }

    fn stored_items(&self, cell: Cell) -> Vec<Value> {
        match self.heap.get(cell) {
            Some(Stored::Items(items)) => items.clone(),
            _ => Vec::new(),
        }
    }

    fn stored_map(&self, cell: Cell) -> Vec<(String, Value)> {
        match self.heap.get(cell) {
            Some(Stored::Map(entries)) => entries.clone(),
            _ => Vec::new(),
        }
    }

    fn push(&mut self, cell: Cell, value: Value) {
        if let Some(Stored::Items(items)) = self.heap.get_mut(cell)
            && items.len() < ITEM_LIMIT
        {
            items.push(value);
        }
    }

    fn insert(&mut self, cell: Cell, key: &Value, value: Value) {
        if let Some(Stored::Map(entries)) = self.heap.get_mut(cell)
            && entries.len() < ITEM_LIMIT
        {
            let key = match key {
                Value::Text(text) => text.to_string(),
                _ => String::new(),
            };
            entries.push((key, value));
        }
    }
}

fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}
