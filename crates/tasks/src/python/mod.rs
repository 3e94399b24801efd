//! Python source as a small syntax tree, without running any of it.
//!
//! tree-sitter does the parsing: it accepts any text, recovers from errors and does not recurse. This module converts its
//! concrete tree into the statements and expressions that readers of tasks need. Conversion never fails: what is not understood
//! becomes [`Expression::Unknown`] or is left out.
//!
//! Bounds hold for hostile text too. Converted trees are shallower than [`DEPTH_LIMIT`], so following one never exhausts the
//! stack; only the first [`LENGTH_LIMIT_BYTES`] of a text are parsed, for at most [`TIME_LIMIT`].
//!
//! Not covered: types, decorators other than `@staticmethod`, conditions of comprehensions, and `except` clauses are dropped.
//! The grammar of tree-sitter rejects a few valid programs (`return *[a], b`); such a statement is left out.

mod expressions;
mod statements;
mod syntax;

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use tree_sitter::{Node, ParseOptions, ParseState, Parser, Tree};

pub use syntax::{Argument, Binding, Class, Expression, Function, FunctionParameter, Statement};

/// The depth of nested blocks and expressions together. What is deeper is not converted.
const DEPTH_LIMIT: usize = 64;
/// Longer sources are cut here. No task is near it, and memory grows by some 400 bytes a byte.
const LENGTH_LIMIT_BYTES: usize = 512 << 10;
/// The grammar's scanner takes quadratic time for some texts, such as a statement and thousands of comments after it.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// The statements of a module. A text that takes longer than [`TIME_LIMIT`] has none.
pub fn parse(source: &str) -> Vec<Statement> {
    match concrete_tree(source) {
        Some(tree) => Converter { source }.block(tree.root_node(), 0),
        None => Vec::new(),
    }
}

/// tree-sitter's own tree; `None` where the time limit was reached.
pub(crate) fn concrete_tree(source: &str) -> Option<Tree> {
    concrete_tree_within(TIME_LIMIT, source)
}

fn concrete_tree_within(limit: Duration, source: &str) -> Option<Tree> {
    let mut parser = Parser::new();
    let language = tree_sitter_python::LANGUAGE.into();
    parser.set_language(&language).ok()?;
    let length = source.floor_char_boundary(LENGTH_LIMIT_BYTES);
    let bytes = &source.as_bytes()[..length];
    let started = Instant::now();
    let mut within_time = |_: &ParseState| {
        if started.elapsed() > limit {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let options = ParseOptions::new().progress_callback(&mut within_time);
    let mut rest_at = |at: usize, _| bytes.get(at..).unwrap_or_default();
    parser.parse_with_options(&mut rest_at, None, Some(options))
}

/// From tree-sitter's nodes to ours.
struct Converter<'s> {
    source: &'s str,
}

impl Converter<'_> {
    fn text(&self, node: Node<'_>) -> &str {
        self.source.get(node.byte_range()).unwrap_or_default()
    }
}

/// All children but comments and line continuations.
fn children(node: Node<'_>) -> Vec<Node<'_>> {
    let mut cursor = node.walk();
    let children = node.children(&mut cursor);
    children
        .filter(|child| child.is_error() || !child.is_extra())
        .collect()
}

/// The children that are no punctuation, keywords or errors.
fn operands(node: Node<'_>) -> Vec<Node<'_>> {
    let mut operands = children(node);
    operands.retain(|child| child.is_named() && !child.is_error());
    operands
}

/// All children in a field that may hold several.
fn fields<'t>(node: Node<'t>, name: &str) -> Vec<Node<'t>> {
    let mut cursor = node.walk();
    node.children_by_field_name(name, &mut cursor).collect()
}

fn has_comma(node: Node<'_>) -> bool {
    let mut cursor = node.walk();
    node.children(&mut cursor).any(|child| child.kind() == ",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> Expression {
        Expression::Name(name.to_owned())
    }

    fn returned(expression: &str) -> Expression {
        match parse(&format!("return {expression}\n")).pop() {
            Some(Statement::Return(Some(value))) => value,
            other => panic!("{expression}: {other:?}"),
        }
    }

    fn functions(source: &str) -> Vec<String> {
        let functions = parse(source)
            .into_iter()
            .filter_map(|statement| match statement {
                Statement::Function(function) => Some(function.name.clone()),
                _ => None,
            });
        functions.collect()
    }

    #[test]
    fn lines_brackets_and_depth() {
        let source =
            "def f(a,\n      b):\n    # why\n\n    return a \\\n  @ b\nx = 1e-5\nif a:\n\tb\nd";
        let [
            Statement::Function(f),
            Statement::Assign(x, one),
            Statement::If { then, .. },
            last,
        ] = &parse(source)[..]
        else {
            panic!("{:?}", parse(source));
        };
        let product = Expression::Binary("matmul", name("a").into(), name("b").into());
        assert_eq!(f.body, [Statement::Return(Some(product))]);
        assert_eq!((&x[..], one), (&[name("x")][..], &Expression::Constant));
        assert_eq!(then[..], [Statement::Expression(name("b"))]);
        assert_eq!(last, &Statement::Expression(name("d")));
    }

    #[test]
    fn strings_of_every_kind() {
        for (source, content) in [
            ("r'a\\'b'", "a\\'b"),
            ("F\"{y}\"", "{y}"),
            ("'''a\n'b'\n'''", "a\n'b'\n"),
            ("r'\\\\'", "\\\\"),
            ("''", ""),
            ("'first' 'second'", "first"),
        ] {
            assert_eq!(
                returned(source),
                Expression::Text(content.into()),
                "{source}"
            );
        }
    }

    #[test]
    fn numbers_are_one_constant() {
        for number in ["1.5e-3", ".5", "0x1F", "1_000j", "True", "..."] {
            assert_eq!(returned(number), Expression::Constant, "{number}");
        }
        let member = Expression::Attribute(name("x").into(), "y".into());
        assert_eq!(returned("x.y"), member);
    }

    /// tree-sitter's grammar binds the star tighter than Python does.
    #[test]
    fn a_star_stands_before_the_whole_operand() {
        let Expression::Sequence(items) = returned("*a.b(c), d") else {
            panic!("no tuple");
        };
        let member = Expression::Attribute(name("a").into(), "b".into());
        let argument = Argument {
            binding: Binding::Positional,
            value: name("c"),
        };
        let call = Expression::Call(member.into(), vec![argument]);
        assert_eq!(items, [Expression::Star(call.into()), name("d")]);
        let Expression::Call(_, arguments) = returned("f(*a, *b.c, **d)") else {
            panic!("no call");
        };
        let bindings: Vec<&Binding> = arguments.iter().map(|one| &one.binding).collect();
        assert_eq!(
            bindings,
            [&Binding::Star, &Binding::Star, &Binding::DoubleStar]
        );
    }

    #[test]
    fn a_definition_around_a_broken_line_is_kept() {
        for broken in ["x = (", "x = 'open", ") + ]", "def", "\u{0}", "class :"] {
            let source = format!("def f(a):\n    {broken}\n    return a\n");
            assert_eq!(functions(&source), ["f"], "{broken}");
        }
    }

    #[test]
    fn what_takes_too_long_is_given_up() {
        // Comments are slow only after a statement.
        let comments = format!("x = 1\n{}", "# \n".repeat(100_000));
        let limit = Duration::from_millis(200);
        assert!(concrete_tree_within(limit, &comments).is_none());
        assert!(concrete_tree_within(limit, "x = 1\n").is_some());
    }

    #[test]
    fn what_is_too_long_is_cut_between_letters() {
        let long = "é = 1\n".repeat(LENGTH_LIMIT_BYTES / 6);
        let whole = long.lines().count();
        assert!((whole / 2..whole).contains(&parse(&long).len()));
    }

    #[test]
    fn one_case_of_a_match_runs() {
        let source = "match x:\n    case 1:\n        a\n    case _:\n        b\nc\n";
        let run = |name_run: &str, otherwise| Statement::If {
            test: Expression::Unknown,
            then: vec![Statement::Expression(name(name_run))],
            otherwise,
        };
        let cases = run("a", vec![run("b", Vec::new())]);
        assert_eq!(parse(source), [cases, Statement::Expression(name("c"))]);
    }
}
