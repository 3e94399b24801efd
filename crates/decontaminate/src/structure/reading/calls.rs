//! What calling something gives.

use std::rc::Rc;

use super::{DEPTH_LIMIT, Frame, ITEM_LIMIT, Reader, STEP_LIMIT, last};
use crate::structure::graph::{Graph, Place, creation};
use crate::structure::operators::is_metadata;
use crate::structure::value::{Cell, Closure, Given, Names, Stored, Value};
use warpsmith_tasks::python::{Argument, Binding, Expression, Function};

impl Reader {
    pub(super) fn call_expression(
        &mut self,
        callee: &Expression,
        arguments: &[Argument],
        frame: &mut Frame,
    ) -> Value {
        let value = self.value(callee, frame);
        if value == Value::External("super".into()) {
            let class = frame.around.as_ref().and_then(|closure| closure.class);
            return match (&frame.instance, class) {
                (Some(Value::Object(cell)), Some(class)) => Value::Super(*cell, class),
                _ => Value::Constant,
            };
        }
        let given = self.given(arguments, frame);
        let result = self.call(&value, given);
        if let Value::Tensor(_) = result {
            self.write_back(callee, arguments, &value, &result, frame);
        }
        result
    }

    /// `x.relu_()`, `F.relu(x, inplace=True)` and `torch.add(a, b, out=x)` change what `x` stands for.
    fn write_back(
        &mut self,
        callee: &Expression,
        arguments: &[Argument],
        value: &Value,
        result: &Value,
        frame: &mut Frame,
    ) {
        let named = |wanted: &str| {
            arguments
                .iter()
                .find(|argument| argument.binding == Binding::Named(wanted.into()))
                .map(|argument| &argument.value)
        };
        let ends_in_underscore = |name: &str| name.ends_with('_') && !name.ends_with("__");
        let first = arguments.first().map(|argument| &argument.value);
        let target = match (value, callee) {
            _ if named("out").is_some() => named("out"),
            (Value::Member(_, name), Expression::Attribute(owner, _))
                if ends_in_underscore(name) =>
            {
                Some(&**owner)
            }
            (Value::External(path), _) if ends_in_underscore(path) => first,
            (Value::External(_), _) if named("inplace").is_some() => first,
            _ => None,
        };
        if let Some(target @ (Expression::Name(_) | Expression::Attribute(..))) = target {
            self.assign(target, result.clone(), frame);
        }
    }

    fn given(&mut self, arguments: &[Argument], frame: &mut Frame) -> Given {
        let mut given = Given::default();
        for argument in arguments {
            let value = self.value(&argument.value, frame);
            match &argument.binding {
                Binding::Positional => given.positional.push(value),
                Binding::Named(name) => given.named.push((name.clone(), value)),
                Binding::Star => given.positional.extend(self.elements(&value)),
                Binding::DoubleStar => {
                    if let Value::Map(cell) = value {
                        given.named.extend(self.stored_map(cell));
                    }
                }
            }
        }
        given
    }

    fn call(&mut self, callee: &Value, given: Given) -> Value {
        self.steps += 1;
        if self.depth >= DEPTH_LIMIT || self.steps > STEP_LIMIT {
            return self.apply("call", &given);
        }
        // Something may be part of itself.
        self.depth += 1;
        let result = self.called_with(callee, given);
        self.depth -= 1;
        result
    }

    fn called_with(&mut self, callee: &Value, given: Given) -> Value {
        match callee {
            Value::External(path) => self.call_external(path, given),
            Value::Layer(name) => self.apply(name, &given),
            Value::Chain(cell) => {
                let mut given = given;
                for layer in self.stored_items(*cell) {
                    let result = self.call(&layer, given);
                    given = Given::positional(vec![result]);
                }
                given.at(0)
            }
            Value::Object(cell) => self.call_object(*cell, given),
            Value::Class(class) => self.instance(*class, given),
            Value::Function(closure) => self.invoke(closure, None, given),
            Value::Bound(instance, closure) => {
                self.invoke(closure, Some((**instance).clone()), given)
            }
            Value::Member(owner, name) => self.call_member(owner, name, given),
            // An activation that was handed in.
            _ => self.apply("call", &given),
        }
    }

    fn call_object(&mut self, cell: Cell, given: Given) -> Value {
        let Some(Stored::Object { class, .. }) = self.heap.get(cell) else {
            return Value::Constant;
        };
        let class = *class;
        let method = self
            .method(class, "forward")
            .or_else(|| self.method(class, "__call__"));
        match (method, self.external_base(class)) {
            (Some(closure), _) => self.invoke(&closure, Some(Value::Object(cell)), given),
            (None, Some(layer)) => self.apply(&layer, &given),
            (None, None) => self.apply("call", &given),
        }
    }

    pub(super) fn instance(&mut self, class: usize, given: Given) -> Value {
        let cell = self.store(Stored::Object {
            class,
            attributes: Names::new(),
        });
        if let Some(closure) = self.method(class, "__init__") {
            // In a branch or not, an instance of its own is made from nothing.
            let conditional = std::mem::take(&mut self.conditional);
            self.invoke(&closure, Some(Value::Object(cell)), given);
            self.conditional = conditional;
        }
        Value::Object(cell)
    }

    /// Follows a local function.
    pub(super) fn invoke(
        &mut self,
        closure: &Rc<Closure>,
        instance: Option<Value>,
        given: Given,
    ) -> Value {
        if self.depth >= DEPTH_LIMIT || self.steps > STEP_LIMIT {
            return self.apply("call", &given);
        }
        let function = Rc::clone(&closure.function);
        let mut frame = Frame {
            around: Some(Rc::clone(closure)),
            instance: instance.clone(),
            ..Frame::default()
        };
        let given = Given {
            positional: instance.into_iter().chain(given.positional).collect(),
            named: given.named,
        };
        self.depth += 1;
        self.bind_parameters(&function, given, &mut frame);
        self.block(&function.body, &mut frame);
        self.depth -= 1;
        let mut returned = frame.returned.into_iter();
        let first = returned.next().unwrap_or(Value::None);
        returned.fold(first, |left, right| self.choice(left, right))
    }

    fn bind_parameters(&mut self, function: &Function, given: Given, frame: &mut Frame) {
        let mut positional = given.positional.into_iter();
        let mut named = given.named;
        for (binding, name, default) in &function.parameters {
            let value = match binding {
                Binding::Star => {
                    let rest = positional.by_ref().collect();
                    self.items(rest)
                }
                Binding::DoubleStar => {
                    Value::Map(self.store(Stored::Map(std::mem::take(&mut named))))
                }
                _ => {
                    let by_name = named.iter().position(|(given, _)| given == name);
                    match (by_name, default) {
                        (Some(position), _) => named.remove(position).1,
                        (None, default) => match (positional.next(), default) {
                            (Some(value), _) => value,
                            (None, Some(default)) => self.value(default, frame),
                            (None, None) => Value::Constant,
                        },
                    }
                }
            };
            frame.names.insert(name.clone(), value);
        }
    }

    /// An operator applied to the tensors among its arguments; a constant where there are none.
    fn apply(&mut self, name: &str, given: &Given) -> Value {
        let all: Vec<&Value> = given
            .positional
            .iter()
            .chain(
                given
                    .named
                    .iter()
                    .filter(|(name, _)| name != "out")
                    .map(|(_, value)| value),
            )
            .collect();
        let mut operands = Vec::new();
        for value in all {
            let before = operands.len();
            self.tensors_in(value, &mut operands);
            if operands.len() == before {
                operands.push(Graph::CONSTANT);
            }
        }
        if operands.iter().all(|&place| place == Graph::CONSTANT) {
            return Value::Constant;
        }
        Value::Tensor(self.graph.apply(name, &operands))
    }

    fn call_external(&mut self, path: &str, mut given: Given) -> Value {
        let name = last(path);
        let of_torch = path.starts_with("torch.");
        match name {
            _ if path == name => {
                if let Some(value) = self.builtin(name, &given) {
                    return value;
                }
            }
            "Parameter" | "Buffer" | "UninitializedParameter" => {
                return Value::Tensor(self.graph.leaf("weight", None));
            }
            "Sequential" => {
                let mut layers = Vec::new();
                for value in given.positional {
                    match value {
                        Value::Map(cell) => {
                            let entries = self.stored_map(cell).into_iter();
                            layers.extend(entries.map(|(_, layer)| layer));
                        }
                        // `OrderedDict([("a", layer)])`
                        Value::Items(cell) => {
                            for pair in self.stored_items(cell) {
                                layers.push(self.part(&pair, 1));
                            }
                        }
                        layer => layers.push(layer),
                    }
                }
                layers.truncate(ITEM_LIMIT);
                return Value::Chain(self.store(Stored::Items(layers)));
            }
            "ModuleList" | "ParameterList" | "ModuleDict" | "ParameterDict" | "OrderedDict" => {
                return match given.first() {
                    Some(value @ (Value::Items(_) | Value::Map(_))) => value.clone(),
                    Some(Value::Chain(cell)) => Value::Items(*cell),
                    _ if name.ends_with("Dict") => Value::Map(self.store(Stored::Map(Vec::new()))),
                    _ => self.items(Vec::new()),
                };
            }
            _ => {}
        }
        if path.contains(".init.")
            || path.starts_with("torch.cuda")
            || path.starts_with("torch.backends")
        {
            return Value::Constant;
        }
        // `torch.compile(f)`, `nn.utils.weight_norm(layer)`, `partial(f, …)`: what goes in comes out.
        if let Some(
            inner @ (Value::Function(_)
            | Value::Bound(..)
            | Value::Layer(_)
            | Value::Chain(_)
            | Value::Object(_)),
        ) = given.first()
        {
            let inner = inner.clone();
            if name != "checkpoint" {
                return inner;
            }
            let rest = given.positional.drain(1..).collect();
            return self.call(&inner, Given::positional(rest));
        }
        if let (Some(Value::External(function)), "partial") = (given.first(), name) {
            return Value::External(Rc::clone(function));
        }
        let is_class = name.chars().next().is_some_and(char::is_uppercase);
        if is_class && !name.ends_with("Tensor") && name != "Size" {
            return Value::Layer(name.into());
        }
        match self.apply(name, &given) {
            Value::Constant if of_torch && makes_tensor(name) => {
                let rank = self.rank_given(&given);
                let label = creation(name);
                Value::Tensor(self.graph.leaf(&label, rank))
            }
            Value::Constant if !of_torch && !path.starts_with("math.") => Value::Unknown,
            value => value,
        }
    }

    /// `torch.rand(a, b)`, `torch.rand((a, b))`, `torch.randint(0, n, (a, b))`.
    fn rank_given(&self, given: &Given) -> Option<u8> {
        let sizes = given
            .named
            .iter()
            .filter(|(name, _)| name == "size")
            .map(|(_, value)| value)
            .chain(&given.positional)
            .find_map(|value| match value {
                Value::Items(cell) => Some(self.stored_items(*cell).len()),
                _ => None,
            });
        let count = sizes.unwrap_or(given.positional.len());
        u8::try_from(count).ok()
    }

    /// Python's own functions, where they matter.
    fn builtin(&mut self, name: &str, given: &Given) -> Option<Value> {
        Some(match name {
            "range" | "len" | "int" | "float" | "bool" | "str" | "isinstance" | "hasattr"
            | "print" | "id" | "type" | "repr" | "round" | "any" | "all" => Value::Constant,
            "list" | "tuple" | "reversed" | "sorted" | "iter" | "set" => {
                let mut elements = match given.first() {
                    Some(value) => {
                        let value = value.clone();
                        self.elements(&value)
                    }
                    None => Vec::new(),
                };
                if name == "reversed" {
                    elements.reverse();
                }
                self.items(elements)
            }
            "next" => {
                let value = given.at(0);
                self.part(&value, 0)
            }
            "dict" => Value::Map(self.store(Stored::Map(given.named.clone()))),
            "enumerate" => {
                let value = given.at(0);
                let elements = self.elements(&value);
                let pairs = elements
                    .into_iter()
                    .map(|element| self.items(vec![Value::Constant, element]))
                    .collect();
                self.items(pairs)
            }
            "zip" => {
                let columns: Vec<Vec<Value>> = given
                    .positional
                    .iter()
                    .map(|value| self.elements(value))
                    .collect();
                // What is known once stands for each.
                let rows = columns.iter().map(Vec::len).max().unwrap_or(0);
                let rows = (0..rows)
                    .map(|row| {
                        let cells = columns
                            .iter()
                            .map(|column| {
                                let cell = column.get(row).or_else(|| column.last());
                                cell.cloned().unwrap_or(Value::Constant)
                            })
                            .collect();
                        self.items(cells)
                    })
                    .collect();
                self.items(rows)
            }
            "sum" => {
                let value = given.at(0);
                if let Value::Tensor(_) = value {
                    return Some(self.apply("sum", given));
                }
                let elements = self.elements(&value);
                let mut elements = elements.into_iter();
                let first = elements.next().unwrap_or(Value::Constant);
                elements.fold(first, |left, right| self.binary("add", left, right))
            }
            "map" => {
                let (function, over) = (given.at(0), given.at(1));
                let elements = self.elements(&over);
                let values = elements
                    .into_iter()
                    .map(|element| self.call(&function, Given::positional(vec![element])))
                    .collect();
                self.items(values)
            }
            "getattr" => match given.at(1) {
                Value::Text(name) => {
                    let owner = given.at(0);
                    self.attribute(&owner, &name)
                }
                _ => Value::Constant,
            },
            "setattr" => {
                if let Value::Text(name) = given.at(1) {
                    let owner = given.at(0);
                    self.set_attribute(&owner, &name, given.at(2));
                }
                Value::None
            }
            _ => return None,
        })
    }

    fn call_member(&mut self, owner: &Value, name: &str, given: Given) -> Value {
        match owner {
            Value::Tensor(place) => self.call_on_tensor(*place, name, given),
            Value::Items(cell) | Value::Chain(cell) => {
                self.call_on_items(owner, *cell, name, &given)
            }
            Value::Map(cell) => self.call_on_map(*cell, name, &given),
            Value::Object(cell) => self.call_on_object(owner, *cell, name, given),
            // `Function.apply(x)`: its `forward` has a context first.
            Value::Class(class) if name == "apply" => match self.method(*class, "forward") {
                Some(closure) => {
                    let positional = [Value::Constant]
                        .into_iter()
                        .chain(given.positional)
                        .collect();
                    self.invoke(&closure, None, Given::positional(positional))
                }
                None => self.apply("call", &given),
            },
            Value::Layer(layer) if name == "forward" || name == "__call__" => {
                let layer = Rc::clone(layer);
                self.apply(&layer, &given)
            }
            Value::Layer(_) => owner.clone(),
            Value::Function(_) | Value::Bound(..) if name == "__call__" => self.call(owner, given),
            _ => self.apply(name, &given),
        }
    }

    fn call_on_tensor(&mut self, place: Place, name: &str, given: Given) -> Value {
        if is_metadata(name) {
            return Value::Constant;
        }
        // `x.to(other)`: the other one only says where.
        let positional = [Value::Tensor(place)]
            .into_iter()
            .chain(given.positional)
            .collect();
        let given = Given {
            positional,
            named: given.named,
        };
        self.apply(name, &given)
    }

    fn call_on_items(&mut self, owner: &Value, cell: Cell, name: &str, given: &Given) -> Value {
        match name {
            "append" | "add" => self.push(cell, given.at(0)),
            "insert" | "add_module" => self.push(cell, given.at(1)),
            "extend" => {
                let more = given.at(0);
                for value in self.elements(&more) {
                    self.push(cell, value);
                }
            }
            "pop" => return self.part(owner, 0),
            "forward" | "__call__" => {
                let given = Given::positional(given.positional.clone());
                return self.call(owner, given);
            }
            "children" | "modules" | "copy" => return Value::Items(cell),
            // `.to(device)`, `.eval()`
            _ => return owner.clone(),
        }
        Value::None
    }

    fn call_on_map(&mut self, cell: Cell, name: &str, given: &Given) -> Value {
        let map = self.stored_map(cell);
        match name {
            "values" => self.items(map.into_iter().map(|(_, value)| value).collect()),
            "items" => {
                let pairs = map
                    .into_iter()
                    .map(|(key, value)| self.items(vec![Value::Text(key.into()), value]))
                    .collect();
                self.items(pairs)
            }
            "get" | "pop" => {
                let key = given.at(0);
                self.index(&Value::Map(cell), &key, false)
            }
            "update" => {
                if let Value::Map(other) = given.at(0) {
                    for (key, value) in self.stored_map(other) {
                        self.insert(cell, &Value::Text(key.into()), value);
                    }
                }
                Value::None
            }
            _ => Value::Map(cell),
        }
    }

    fn call_on_object(&mut self, owner: &Value, cell: Cell, name: &str, given: Given) -> Value {
        match name {
            "register_buffer" | "register_parameter" | "add_module" | "register_module" => {
                if let Value::Text(attribute) = given.at(0) {
                    let value = match given.at(1) {
                        Value::Tensor(_) => Value::Tensor(self.graph.leaf("weight", None)),
                        other => other,
                    };
                    self.set_attribute(owner, &attribute, value);
                }
                Value::None
            }
            "forward" | "__call__" => self.call_object(cell, given),
            "eval" | "train" | "to" | "cuda" | "cpu" | "float" | "half" | "requires_grad_" => {
                owner.clone()
            }
            _ => self.apply("call", &given),
        }
    }
}

/// Functions of `torch` that make a tensor where they are given none.
fn makes_tensor(name: &str) -> bool {
    !matches!(
        name,
        "device"
            | "no_grad"
            | "enable_grad"
            | "set_grad_enabled"
            | "inference_mode"
            | "manual_seed"
            | "set_default_dtype"
            | "set_float32_matmul_precision"
            | "finfo"
            | "iinfo"
            | "is_tensor"
            | "autocast"
            | "get_default_dtype"
            | "use_deterministic_algorithms"
            | "initial_seed"
            | "Size"
    )
}
