//! Calls.

use std::rc::Rc;

use super::{DEPTH_LIMIT, Frame, ITEM_LIMIT, Interpreter, STEP_LIMIT, last};
use crate::structure::graph::{Graph, NodeId, creation};
use crate::structure::operators::is_metadata;
use crate::structure::value::{CallArguments, Closure, HeapId, HeapObject, Names, Value};
use warpsmith_tasks::python::{Argument, Binding, Expression, Function, FunctionParameter};

impl Interpreter {
    pub(super) fn call_expression(
        &mut self,
        callee: &Expression,
        arguments: &[Argument],
        frame: &mut Frame,
    ) -> Value {
        let value = self.value(callee, frame);
        if value == Value::External("super".into()) {
            let class = frame.closure.as_ref().and_then(|closure| closure.class);
            return match (&frame.instance, class) {
                (Some(Value::Object(id)), Some(class)) => Value::Super(*id, class),
                _ => Value::Constant,
            };
        }
        let evaluated = self.evaluate_arguments(arguments, frame);
        let result = self.call(&value, evaluated);
        if let Value::Tensor(_) = result {
            self.write_back(callee, arguments, &value, &result, frame);
        }
        result
    }

    /// `x.relu_()`, `F.relu(x, inplace=True)` and `torch.add(a, b, out=x)` rebind `x`.
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

    fn evaluate_arguments(&mut self, arguments: &[Argument], frame: &mut Frame) -> CallArguments {
        let mut evaluated = CallArguments::default();
        for argument in arguments {
            let value = self.value(&argument.value, frame);
            match &argument.binding {
                Binding::Positional => evaluated.positional.push(value),
                Binding::Named(name) => evaluated.named.push((name.clone(), value)),
                Binding::Star => evaluated.positional.extend(self.elements(&value)),
                Binding::DoubleStar => {
                    if let Value::Map(id) = value {
                        evaluated.named.extend(self.stored_map(id));
                    }
                }
            }
        }
        evaluated
    }

    fn call(&mut self, callee: &Value, arguments: CallArguments) -> Value {
        self.steps += 1;
        if self.depth >= DEPTH_LIMIT || self.steps > STEP_LIMIT {
            return self.apply("call", &arguments);
        }
        // A container may contain itself.
        self.depth += 1;
        let result = self.call_value(callee, arguments);
        self.depth -= 1;
        result
    }

    fn call_value(&mut self, callee: &Value, arguments: CallArguments) -> Value {
        match callee {
            Value::External(path) => self.call_external(path, arguments),
            Value::Layer(name) => self.apply(name, &arguments),
            Value::Chain(id) => {
                let mut arguments = arguments;
                for layer in self.stored_items(*id) {
                    let result = self.call(&layer, arguments);
                    arguments = CallArguments::positional(vec![result]);
                }
                arguments.at(0)
            }
            Value::Object(id) => self.call_object(*id, arguments),
            Value::Class(class) => self.instance(*class, arguments),
            Value::Function(closure) => self.invoke(closure, None, arguments),
            Value::Bound(instance, closure) => {
                self.invoke(closure, Some((**instance).clone()), arguments)
            }
            Value::Member(owner, name) => self.call_member(owner, name, arguments),
            // For instance an activation passed as an argument.
            _ => self.apply("call", &arguments),
        }
    }

    fn call_object(&mut self, id: HeapId, arguments: CallArguments) -> Value {
        let Some(HeapObject::Object { class, .. }) = self.heap.get(id) else {
            return Value::Constant;
        };
        let class = *class;
        let method = self
            .method(class, "forward")
            .or_else(|| self.method(class, "__call__"));
        match (method, self.external_base(class)) {
            (Some(closure), _) => self.invoke(&closure, Some(Value::Object(id)), arguments),
            (None, Some(layer)) => self.apply(&layer, &arguments),
            (None, None) => self.apply("call", &arguments),
        }
    }

    pub(super) fn instance(&mut self, class: usize, arguments: CallArguments) -> Value {
        let id = self.store(HeapObject::Object {
            class,
            attributes: Names::new(),
        });
        if let Some(closure) = self.method(class, "__init__") {
            // A new instance has no attributes that another branch set.
            let branch_depth = std::mem::take(&mut self.branch_depth);
            self.invoke(&closure, Some(Value::Object(id)), arguments);
            self.branch_depth = branch_depth;
        }
        Value::Object(id)
    }

    /// Runs a local function.
    pub(super) fn invoke(
        &mut self,
        closure: &Rc<Closure>,
        instance: Option<Value>,
        arguments: CallArguments,
    ) -> Value {
        if self.depth >= DEPTH_LIMIT || self.steps > STEP_LIMIT {
            return self.apply("call", &arguments);
        }
        let function = Rc::clone(&closure.function);
        let mut frame = Frame {
            closure: Some(Rc::clone(closure)),
            instance: instance.clone(),
            ..Frame::default()
        };
        let arguments = CallArguments {
            positional: instance.into_iter().chain(arguments.positional).collect(),
            named: arguments.named,
        };
        self.depth += 1;
        self.bind_parameters(&function, arguments, &mut frame);
        self.block(&function.body, &mut frame);
        self.depth -= 1;
        let mut returned = frame.returned.into_iter();
        let first = returned.next().unwrap_or(Value::None);
        returned.fold(first, |left, right| self.join(left, right))
    }

    fn bind_parameters(
        &mut self,
        function: &Function,
        arguments: CallArguments,
        frame: &mut Frame,
    ) {
        let mut positional = arguments.positional.into_iter();
        let mut named = arguments.named;
        for FunctionParameter {
            binding,
            name,
            default,
        } in &function.parameters
        {
            let value = match binding {
                Binding::Star => {
                    let rest = positional.by_ref().collect();
                    self.items(rest)
                }
                Binding::DoubleStar => {
                    Value::Map(self.store(HeapObject::Map(std::mem::take(&mut named))))
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

    /// Applies an operator to the tensors among its arguments. Without any the result is a constant.
    fn apply(&mut self, name: &str, arguments: &CallArguments) -> Value {
        let all: Vec<&Value> = arguments
            .positional
            .iter()
            .chain(
                arguments
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
        if operands.iter().all(|&node| node == Graph::CONSTANT) {
            return Value::Constant;
        }
        Value::Tensor(self.graph.apply(name, &operands))
    }

    fn call_external(&mut self, path: &str, mut arguments: CallArguments) -> Value {
        let name = last(path);
        let of_torch = path.starts_with("torch.");
        match name {
            _ if path == name => {
                if let Some(value) = self.builtin(name, &arguments) {
                    return value;
                }
            }
            "Parameter" | "Buffer" | "UninitializedParameter" => {
                return Value::Tensor(self.graph.leaf("weight", None));
            }
            "Sequential" => {
                let mut layers = Vec::new();
                for value in arguments.positional {
                    match value {
                        Value::Map(id) => {
                            let entries = self.stored_map(id).into_iter();
                            layers.extend(entries.map(|(_, layer)| layer));
                        }
                        // `OrderedDict([("a", layer)])`
                        Value::Items(id) => {
                            for pair in self.stored_items(id) {
                                layers.push(self.element(&pair, 1));
                            }
                        }
                        layer => layers.push(layer),
                    }
                }
                layers.truncate(ITEM_LIMIT);
                return Value::Chain(self.store(HeapObject::Items(layers)));
            }
            "ModuleList" | "ParameterList" | "ModuleDict" | "ParameterDict" | "OrderedDict" => {
                return match arguments.first() {
                    Some(value @ (Value::Items(_) | Value::Map(_))) => value.clone(),
                    Some(Value::Chain(id)) => Value::Items(*id),
                    _ if name.ends_with("Dict") => {
                        Value::Map(self.store(HeapObject::Map(Vec::new())))
                    }
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
        // `torch.compile(f)`, `nn.utils.weight_norm(layer)`, `partial(f, …)` return their first argument.
        if let Some(
            inner @ (Value::Function(_)
            | Value::Bound(..)
            | Value::Layer(_)
            | Value::Chain(_)
            | Value::Object(_)),
        ) = arguments.first()
        {
            let inner = inner.clone();
            if name != "checkpoint" {
                return inner;
            }
            let rest = arguments.positional.drain(1..).collect();
            return self.call(&inner, CallArguments::positional(rest));
        }
        if let (Some(Value::External(function)), "partial") = (arguments.first(), name) {
            return Value::External(Rc::clone(function));
        }
        let is_class = name.chars().next().is_some_and(char::is_uppercase);
        if is_class && !name.ends_with("Tensor") && name != "Size" {
            return Value::Layer(name.into());
        }
        match self.apply(name, &arguments) {
            Value::Constant if of_torch && makes_tensor(name) => {
                let rank = self.rank_given(&arguments);
                let label = creation(name);
                Value::Tensor(self.graph.leaf(&label, rank))
            }
            Value::Constant if !of_torch && !path.starts_with("math.") => Value::Unknown,
            value => value,
        }
    }

    /// The number of dimensions in `torch.rand(a, b)`, `torch.rand((a, b))`, `torch.randint(0, n, (a, b))`.
    fn rank_given(&self, arguments: &CallArguments) -> Option<u8> {
        let sizes = arguments
            .named
            .iter()
            .filter(|(name, _)| name == "size")
            .map(|(_, value)| value)
            .chain(&arguments.positional)
            .find_map(|value| match value {
                Value::Items(id) => Some(self.stored_items(*id).len()),
                _ => None,
            });
        let count = sizes.unwrap_or(arguments.positional.len());
        u8::try_from(count).ok()
    }

    /// Python's builtins; `None` for those that are treated like any function.
    fn builtin(&mut self, name: &str, arguments: &CallArguments) -> Option<Value> {
        Some(match name {
            "range" | "len" | "int" | "float" | "bool" | "str" | "isinstance" | "hasattr"
            | "print" | "id" | "type" | "repr" | "round" | "any" | "all" => Value::Constant,
            "list" | "tuple" | "reversed" | "sorted" | "iter" | "set" => {
                let mut elements = match arguments.first() {
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
                let value = arguments.at(0);
                self.element(&value, 0)
            }
            "dict" => Value::Map(self.store(HeapObject::Map(arguments.named.clone()))),
            "enumerate" => {
                let value = arguments.at(0);
                let elements = self.elements(&value);
                let pairs = elements
                    .into_iter()
                    .map(|element| self.items(vec![Value::Constant, element]))
                    .collect();
                self.items(pairs)
            }
            "zip" => {
                let columns: Vec<Vec<Value>> = arguments
                    .positional
                    .iter()
                    .map(|value| self.elements(value))
                    .collect();
                // The last known element stands for all after it.
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
                let value = arguments.at(0);
                if let Value::Tensor(_) = value {
                    return Some(self.apply("sum", arguments));
                }
                let elements = self.elements(&value);
                let mut elements = elements.into_iter();
                let first = elements.next().unwrap_or(Value::Constant);
                elements.fold(first, |left, right| self.binary("add", left, right))
            }
            "map" => {
                let (function, over) = (arguments.at(0), arguments.at(1));
                let elements = self.elements(&over);
                let values = elements
                    .into_iter()
                    .map(|element| self.call(&function, CallArguments::positional(vec![element])))
                    .collect();
                self.items(values)
            }
            "getattr" => match arguments.at(1) {
                Value::Text(name) => {
                    let owner = arguments.at(0);
                    self.attribute(&owner, &name)
                }
                _ => Value::Constant,
            },
            "setattr" => {
                if let Value::Text(name) = arguments.at(1) {
                    let owner = arguments.at(0);
                    self.set_attribute(&owner, &name, arguments.at(2));
                }
                Value::None
            }
            _ => return None,
        })
    }

    fn call_member(&mut self, owner: &Value, name: &str, arguments: CallArguments) -> Value {
        match owner {
            Value::Tensor(node) => self.call_on_tensor(*node, name, arguments),
            Value::Items(id) | Value::Chain(id) => self.call_on_items(owner, *id, name, &arguments),
            Value::Map(id) => self.call_on_map(*id, name, &arguments),
            Value::Object(id) => self.call_on_object(owner, *id, name, arguments),
            // `Function.apply(x)`: the first parameter of its `forward` is a context.
            Value::Class(class) if name == "apply" => match self.method(*class, "forward") {
                Some(closure) => {
                    let positional = [Value::Constant]
                        .into_iter()
                        .chain(arguments.positional)
                        .collect();
                    self.invoke(&closure, None, CallArguments::positional(positional))
                }
                None => self.apply("call", &arguments),
            },
            Value::Layer(layer) if name == "forward" || name == "__call__" => {
                let layer = Rc::clone(layer);
                self.apply(&layer, &arguments)
            }
            Value::Layer(_) => owner.clone(),
            Value::Function(_) | Value::Bound(..) if name == "__call__" => {
                self.call(owner, arguments)
            }
            _ => self.apply(name, &arguments),
        }
    }

    fn call_on_tensor(&mut self, node: NodeId, name: &str, arguments: CallArguments) -> Value {
        if is_metadata(name) {
            return Value::Constant;
        }
        let positional = [Value::Tensor(node)]
            .into_iter()
            .chain(arguments.positional)
            .collect();
        let arguments = CallArguments {
            positional,
            named: arguments.named,
        };
        self.apply(name, &arguments)
    }

    fn call_on_items(
        &mut self,
        owner: &Value,
        id: HeapId,
        name: &str,
        arguments: &CallArguments,
    ) -> Value {
        match name {
            "append" | "add" => self.push(id, arguments.at(0)),
            "insert" | "add_module" => self.push(id, arguments.at(1)),
            "extend" => {
                let more = arguments.at(0);
                for value in self.elements(&more) {
                    self.push(id, value);
                }
            }
            "pop" => return self.element(owner, 0),
            "forward" | "__call__" => {
                let arguments = CallArguments::positional(arguments.positional.clone());
                return self.call(owner, arguments);
            }
            "children" | "modules" | "copy" => return Value::Items(id),
            // `.to(device)`, `.eval()`
            _ => return owner.clone(),
        }
        Value::None
    }

    fn call_on_map(&mut self, id: HeapId, name: &str, arguments: &CallArguments) -> Value {
        let map = self.stored_map(id);
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
                let key = arguments.at(0);
                self.index(&Value::Map(id), &key, false)
            }
            "update" => {
                if let Value::Map(other) = arguments.at(0) {
                    for (key, value) in self.stored_map(other) {
                        self.insert(id, &Value::Text(key.into()), value);
                    }
                }
                Value::None
            }
            _ => Value::Map(id),
        }
    }

    fn call_on_object(
        &mut self,
        owner: &Value,
        id: HeapId,
        name: &str,
        arguments: CallArguments,
    ) -> Value {
        match name {
            "register_buffer" | "register_parameter" | "add_module" | "register_module" => {
                if let Value::Text(attribute) = arguments.at(0) {
                    let value = match arguments.at(1) {
                        Value::Tensor(_) => Value::Tensor(self.graph.leaf("weight", None)),
                        other => other,
                    };
                    self.set_attribute(owner, &attribute, value);
                }
                Value::None
            }
            "forward" | "__call__" => self.call_object(id, arguments),
            "eval" | "train" | "to" | "cuda" | "cpu" | "float" | "half" | "requires_grad_" => {
                owner.clone()
            }
            _ => self.apply("call", &arguments),
        }
    }
}

/// Whether a function of `torch` makes a tensor if its arguments hold none.
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
