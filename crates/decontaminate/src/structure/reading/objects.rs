//! Attributes, classes, and what is kept on the heap.

use std::rc::Rc;

use super::{ITEM_LIMIT, Reader, last};
use crate::structure::operators::is_metadata;
use crate::structure::value::{Cell, Closure, Stored, Value};

impl Reader {
    pub(super) fn attribute(&mut self, owner: &Value, name: &str) -> Value {
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
            // `nn.ModuleDict`
            Value::Map(cell) => {
                let entries = self.stored_map(*cell);
                match entries.into_iter().find(|(key, _)| key == name) {
                    Some((_, value)) => value,
                    None => Value::Member(Box::new(owner.clone()), name.into()),
                }
            }
            Value::None => Value::Constant,
            _ => Value::Member(Box::new(owner.clone()), name.into()),
        }
    }

    pub(super) fn object_attribute(&mut self, cell: Cell, name: &str) -> Value {
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

    pub(super) fn super_attribute(&mut self, cell: Cell, class: usize, name: &str) -> Value {
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

    pub(super) fn bases(&self, class: usize) -> Vec<Value> {
        self.classes
            .get(class)
            .map(|blueprint| blueprint.bases.clone())
            .unwrap_or_default()
    }

    /// A member of a class or of those it is derived from, in order. A class comes after its bases, so this ends.
    pub(super) fn member(&self, class: usize, name: &str) -> Option<Value> {
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

    pub(super) fn method(&self, class: usize, name: &str) -> Option<Rc<Closure>> {
        match self.member(class, name)? {
            Value::Function(closure) => Some(closure),
            _ => None,
        }
    }

    /// The module from elsewhere that a class is derived from: `nn.ReLU`, but not `nn.Module` itself.
    pub(super) fn external_base(&self, class: usize) -> Option<Rc<str>> {
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

    pub(super) fn store(&mut self, stored: Stored) -> Cell {
        self.heap.push(stored);
        self.heap.len() - 1
    }

    pub(super) fn items(&mut self, mut values: Vec<Value>) -> Value {
        values.truncate(ITEM_LIMIT);
        Value::Items(self.store(Stored::Items(values)))
    }

    pub(super) fn stored_items(&self, cell: Cell) -> Vec<Value> {
        match self.heap.get(cell) {
            Some(Stored::Items(items)) => items.clone(),
            _ => Vec::new(),
        }
    }

    pub(super) fn stored_map(&self, cell: Cell) -> Vec<(String, Value)> {
        match self.heap.get(cell) {
            Some(Stored::Map(entries)) => entries.clone(),
            _ => Vec::new(),
        }
    }

    pub(super) fn push(&mut self, cell: Cell, value: Value) {
        if let Some(Stored::Items(items)) = self.heap.get_mut(cell)
            && items.len() < ITEM_LIMIT
        {
            items.push(value);
        }
    }

    pub(super) fn insert(&mut self, cell: Cell, key: &Value, value: Value) {
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
