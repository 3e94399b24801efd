//! Attributes, classes and the heap.

use std::rc::Rc;

use super::{ITEM_LIMIT, Interpreter, last};
use crate::structure::operators::is_metadata;
use crate::structure::value::{Closure, HeapId, HeapObject, Value};

impl Interpreter {
    pub(super) fn attribute(&mut self, owner: &Value, name: &str) -> Value {
        match owner {
            Value::External(path) => Value::External(format!("{path}.{name}").into()),
            Value::Object(id) => self.object_attribute(*id, name),
            Value::Super(id, class) => self.super_attribute(*id, *class, name),
            Value::Class(class) => self
                .member(*class, name)
                .unwrap_or_else(|| Value::Member(Box::new(owner.clone()), name.into())),
            Value::Tensor(node) => match name {
                "T" | "mT" | "H" | "mH" => Value::Tensor(self.graph.apply("permute", &[*node])),
                "data" | "grad" | "real" | "values" => Value::Tensor(*node),
                "indices" => Value::Tensor(self.graph.apply("part", &[*node])),
                // Called or not, it is no tensor.
                _ if is_metadata(name) => Value::Constant,
                _ => Value::Member(Box::new(owner.clone()), name.into()),
            },
            Value::Layer(_) if name.contains("weight") || name.contains("bias") => {
                Value::Tensor(self.graph.leaf("weight", None))
            }
            // `nn.ModuleDict`
            Value::Map(id) => {
                let entries = self.stored_map(*id);
                match entries.into_iter().find(|(key, _)| key == name) {
                    Some((_, value)) => value,
                    None => Value::Member(Box::new(owner.clone()), name.into()),
                }
            }
            Value::None => Value::Constant,
            _ => Value::Member(Box::new(owner.clone()), name.into()),
        }
    }

    pub(super) fn object_attribute(&mut self, id: HeapId, name: &str) -> Value {
        let Some(HeapObject::Object { class, attributes }) = self.heap.get(id) else {
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
            Some(Value::Function(closure)) => Value::Bound(Box::new(Value::Object(id)), closure),
            Some(value) => value,
            None => Value::Member(Box::new(Value::Object(id)), name.into()),
        }
    }

    pub(super) fn super_attribute(&mut self, id: HeapId, class: usize, name: &str) -> Value {
        let bases = self.bases(class);
        let found = bases.into_iter().find_map(|base| match base {
            Value::Class(base) => self.member(base, name),
            _ => None,
        });
        match found {
            Some(Value::Function(closure)) => Value::Bound(Box::new(Value::Object(id)), closure),
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
            .map(|definition| definition.bases.clone())
            .unwrap_or_default()
    }

    /// A member of a class or of its bases, in order. Bases are defined before the class, so this ends.
    pub(super) fn member(&self, class: usize, name: &str) -> Option<Value> {
        let mut open = vec![class];
        while let Some(class) = open.pop() {
            let definition = self.classes.get(class)?;
            if let Some(value) = definition.members.get(name) {
                return Some(value.clone());
            }
            open.extend(definition.bases.iter().rev().filter_map(|base| match base {
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

    /// The imported module that a class is derived from: `nn.ReLU`, but not `nn.Module` itself.
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

    pub(super) fn store(&mut self, stored: HeapObject) -> HeapId {
        self.heap.push(stored);
        self.heap.len() - 1
    }

    pub(super) fn items(&mut self, mut values: Vec<Value>) -> Value {
        values.truncate(ITEM_LIMIT);
        Value::Items(self.store(HeapObject::Items(values)))
    }

    pub(super) fn stored_items(&self, id: HeapId) -> Vec<Value> {
        match self.heap.get(id) {
            Some(HeapObject::Items(items)) => items.clone(),
            _ => Vec::new(),
        }
    }

    pub(super) fn stored_map(&self, id: HeapId) -> Vec<(String, Value)> {
        match self.heap.get(id) {
            Some(HeapObject::Map(entries)) => entries.clone(),
            _ => Vec::new(),
        }
    }

    pub(super) fn push(&mut self, id: HeapId, value: Value) {
        if let Some(HeapObject::Items(items)) = self.heap.get_mut(id)
            && items.len() < ITEM_LIMIT
        {
            items.push(value);
        }
    }

    pub(super) fn insert(&mut self, id: HeapId, key: &Value, value: Value) {
        if let Some(HeapObject::Map(entries)) = self.heap.get_mut(id)
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
