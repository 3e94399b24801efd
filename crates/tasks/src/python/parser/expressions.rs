//! Expressions, by precedence climbing.

use std::rc::Rc;

use super::{DEPTH_LIMIT, Parser};
use crate::python::syntax::{Argument, Binding, Expression, Function, Statement};
use crate::python::tokens::Token;

/// Operators with two sides, how tightly they bind, and what they are called.
pub(super) const BINARY: [(&str, u8, &str); 21] = [
    ("or", 1, "or"),
    ("and", 2, "and"),
    ("<", 4, "lt"),
    (">", 4, "gt"),
    ("<=", 4, "le"),
    (">=", 4, "ge"),
    ("==", 4, "eq"),
    ("!=", 4, "ne"),
    ("|", 5, "or"),
    ("^", 6, "xor"),
    ("&", 7, "and"),
    ("<<", 8, "lshift"),
    (">>", 8, "rshift"),
    ("+", 9, "add"),
    ("-", 9, "sub"),
    ("*", 10, "mul"),
    ("/", 10, "div"),
    ("//", 10, "floordiv"),
    ("%", 10, "remainder"),
    ("@", 10, "matmul"),
    ("**", 12, "pow"),
];
const NOT: u8 = 3;
pub(super) const COMPARISON: u8 = 4;
const SIGN: u8 = 11;
const POWER: u8 = 12;

/// An expression and how deep its tree is.
pub(super) struct Tree {
    pub(super) expression: Expression,
    depth: usize,
}

impl Tree {
    fn leaf(expression: Expression) -> Self {
        Self {
            expression,
            depth: 1,
        }
    }

    /// One more level around what is `depth` deep.
    fn above(depth: usize, expression: Expression) -> Self {
        if depth >= DEPTH_LIMIT {
            return Self::leaf(Expression::Unknown);
        }
        Self {
            expression,
            depth: depth + 1,
        }
    }
}

impl Parser {
    /// One or several with commas between, which is a tuple.
    pub(super) fn expressions(&mut self) -> Expression {
        let first = self.tree();
        self.tuple_from(first).expression
    }

    pub(super) fn tuple_from(&mut self, first: Tree) -> Tree {
        if !self.is_mark(",") {
            return first;
        }
        let mut depth = first.depth;
        let mut all = vec![first.expression];
        while self.take_mark(",") {
            let ends = matches!(self.peek(), Some(Token::Mark(")" | "]" | "}" | "=" | ":")))
                || self.at_line_end();
            if ends {
                break;
            }
            let next = self.tree();
            depth = depth.max(next.depth);
            all.push(next.expression);
        }
        Tree::above(depth, Expression::Sequence(all))
    }

    /// `for TARGETS in`: no comparison, or the `in` would be one.
    pub(super) fn targets(&mut self) -> Expression {
        let first = self.postfix();
        if !self.is_mark(",") {
            return first.expression;
        }
        let mut depth = first.depth;
        let mut all = vec![first.expression];
        while self.take_mark(",") && !self.is_word("in") {
            let next = self.postfix();
            depth = depth.max(next.depth);
            all.push(next.expression);
        }
        Tree::above(depth, Expression::Sequence(all)).expression
    }

    pub(super) fn expression(&mut self) -> Expression {
        self.tree().expression
    }

    pub(super) fn tree(&mut self) -> Tree {
        self.nested(Self::whole)
    }

    /// Binary operators, `a if b else c`, `lambda`, `:=`.
    pub(super) fn whole(&mut self) -> Tree {
        if self.take_word("lambda") {
            let parameters = self.parameters(":");
            self.take_mark(":");
            let body = self.tree();
            let function = Function {
                name: String::new(),
                parameters,
                body: vec![Statement::Return(Some(body.expression))],
                is_static: true,
            };
            return Tree::above(body.depth, Expression::Lambda(Rc::new(function)));
        }
        if self.take_word("yield") {
            self.take_word("from");
            if self.at_line_end() {
                return Tree::leaf(Expression::Unknown);
            }
            return self.tree();
        }
        let then = self.binary(0);
        if self.take_mark(":=") {
            let value = self.tree();
            let Expression::Name(name) = then.expression else {
                return value;
            };
            return Tree::above(
                value.depth,
                Expression::Assigned(name, Box::new(value.expression)),
            );
        }
        if !self.take_word("if") {
            return then;
        }
        let test = self.binary(0);
        if !self.take_word("else") {
            return then;
        }
        let otherwise = self.tree();
        let depth = then.depth.max(test.depth).max(otherwise.depth);
        Tree::above(
            depth,
            Expression::Conditional {
                then: Box::new(then.expression),
                otherwise: Box::new(otherwise.expression),
            },
        )
    }

    /// Precedence climbing: operators that bind at least as tightly as `least`.
    pub(super) fn binary(&mut self, least: u8) -> Tree {
        let mut left = self.unary();
        while let Some((binding, name)) = self.operator() {
            if binding < least {
                break;
            }
            self.at += 1;
            // `not in`, `is not`
            let _ = self.take_word("in") || self.take_word("not");
            // Only `**` binds to the right.
            let right = self.nested(|parser| {
                parser.binary(if binding == POWER {
                    binding
                } else {
                    binding + 1
                })
            });
            let depth = left.depth.max(right.depth);
            left = Tree::above(
                depth,
                Expression::Binary(name, Box::new(left.expression), Box::new(right.expression)),
            );
        }
        left
    }

    pub(super) fn nested(&mut self, read: impl FnOnce(&mut Self) -> Tree) -> Tree {
        if self.depth >= DEPTH_LIMIT {
            self.at += usize::from(!self.at_line_end());
            return Tree::leaf(Expression::Unknown);
        }
        self.depth += 1;
        let tree = read(self);
        self.depth -= 1;
        tree
    }

    pub(super) fn operator(&self) -> Option<(u8, &'static str)> {
        let text = match self.peek()? {
            Token::Mark(mark) => mark,
            Token::Word(word) if word == "in" || word == "is" || word == "not" => {
                return Some((COMPARISON, "eq"));
            }
            Token::Word(word) => word.as_str(),
            _ => return None,
        };
        BINARY
            .iter()
            .find(|(mark, ..)| *mark == text)
            .map(|(_, binding, name)| (*binding, *name))
    }

    pub(super) fn unary(&mut self) -> Tree {
        let (name, binding) = match self.peek() {
            Some(Token::Mark("-")) => ("neg", SIGN),
            Some(Token::Mark("+")) => ("pos", SIGN),
            Some(Token::Mark("~")) => ("not", SIGN),
            Some(Token::Word(word)) if word == "not" => ("not", NOT),
            Some(Token::Word(word)) if word == "await" => ("pos", SIGN),
            Some(Token::Mark("*" | "**")) => {
                self.at += 1;
                let inner = self.nested(|parser| parser.binary(COMPARISON));
                return Tree::above(inner.depth, Expression::Star(Box::new(inner.expression)));
            }
            _ => return self.postfix(),
        };
        self.at += 1;
        let inner = self.nested(|parser| parser.binary(binding));
        if name == "pos" {
            return inner;
        }
        Tree::above(
            inner.depth,
            Expression::Unary(name, Box::new(inner.expression)),
        )
    }

    pub(super) fn postfix(&mut self) -> Tree {
        let mut left = self.atom();
        loop {
            if self.take_mark(".") {
                let Some(name) = self.take_name() else {
                    return left;
                };
                left = Tree::above(
                    left.depth,
                    Expression::Attribute(Box::new(left.expression), name),
                );
            } else if self.take_mark("(") {
                let (arguments, depth) = self.arguments();
                left = Tree::above(
                    left.depth.max(depth),
                    Expression::Call(Box::new(left.expression), arguments),
                );
            } else if self.take_mark("[") {
                let index = self.index();
                self.take_mark("]");
                left = Tree::above(
                    left.depth.max(index.depth),
                    Expression::Index(Box::new(left.expression), Box::new(index.expression)),
                );
            } else {
                return left;
            }
        }
    }

    /// Up to and with the `)`.
    pub(super) fn arguments(&mut self) -> (Vec<Argument>, usize) {
        let mut arguments = Vec::new();
        let mut depth = 0;
        while !self.is_mark(")") && !self.at_line_end() {
            let binding = if self.take_mark("**") {
                Binding::DoubleStar
            } else if self.take_mark("*") {
                Binding::Star
            } else if let (Some(Token::Word(name)), Some(Token::Mark("="))) =
                (self.peek(), self.tokens.get(self.at + 1))
            {
                let name = name.clone();
                self.at += 2;
                Binding::Named(name)
            } else {
                Binding::Positional
            };
            let value = self.tree();
            let value = self.comprehension(value);
            depth = depth.max(value.depth);
            arguments.push(Argument {
                binding,
                value: value.expression,
            });
            if !self.take_mark(",") && !self.is_mark(")") && !self.at_line_end() {
                self.at += 1;
            }
        }
        self.take_mark(")");
        (arguments, depth)
    }

    /// What stands in `[ ]` after a value. Slices are constants: where they begin and end is a matter of sizes.
    pub(super) fn index(&mut self) -> Tree {
        let mut items = Vec::new();
        let mut depth = 0;
        let mut several = false;
        while !self.is_mark("]") && !self.at_line_end() {
            let mut is_slice = false;
            let mut item = Tree::leaf(Expression::Constant);
            while !self.is_mark(",") && !self.is_mark("]") && !self.at_line_end() {
                if self.take_mark(":") {
                    is_slice = true;
                } else {
                    let before = self.at;
                    item = self.tree();
                    self.at = self.at.max(before + 1);
                }
            }
            if is_slice {
                item = Tree::leaf(Expression::Constant);
                several = true;
            }
            depth = depth.max(item.depth);
            items.push(item.expression);
            several |= self.take_mark(",");
        }
        match (several, items.pop()) {
            (false, Some(only)) if items.is_empty() => Tree {
                expression: only,
                depth,
            },
            (_, last) => {
                items.extend(last);
                Tree::above(depth, Expression::Sequence(items))
            }
        }
    }

    /// `element for a in b if c …`, where that follows.
    pub(super) fn comprehension(&mut self, element: Tree) -> Tree {
        self.take_word("async");
        if !self.is_word("for") {
            return element;
        }
        let mut depth = element.depth;
        let mut loops = Vec::new();
        loop {
            if self.take_word("for") {
                let target = self.targets();
                self.take_word("in");
                let over = self.nested(|parser| parser.binary(1));
                depth = depth.max(over.depth);
                loops.push((target, over.expression));
            } else if self.take_word("if") {
                let test = self.nested(|parser| parser.binary(1));
                depth = depth.max(test.depth);
            } else {
                break;
            }
        }
        Tree::above(
            depth,
            Expression::Comprehension {
                element: Box::new(element.expression),
                loops,
            },
        )
    }

    pub(super) fn atom(&mut self) -> Tree {
        let token = match self.peek() {
            None | Some(Token::LineEnd | Token::Indent | Token::Dedent) => {
                return Tree::leaf(Expression::Unknown);
            }
            Some(token) => token.clone(),
        };
        match token {
            Token::Number | Token::Mark("...") => {
                self.at += 1;
                Tree::leaf(Expression::Constant)
            }
            Token::Text(text) => {
                self.at += 1;
                // Neighbours are one string.
                while matches!(self.peek(), Some(Token::Text(_))) {
                    self.at += 1;
                }
                Tree::leaf(Expression::Text(text))
            }
            Token::Word(word) => {
                // Words that end an expression are not eaten by it.
                if is_connective(&word) {
                    return Tree::leaf(Expression::Unknown);
                }
                self.at += 1;
                Tree::leaf(match word.as_str() {
                    "None" => Expression::None,
                    "True" | "False" => Expression::Constant,
                    _ => Expression::Name(word),
                })
            }
            Token::Mark("(") => {
                self.at += 1;
                self.sequence(")")
            }
            Token::Mark("[") => {
                self.at += 1;
                self.sequence("]")
            }
            Token::Mark("{") => {
                self.at += 1;
                self.braces()
            }
            _ => Tree::leaf(Expression::Unknown),
        }
    }

    /// After `(` or `[`: one thing in parentheses is itself.
    pub(super) fn sequence(&mut self, end: &'static str) -> Tree {
        let mut items = Vec::new();
        let mut depth = 0;
        let mut is_tuple = end == "]";
        while !self.is_mark(end) && !self.at_line_end() {
            let before = self.at;
            let item = self.tree();
            let is_element = self.is_word("for") || self.is_word("async");
            let item = self.comprehension(item);
            if is_element {
                self.take_mark(end);
                return item;
            }
            depth = depth.max(item.depth);
            items.push(item.expression);
            is_tuple |= self.take_mark(",");
            self.at = self.at.max(before + 1);
        }
        self.take_mark(end);
        match items.pop() {
            Some(only) if items.is_empty() && !is_tuple => Tree {
                expression: only,
                depth,
            },
            last => {
                items.extend(last);
                Tree::above(depth, Expression::Sequence(items))
            }
        }
    }

    /// After `{`: a map or a set.
    pub(super) fn braces(&mut self) -> Tree {
        let mut items = Vec::new();
        let mut depth = 0;
        while !self.is_mark("}") && !self.at_line_end() {
            let before = self.at;
            let is_rest = self.take_mark("**");
            let first = self.tree();
            depth = depth.max(first.depth);
            if self.take_mark(":") {
                let value = self.tree();
                if self.is_word("for") {
                    let value = self.comprehension(value);
                    self.take_mark("}");
                    return value;
                }
                depth = depth.max(value.depth);
                items.push((Some(first.expression), value.expression));
            } else if self.is_word("for") {
                let first = self.comprehension(first);
                self.take_mark("}");
                return first;
            } else {
                items.push(if is_rest {
                    (None, first.expression)
                } else {
                    (Some(Expression::Constant), first.expression)
                });
            }
            self.take_mark(",");
            self.at = self.at.max(before + 1);
        }
        self.take_mark("}");
        Tree::above(depth, Expression::Map(items))
    }
}

fn is_connective(word: &str) -> bool {
    [
        "for", "in", "if", "else", "is", "and", "or", "not", "as", "elif",
    ]
    .contains(&word)
}
