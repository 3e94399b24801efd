use std::collections::HashMap;
use std::rc::Rc;

use super::graph::Place;
use warpsmith_tasks::python::Function;

/// What a name stands for while a module is read.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    None,
    /// A number, and whatever else is no tensor, no operator and holds none.
    Constant,
    /// What somebody else's function returned: no tensor that we know of, but it may be one.
    Unknown,
    Text(Rc<str>),
    Tensor(Place),
    /// Something from elsewhere by its full path: `torch.nn.functional.relu`, or a bare builtin.
    External(Rc<str>),
    /// An instance of a module from elsewhere, by the name of its class.
    Layer(Rc<str>),
    /// What is called one after the other: `nn.Sequential`.
    Chain(Cell),
    Items(Cell),
    Map(Cell),
    Object(Cell),
    Class(usize),
    Function(Rc<Closure>),
    Bound(Box<Value>, Rc<Closure>),
    /// `value.name`, not yet called.
    Member(Box<Value>, Rc<str>),
    /// `super()`: the instance, and the class whose bases are meant.
    Super(Cell, usize),
}

/// A place on the heap: what is changed by one name is changed for all.
pub(super) type Cell = usize;

#[derive(Debug)]
pub(super) enum Stored {
    Items(Vec<Value>),
    /// In the order of writing; the first of several with one name counts.
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
    /// What the function around it knew.
    pub(super) around: Names,
    /// The class it is a method of.
    pub(super) class: Option<usize>,
}

/// Two closures are the same where they are one.
impl PartialEq for Closure {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

#[derive(Debug)]
pub(super) struct Blueprint {
    pub(super) bases: Vec<Value>,
    pub(super) members: Names,
}

/// Arguments of a call.
#[derive(Debug, Default)]
pub(super) struct Given {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(String, Value)>,
}

impl Given {
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
