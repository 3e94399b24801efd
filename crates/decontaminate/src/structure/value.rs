use std::collections::HashMap;
use std::rc::Rc;

use super::graph::NodeId;
use warpsmith_tasks::python::Function;

/// What a name stands for during abstract interpretation.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    None,
    /// A number, or anything else that neither is nor holds a tensor or an operator.
    Constant,
    /// The result of a foreign function without tensor arguments. It may be a tensor.
    Unknown,
    Text(Rc<str>),
    Tensor(NodeId),
    /// An imported thing by its full path, such as `torch.nn.functional.relu`, or a bare builtin.
    External(Rc<str>),
    /// An instance of an imported module, by the name of its class.
    Layer(Rc<str>),
    /// `nn.Sequential`: its items are called one after the other.
    Chain(HeapId),
    Items(HeapId),
    Map(HeapId),
    Object(HeapId),
    Class(usize),
    Function(Rc<Closure>),
    Bound(Box<Value>, Rc<Closure>),
    /// `value.name`, not yet called.
    Member(Box<Value>, Rc<str>),
    /// `super()`: the instance, and the class whose bases are searched.
    Super(HeapId, usize),
}

/// A place on the heap. All names of an object see its changes.
pub(super) type HeapId = usize;

#[derive(Debug)]
pub(super) enum HeapObject {
    Items(Vec<Value>),
    /// In the order of insertion. Of several entries with one key the first counts.
    Map(Vec<(String, Value)>),
    Object {
        class: usize,
        attributes: HashMap<String, Value>,
    },
}

pub(super) type Names = HashMap<String, Value>;

#[derive(Debug)]
pub(super) struct Closure {
    pub(super) function: Rc<Function>,
    /// The names of the enclosing function.
    pub(super) captured: Names,
    /// The class, if it is a method.
    pub(super) class: Option<usize>,
}

/// Compared by identity.
impl PartialEq for Closure {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

#[derive(Debug)]
pub(super) struct ClassDefinition {
    pub(super) bases: Vec<Value>,
    pub(super) members: Names,
}

/// Evaluated arguments of a call.
#[derive(Debug, Default)]
pub(super) struct CallArguments {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(String, Value)>,
}

impl CallArguments {
    pub(super) fn positional(values: Vec<Value>) -> Self {
        Self {
            positional: values,
            named: Vec::new(),
        }
    }

    pub(super) fn first(&self) -> Option<&Value> {
        self.positional
            .first()
            .or_else(|| self.named.first().map(|(_, value)| value))
    }

    pub(super) fn at(&self, position: usize) -> Value {
        self.positional
            .get(position)
            .cloned()
            .unwrap_or(Value::Constant)
    }
}
