//! As much of Python's grammar as modules are written in, read without running anything.
//!
//! Nothing here fails: what is not understood becomes [`Expression::Unknown`] or is skipped to the end of its line. Whatever
//! the text, trees stay shallower than `parser::DEPTH_LIMIT`, so that reading one never exhausts the stack.

mod parser;
mod syntax;
mod tokens;

pub use parser::parse;
pub use syntax::{Argument, Binding, Class, Expression, Function, Statement};
pub use tokens::{Token, tokens};
