//! Conversion of expressions.

use std::rc::Rc;

use tree_sitter::Node;

use super::syntax::{Argument, Binding, Expression, Function, FunctionParameter, Statement};
use super::{Converter, DEPTH_LIMIT, children, fields, has_comma, operands};

impl Converter<'_> {
    /// `depth` counts the blocks and expressions around the node.
    pub(super) fn expression(&self, node: Node<'_>, depth: usize) -> Expression {
        let value = self.without_star(node, depth);
        if self.has_star(node) {
            Expression::Star(Box::new(value))
        } else {
            value
        }
    }

    fn without_star(&self, node: Node<'_>, depth: usize) -> Expression {
        if depth >= DEPTH_LIMIT || node.is_missing() {
            return Expression::Unknown;
        }
        let depth = depth + 1;
        let boxed = |name: &str| Box::new(self.field(node, name, depth));
        match node.kind() {
            "identifier" => Expression::Name(self.text(node).to_owned()),
            "none" => Expression::None,
            "integer" | "float" | "true" | "false" | "ellipsis" => Expression::Constant,
            "string" => Expression::Text(self.string(node)),
            // Adjacent strings are known by the first.
            "concatenated_string"
            | "parenthesized_expression"
            | "await"
            | "yield"
            | "as_pattern_target"
            | "list_splat"
            | "list_splat_pattern"
            | "parenthesized_list_splat" => self.first(node, depth),
            "attribute" => match node.child_by_field_name("attribute") {
                Some(name) => Expression::Attribute(boxed("object"), self.text(name).to_owned()),
                None => self.field(node, "object", depth),
            },
            "call" => Expression::Call(boxed("function"), self.arguments(node, depth)),
            "subscript" => Expression::Index(boxed("value"), Box::new(self.index(node, depth))),
            "binary_operator" | "boolean_operator" => {
                let token = node.child_by_field_name("operator");
                match token.and_then(|token| operator(token.kind())) {
                    Some(operator) => Expression::Binary(operator, boxed("left"), boxed("right")),
                    None => Expression::Unknown,
                }
            }
            "comparison_operator" => self.comparison(node, depth),
            "not_operator" => Expression::Unary("not", boxed("argument")),
            "unary_operator" => {
                match node.child_by_field_name("operator").map(|sign| sign.kind()) {
                    Some("-") => Expression::Unary("neg", boxed("argument")),
                    Some("~") => Expression::Unary("not", boxed("argument")),
                    _ => self.field(node, "argument", depth),
                }
            }
            "conditional_expression" => match operands(node)[..] {
                [then, _, otherwise] => Expression::Conditional {
                    then: Box::new(self.child(node, then, depth)),
                    otherwise: Box::new(self.expression(otherwise, depth)),
                },
                _ => self.first(node, depth),
            },
            "lambda" => Expression::Lambda(Rc::new(Function {
                name: String::new(),
                parameters: self.parameters(node, depth),
                body: vec![Statement::Return(Some(self.field(node, "body", depth)))],
                is_static: true,
            })),
            "named_expression" => match node.child_by_field_name("name") {
                Some(name) => Expression::Assigned(self.text(name).to_owned(), boxed("value")),
                None => self.field(node, "value", depth),
            },
            // Brackets around one target.
            "tuple_pattern" if !has_comma(node) => self.first(node, depth),
            "list" | "tuple" | "expression_list" | "pattern_list" | "tuple_pattern"
            | "list_pattern" => Expression::Sequence(self.expressions(&operands(node), depth)),
            "dictionary" | "set" => Expression::Map(self.entries(node, depth)),
            "list_comprehension"
            | "set_comprehension"
            | "dictionary_comprehension"
            | "generator_expression" => self.comprehension(node, depth),
            _ => Expression::Unknown,
        }
    }

    pub(super) fn expressions(&self, nodes: &[Node<'_>], depth: usize) -> Vec<Expression> {
        let nodes = nodes.iter();
        nodes.map(|node| self.expression(*node, depth)).collect()
    }

    pub(super) fn field(&self, node: Node<'_>, name: &str, depth: usize) -> Expression {
        match node.child_by_field_name(name) {
            Some(child) => self.child(node, child, depth),
            None => Expression::Unknown,
        }
    }

    fn first(&self, node: Node<'_>, depth: usize) -> Expression {
        match operands(node).first() {
            Some(first) => self.child(node, *first, depth),
            None => Expression::Unknown,
        }
    }

    /// The grammar reads `*a.b` as `(*a).b`. So a star belongs to the outermost of all nodes that begin with it.
    fn child(&self, node: Node<'_>, child: Node<'_>, depth: usize) -> Expression {
        if child.start_byte() == node.start_byte() {
            self.without_star(child, depth)
        } else {
            self.expression(child, depth)
        }
    }

    fn has_star(&self, node: Node<'_>) -> bool {
        // Lists without brackets begin with their first element.
        let is_list = matches!(node.kind(), "expression_list" | "pattern_list");
        !is_list && self.source.as_bytes().get(node.start_byte()) == Some(&b'*')
    }

    /// What stands between the quotes. The closing quotes are looked for in the text: in raw strings that end in an escape the
    /// grammar's own token for them begins too early.
    fn string(&self, node: Node<'_>) -> String {
        let opening = children(node).first().copied();
        let length = opening.map_or(0, |opening| opening.end_byte() - node.start_byte());
        let (opening, rest) = self.text(node).split_at_checked(length).unwrap_or_default();
        let quotes = opening.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
        rest.strip_suffix(quotes).unwrap_or(rest).to_owned()
    }

    /// `a < b < c` is converted as `(a < b) < c`.
    fn comparison(&self, node: Node<'_>, depth: usize) -> Expression {
        let mut operators = fields(node, "operators").into_iter();
        let mut operands = operands(node).into_iter();
        let mut left = match operands.next() {
            Some(first) => self.child(node, first, depth),
            None => Expression::Unknown,
        };
        // A chain becomes a tree as deep as it is long.
        for operand in operands.take(DEPTH_LIMIT.saturating_sub(depth)) {
            let operator = operators.next().and_then(|token| operator(token.kind()));
            let right = self.expression(operand, depth);
            left = Expression::Binary(operator.unwrap_or("eq"), left.into(), right.into());
        }
        left
    }

    fn arguments(&self, call: Node<'_>, depth: usize) -> Vec<Argument> {
        let nodes = match call.child_by_field_name("arguments") {
            Some(list) if list.kind() == "argument_list" => operands(list),
            // `f(x for x in y)`
            Some(generator) => vec![generator],
            None => Vec::new(),
        };
        let nodes = nodes.into_iter();
        nodes.map(|node| self.argument(node, depth)).collect()
    }

    pub(super) fn argument(&self, node: Node<'_>, depth: usize) -> Argument {
        let (binding, value) = match node.kind() {
            "keyword_argument" => {
                let name = node.child_by_field_name("name");
                let name = name.map_or("", |name| self.text(name));
                let value = self.field(node, "value", depth);
                (Binding::Named(name.to_owned()), value)
            }
            "dictionary_splat" => (Binding::DoubleStar, self.first(node, depth)),
            _ if self.has_star(node) => (Binding::Star, self.without_star(node, depth)),
            _ => (Binding::Positional, self.expression(node, depth)),
        };
        Argument { binding, value }
    }

    /// What stands in `[ ]` after a value. Slices are constants: where they begin and end is a matter of sizes.
    fn index(&self, node: Node<'_>, depth: usize) -> Expression {
        let items = fields(node, "subscript");
        let is_slice = |item: &Node<'_>| item.kind() == "slice";
        let is_sequence = has_comma(node) || items.iter().any(is_slice);
        let converted = |item: &Node<'_>| {
            if is_slice(item) {
                Expression::Constant
            } else {
                self.expression(*item, depth)
            }
        };
        match &items[..] {
            [only] if !is_sequence => converted(only),
            items => Expression::Sequence(items.iter().map(converted).collect()),
        }
    }

    fn entries(&self, node: Node<'_>, depth: usize) -> Vec<(Option<Expression>, Expression)> {
        let entry = |node: Node<'_>| match node.kind() {
            "pair" => {
                let (key, value) = (
                    self.field(node, "key", depth),
                    self.field(node, "value", depth),
                );
                (Some(key), value)
            }
            "dictionary_splat" => (None, self.first(node, depth)),
            _ => (Some(Expression::Constant), self.expression(node, depth)),
        };
        operands(node).into_iter().map(entry).collect()
    }

    fn comprehension(&self, node: Node<'_>, depth: usize) -> Expression {
        let element = match node.child_by_field_name("body") {
            Some(pair) if pair.kind() == "pair" => self.field(pair, "value", depth),
            Some(body) => self.expression(body, depth),
            None => Expression::Unknown,
        };
        let clauses = operands(node).into_iter();
        let loops = clauses
            .filter(|clause| clause.kind() == "for_in_clause")
            .map(|clause| {
                let target = self.field(clause, "left", depth);
                (target, self.field(clause, "right", depth))
            });
        Expression::Comprehension {
            element: Box::new(element),
            loops: loops.collect(),
        }
    }

    pub(super) fn parameters(&self, function: Node<'_>, depth: usize) -> Vec<FunctionParameter> {
        let list = function.child_by_field_name("parameters");
        let parameters = list.map(operands).unwrap_or_default().into_iter();
        parameters
            .filter_map(|parameter| self.parameter(parameter, depth))
            .collect()
    }

    /// `None` for `*` and `/` alone, which only say how arguments may be given.
    pub(super) fn parameter(&self, node: Node<'_>, depth: usize) -> Option<FunctionParameter> {
        let declared = match node.kind() {
            "typed_parameter" => *operands(node).first()?,
            "default_parameter" | "typed_default_parameter" => node.child_by_field_name("name")?,
            _ => node,
        };
        let (binding, name) = match declared.kind() {
            "identifier" => (Binding::Positional, declared),
            "list_splat_pattern" => (Binding::Star, *operands(declared).first()?),
            "dictionary_splat_pattern" => (Binding::DoubleStar, *operands(declared).first()?),
            _ => return None,
        };
        let default = node.child_by_field_name("value");
        Some(FunctionParameter {
            binding,
            name: self.text(name).to_owned(),
            default: default.map(|default| self.expression(default, depth)),
        })
    }
}

/// The name of an operator with two operands.
pub(super) fn operator(token: &str) -> Option<&'static str> {
    Some(match token {
        "or" | "|" => "or",
        "and" | "&" => "and",
        "<" => "lt",
        ">" => "gt",
        "<=" => "le",
        ">=" => "ge",
        "==" | "in" | "not in" | "is" | "is not" => "eq",
        "!=" | "<>" => "ne",
        "^" => "xor",
        "<<" => "lshift",
        ">>" => "rshift",
        "+" => "add",
        "-" => "sub",
        "*" => "mul",
        "/" => "div",
        "//" => "floordiv",
        "%" => "remainder",
        "@" => "matmul",
        "**" => "pow",
        _ => return None,
    })
}
