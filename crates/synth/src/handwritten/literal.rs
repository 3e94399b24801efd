//! Numbers and names as Python's source has them.

/// An extent and the word for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) name: &'static str,
    pub(super) length: u64,
}

pub(super) fn extent(name: &'static str, length: u64) -> Extent {
    Extent { name, length }
}

/// A value of Python that a module is made with.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Literal {
    Int(i64),
    Float(f64),
    Bool(bool),
    Tuple(Vec<i64>),
}

impl Literal {
    pub(super) fn source(&self) -> String {
        match self {
            Self::Int(number) => number.to_string(),
            Self::Float(number) => float(*number),
            Self::Bool(true) => "True".to_owned(),
            Self::Bool(false) => "False".to_owned(),
            Self::Tuple(numbers) => tuple(numbers),
        }
    }

    pub(super) fn annotation(&self) -> &'static str {
        match self {
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Bool(_) => "bool",
            Self::Tuple(_) => "tuple",
        }
    }
}

impl From<u64> for Literal {
    fn from(number: u64) -> Self {
        Self::Int(number.cast_signed())
    }
}

pub(super) fn float(number: f64) -> String {
    if number != 0.0 && number.abs() < 1e-3 {
        // As people write an epsilon: 1e-05 is what Python prints, 1e-5 what is typed.
        return format!("{number:e}");
    }
    let text = number.to_string();
    if text.contains('.') {
        text
    } else {
        text + ".0"
    }
}

pub(super) fn tuple<T: ToString>(numbers: &[T]) -> String {
    let items: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    let comma = if items.len() == 1 { "," } else { "" };
    format!("({}{comma})", items.join(", "))
}

/// Arguments without their names, as far as they are in the order of the layer's own.
pub(super) fn by_place(given: &mut [String], transposed: bool) {
    let order: &[&str] = if transposed {
        &["kernel_size=", "stride=", "padding=", "output_padding="]
    } else {
        &["kernel_size=", "stride=", "padding=", "dilation="]
    };
    for (argument, name) in given.iter_mut().skip(2).zip(order) {
        match argument.strip_prefix(name) {
            Some(value) => *argument = value.to_owned(),
            None if argument.contains('=') => break,
            None => {}
        }
    }
}
