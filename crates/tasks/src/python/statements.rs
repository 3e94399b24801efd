//! Conversion of statements.

use std::rc::Rc;

use tree_sitter::Node;

use super::expressions::operator;
use super::syntax::{Binding, Class, Expression, Function, Statement};
use super::{Converter, DEPTH_LIMIT, children, fields, has_comma, operands};

/// How many nodes of a broken definition are searched for the `:` that ends its header.
const HEADER_LIMIT: usize = 64;

impl Converter<'_> {
    /// The statements of a module or a block.
    pub(super) fn block(&self, node: Node<'_>, depth: usize) -> Vec<Statement> {
        let mut nodes = Vec::new();
        splice(node, 0, &mut nodes);
        self.statements(&nodes, depth)
    }

    fn statements(&self, nodes: &[Node<'_>], depth: usize) -> Vec<Statement> {
        let mut statements = Vec::new();
        if depth > DEPTH_LIMIT {
            return statements;
        }
        let mut at = 0;
        while let Some(node) = nodes.get(at) {
            at += 1;
            match node.kind() {
                // A bare keyword: the definition itself was not recognised.
                "class" | "def" => {
                    at += self.broken_definition(*node, &nodes[at..], depth, &mut statements);
                }
                _ => self.statement(*node, depth, &mut statements),
            }
        }
        statements
    }

    /// A definition with a body that could not be parsed. Everything after its header that is indented deeper belongs to it.
    /// Returns how many nodes of `rest` that are.
    fn broken_definition(
        &self,
        keyword: Node<'_>,
        rest: &[Node<'_>],
        depth: usize,
        into: &mut Vec<Statement>,
    ) -> usize {
        let mut searched = rest.iter().take(HEADER_LIMIT);
        let Some(colon) = searched.position(|node| node.kind() == ":") else {
            return 0;
        };
        let (header, below) = rest.split_at(colon);
        let [name, header @ ..] = header else {
            return 0;
        };
        if name.kind() != "identifier" {
            return 0;
        }
        let name = self.text(*name).to_owned();
        let start = keyword.start_position();
        let belongs = |node: &&Node<'_>| {
            let position = node.start_position();
            position.row == start.row || position.column > start.column
        };
        let length = 1 + below[1..].iter().take_while(belongs).count();
        let body = self.statements(&below[1..length], depth + 1);
        into.push(if keyword.kind() == "class" {
            Statement::Class(Rc::new(Class {
                name,
                bases: Vec::new(),
                body,
            }))
        } else {
            // The list of parameters, or its pieces.
            let pieces = header.iter().flat_map(|node| match node.kind() {
                "parameters" => operands(*node),
                _ => vec![*node],
            });
            let parameters = pieces.filter_map(|node| self.parameter(node, depth));
            Statement::Function(Rc::new(Function {
                name,
                parameters: parameters.collect(),
                body,
                is_static: false,
            }))
        });
        colon + length
    }

    fn field_block(&self, node: Node<'_>, name: &str, depth: usize) -> Vec<Statement> {
        let block = node.child_by_field_name(name);
        block
            .map(|block| self.block(block, depth + 1))
            .unwrap_or_default()
    }

    fn statement(&self, node: Node<'_>, depth: usize, into: &mut Vec<Statement>) {
        match node.kind() {
            "expression_statement" => into.extend(self.expression_statement(node, depth)),
            "return_statement" => {
                let value = operands(node).first().copied();
                let value = value.map(|value| self.expression(value, depth));
                into.push(Statement::Return(value));
            }
            "if_statement" => into.extend(self.branches(node, depth)),
            "for_statement" => {
                into.push(Statement::For {
                    target: self.field(node, "left", depth),
                    over: self.field(node, "right", depth),
                    body: self.field_block(node, "body", depth),
                });
                self.clauses(node, depth, into);
            }
            "while_statement" | "try_statement" => {
                into.push(Statement::Block(self.field_block(node, "body", depth)));
                self.clauses(node, depth, into);
            }
            "with_statement" => self.with(node, depth, into),
            "match_statement" => into.extend(self.cases(node, depth)),
            "function_definition" => into.push(self.function(node, false, depth)),
            "class_definition" => into.push(self.class(node, depth)),
            "decorated_definition" => self.decorated(node, depth, into),
            "import_statement" => self.import(node, into),
            "import_from_statement" | "future_import_statement" => self.import_from(node, into),
            _ => {}
        }
    }

    /// `expression`, `targets = value`, `target += value`, `target: type = value`.
    fn expression_statement(&self, node: Node<'_>, depth: usize) -> Option<Statement> {
        let inner = operands(node);
        let first = *inner.first()?;
        Some(match first.kind() {
            "assignment" => self.assignment(first, depth),
            "augmented_assignment" => {
                let token = first.child_by_field_name("operator");
                let token = token.map_or("", |token| token.kind().trim_end_matches('='));
                Statement::Update(
                    self.field(first, "left", depth),
                    operator(token).unwrap_or("eq"),
                    self.field(first, "right", depth),
                )
            }
            _ if has_comma(node) => {
                Statement::Expression(Expression::Sequence(self.expressions(&inner, depth)))
            }
            _ => Statement::Expression(self.expression(first, depth)),
        })
    }

    /// `a = b = value` is an assignment of an assignment in the grammar.
    fn assignment(&self, mut node: Node<'_>, depth: usize) -> Statement {
        let mut targets = Vec::new();
        loop {
            targets.push(self.field(node, "left", depth));
            match node.child_by_field_name("right") {
                Some(right) if right.kind() == "assignment" => node = right,
                Some(right) => return Statement::Assign(targets, self.expression(right, depth)),
                // `target: type`
                None => return Statement::Expression(targets.pop().unwrap_or(Expression::Unknown)),
            }
        }
    }

    fn branches(&self, node: Node<'_>, depth: usize) -> Vec<Statement> {
        let mut branches = vec![node];
        let mut otherwise = Vec::new();
        for clause in fields(node, "alternative") {
            match clause.kind() {
                "elif_clause" => branches.push(clause),
                _ => otherwise = self.field_block(clause, "body", depth),
            }
        }
        // A chain of `elif`s becomes a tree as deep as it is long.
        branches.truncate(DEPTH_LIMIT.saturating_sub(depth));
        for branch in branches.into_iter().rev() {
            otherwise = vec![Statement::If {
                test: self.field(branch, "condition", depth),
                then: self.field_block(branch, "consequence", depth),
                otherwise,
            }];
        }
        otherwise
    }

    /// `else` and `finally`. What happens after a failure (`except`) is no part of the computation.
    fn clauses(&self, node: Node<'_>, depth: usize, into: &mut Vec<Statement>) {
        let is_followed =
            |clause: &Node<'_>| matches!(clause.kind(), "else_clause" | "finally_clause");
        for clause in operands(node).into_iter().filter(is_followed) {
            let blocks = operands(clause).into_iter();
            let blocks = blocks.filter(|part| part.kind() == "block");
            into.extend(blocks.map(|block| Statement::Block(self.block(block, depth + 1))));
        }
    }

    fn with(&self, node: Node<'_>, depth: usize, into: &mut Vec<Statement>) {
        let clauses = operands(node).into_iter();
        let clauses = clauses.filter(|part| part.kind() == "with_clause");
        for item in clauses.flat_map(operands) {
            if let Some(pattern) = item.child_by_field_name("value")
                && pattern.kind() == "as_pattern"
                && let Some(value) = operands(pattern).first()
            {
                let target = self.field(pattern, "alias", depth);
                let value = self.expression(*value, depth);
                into.push(Statement::Assign(vec![target], value));
            }
        }
        into.push(Statement::Block(self.field_block(node, "body", depth)));
    }

    /// One of the cases runs, whichever it is.
    fn cases(&self, node: Node<'_>, depth: usize) -> Vec<Statement> {
        let body = node.child_by_field_name("body");
        let mut cases = body.map(operands).unwrap_or_default();
        cases.truncate(DEPTH_LIMIT.saturating_sub(depth));
        let mut otherwise = Vec::new();
        for case in cases.into_iter().rev() {
            otherwise = vec![Statement::If {
                test: Expression::Unknown,
                then: self.field_block(case, "consequence", depth),
                otherwise,
            }];
        }
        otherwise
    }

    fn decorated(&self, node: Node<'_>, depth: usize, into: &mut Vec<Statement>) {
        let Some(definition) = node.child_by_field_name("definition") else {
            return;
        };
        let mut decorators = operands(node).into_iter();
        let innermost = decorators.rfind(|part| part.kind() == "decorator");
        let is_static =
            innermost.is_some_and(|decorator| self.text(decorator).starts_with("@staticmethod"));
        match definition.kind() {
            "function_definition" => into.push(self.function(definition, is_static, depth)),
            _ => self.statement(definition, depth, into),
        }
    }

    fn name(&self, definition: Node<'_>) -> String {
        let name = definition.child_by_field_name("name");
        name.map_or("", |name| self.text(name)).to_owned()
    }

    fn function(&self, node: Node<'_>, is_static: bool, depth: usize) -> Statement {
        Statement::Function(Rc::new(Function {
            name: self.name(node),
            parameters: self.parameters(node, depth),
            body: self.statements(&body(node), depth + 1),
            is_static,
        }))
    }

    fn class(&self, node: Node<'_>, depth: usize) -> Statement {
        let bases = node.child_by_field_name("superclasses");
        let bases = bases.map(operands).unwrap_or_default().into_iter();
        let bases = bases.map(|base| self.argument(base, depth));
        let is_positional = |base: &Binding| *base == Binding::Positional;
        Statement::Class(Rc::new(Class {
            name: self.name(node),
            bases: bases
                .filter(|base| is_positional(&base.binding))
                .map(|base| base.value)
                .collect(),
            body: self.statements(&body(node), depth + 1),
        }))
    }

    /// `a.b as c`: the path, and the name it is given.
    fn imported(&self, node: Node<'_>) -> (String, Option<String>) {
        let path = node.child_by_field_name("name").unwrap_or(node);
        let alias = node.child_by_field_name("alias");
        (
            self.dotted(path),
            alias.map(|alias| self.text(alias).to_owned()),
        )
    }

    /// Without the white space that may stand around dots.
    fn dotted(&self, node: Node<'_>) -> String {
        let names = operands(node).into_iter();
        let names: Vec<&str> = names.map(|name| self.text(name)).collect();
        names.join(".")
    }

    fn import(&self, node: Node<'_>, into: &mut Vec<Statement>) {
        for imported in fields(node, "name") {
            let (path, alias) = self.imported(imported);
            let first = || path.split('.').next().unwrap_or_default().to_owned();
            into.push(match alias {
                Some(name) => Statement::Import { name, path },
                None => Statement::Import {
                    name: first(),
                    path: first(),
                },
            });
        }
    }

    fn import_from(&self, node: Node<'_>, into: &mut Vec<Statement>) {
        let module = match node.child_by_field_name("module_name") {
            // `from .a import b`
            Some(relative) if relative.kind() == "relative_import" => {
                let mut inner = operands(relative).into_iter();
                let inner = inner.find(|part| part.kind() == "dotted_name");
                inner.map(|inner| self.dotted(inner)).unwrap_or_default()
            }
            Some(module) => self.dotted(module),
            None => "__future__".to_owned(),
        };
        for imported in fields(node, "name") {
            let (member, alias) = self.imported(imported);
            into.push(Statement::Import {
                path: format!("{module}.{member}"),
                name: alias.unwrap_or(member),
            });
        }
    }
}

/// The nodes of a block. Those inside errors and stray blocks stand where these stood.
fn splice<'t>(node: Node<'t>, depth: usize, into: &mut Vec<Node<'t>>) {
    for child in children(node) {
        if depth < DEPTH_LIMIT && (child.is_error() || child.kind() == "block") {
            splice(child, depth + 1, into);
        } else {
            into.push(child);
        }
    }
}

/// The nodes of a definition's body, and of errors before it.
fn body(definition: Node<'_>) -> Vec<Node<'_>> {
    let mut nodes = Vec::new();
    for child in children(definition) {
        if child.is_error() || child.kind() == "block" {
            splice(child, 0, &mut nodes);
        }
    }
    nodes
}
