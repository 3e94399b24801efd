use std::rc::Rc;

use super::syntax::{Argument, Binding, Class, Expression, Function, Statement};
use super::tokens::{Token, tokens};

/// How deep a tree may be: brackets in brackets, blocks in blocks, and sums of sums alike. What is deeper is not read.
pub(crate) const DEPTH_LIMIT: usize = 64;

/// Operators with two sides, how tightly they bind, and what they are called.
const BINARY: [(&str, u8, &str); 21] = [
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
const COMPARISON: u8 = 4;
const SIGN: u8 = 11;
const POWER: u8 = 12;

pub(crate) fn parse(source: &str) -> Vec<Statement> {
    let mut parser = Parser {
        tokens: tokens(source),
        at: 0,
        depth: 0,
    };
    let mut statements = Vec::new();
    while parser.at < parser.tokens.len() {
        parser.statement(&mut statements);
    }
    statements
}

/// An expression and how deep its tree is.
struct Tree {
    expression: Expression,
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

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    /// How many brackets, operators and blocks are open here.
    depth: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn is_mark(&self, mark: &str) -> bool {
        matches!(self.peek(), Some(Token::Mark(found)) if *found == mark)
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Some(Token::Word(found)) if found == word)
    }

    fn take_mark(&mut self, mark: &str) -> bool {
        let found = self.is_mark(mark);
        self.at += usize::from(found);
        found
    }

    fn take_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        self.at += usize::from(found);
        found
    }

    fn take_name(&mut self) -> Option<String> {
        let name = match self.peek() {
            Some(Token::Word(word)) => word.clone(),
            _ => return None,
        };
        self.at += 1;
        Some(name)
    }

    fn at_line_end(&self) -> bool {
        matches!(
            self.peek(),
            None | Some(Token::LineEnd | Token::Indent | Token::Dedent)
        )
    }

    /// To the next line, or past the `;`.
    fn finish_line(&mut self) {
        while !self.at_line_end() {
            if self.take_mark(";") {
                return;
            }
            self.at += 1;
        }
        self.at += usize::from(self.peek() == Some(&Token::LineEnd));
    }

    fn statement(&mut self, into: &mut Vec<Statement>) {
        // Depth that nothing announced: read on as if it were not there.
        if matches!(
            self.peek(),
            Some(Token::Indent | Token::Dedent | Token::LineEnd)
        ) {
            self.at += 1;
            return;
        }
        let Some(Token::Word(word)) = self.peek() else {
            self.simple(into);
            return;
        };
        let next_is_mark = |mark: &str| matches!(self.tokens.get(self.at + 1), Some(Token::Mark(found)) if *found == mark);
        match word.as_str() {
            "async" => self.at += 1,
            "def" => self.function(false, into),
            "class" => self.class(into),
            "if" => {
                self.at += 1;
                self.branch(into);
            }
            "for" => self.for_loop(into),
            "while" => {
                self.at += 1;
                self.expression();
                let body = self.block();
                into.push(Statement::Block(body));
            }
            "with" => self.with(into),
            "try" | "else" | "finally" => {
                self.at += 1;
                let body = self.block();
                into.push(Statement::Block(body));
            }
            // What happens after a failure is no part of the computation.
            "except" => {
                while !self.at_line_end() && !self.is_mark(":") {
                    self.at += 1;
                }
                self.block();
            }
            "return" => {
                self.at += 1;
                let value = (!self.at_line_end() && !self.is_mark(";")).then(|| self.expressions());
                into.push(Statement::Return(value));
                self.finish_line();
            }
            "import" => {
                self.at += 1;
                self.import(into);
                self.finish_line();
            }
            "from" => {
                self.at += 1;
                self.import_from(into);
                self.finish_line();
            }
            "pass" | "break" | "continue" | "global" | "nonlocal" | "del" | "assert" | "raise"
                if !next_is_mark("=") =>
            {
                self.at += 1;
                while !self.at_line_end() && !self.is_mark(";") {
                    self.at += 1;
                }
                self.finish_line();
            }
            _ => self.simple(into),
        }
    }

    /// `expression`, `targets = value`, `target += value`, `target: type = value`, or a decorator.
    fn simple(&mut self, into: &mut Vec<Statement>) {
        if self.is_mark("@") {
            self.at += 1;
            let is_static = self.is_word("staticmethod");
            self.finish_line();
            if self.is_word("async") {
                self.at += 1;
            }
            if self.is_word("def") {
                self.function(is_static, into);
            }
            return;
        }
        let start = self.at;
        let first = self.expressions();
        if self.take_mark(":") {
            self.expression();
        }
        let update = match self.peek() {
            Some(Token::Mark(mark)) => mark
                .strip_suffix('=')
                .and_then(|operator| BINARY.iter().find(|(mark, ..)| *mark == operator))
                .filter(|(_, binding, _)| *binding > COMPARISON)
                .map(|(.., name)| *name),
            _ => None,
        };
        if let Some(operator) = update {
            self.at += 1;
            let value = self.expressions();
            into.push(Statement::Update(first, operator, value));
        } else if self.is_mark("=") {
            let mut chain = vec![first];
            while self.take_mark("=") {
                chain.push(self.expressions());
            }
            if let Some(value) = chain.pop() {
                into.push(Statement::Assign(chain, value));
            }
        } else {
            into.push(Statement::Expression(first));
        }
        self.finish_line();
        // Whatever stood there, something must be read.
        self.at = self.at.max(start + 1);
    }

    /// What follows a `:`, on the same line or below.
    fn block(&mut self) -> Vec<Statement> {
        let mut body = Vec::new();
        self.take_mark(":");
        self.depth += 1;
        if self.peek() == Some(&Token::LineEnd) {
            self.at += 1;
            if self.peek() == Some(&Token::Indent) {
                self.at += 1;
                if self.depth > DEPTH_LIMIT {
                    self.skip_block();
                } else {
                    while !matches!(self.peek(), None | Some(Token::Dedent)) {
                        self.statement(&mut body);
                    }
                    self.at += 1;
                }
            }
        } else if self.depth > DEPTH_LIMIT {
            while !self.at_line_end() {
                self.at += 1;
            }
        } else {
            // `if a: b; c`: all on this line belong to it.
            let line_end = (self.at..self.tokens.len())
                .find(|&at| self.tokens[at] == Token::LineEnd)
                .unwrap_or(self.tokens.len());
            while self.at < line_end {
                self.statement(&mut body);
            }
        }
        self.depth -= 1;
        body
    }

    fn skip_block(&mut self) {
        let mut open = 1;
        while let Some(token) = self.peek() {
            match token {
                Token::Indent => open += 1,
                Token::Dedent => open -= 1,
                _ => {}
            }
            self.at += 1;
            if open == 0 {
                return;
            }
        }
    }

    fn branch(&mut self, into: &mut Vec<Statement>) {
        // A chain of `elif`s is a tree as deep as it is long.
        let mut branches = Vec::new();
        let mut otherwise = Vec::new();
        loop {
            let test = self.expression();
            let then = self.block();
            branches.push((test, then));
            if self.take_word("elif") {
                continue;
            }
            if self.take_word("else") {
                otherwise = self.block();
            }
            break;
        }
        branches.truncate(DEPTH_LIMIT.saturating_sub(self.depth));
        for (test, then) in branches.into_iter().rev() {
            otherwise = vec![Statement::If {
                test,
                then,
                otherwise,
            }];
        }
        into.append(&mut otherwise);
    }

    fn for_loop(&mut self, into: &mut Vec<Statement>) {
        self.at += 1;
        let target = self.targets();
        self.take_word("in");
        let over = self.expressions();
        let body = self.block();
        into.push(Statement::For { target, over, body });
    }

    fn with(&mut self, into: &mut Vec<Statement>) {
        self.at += 1;
        loop {
            let value = self.expression();
            if self.take_word("as") {
                let target = self.postfix().expression;
                into.push(Statement::Assign(vec![target], value));
            }
            if !self.take_mark(",") {
                break;
            }
        }
        let body = self.block();
        into.push(Statement::Block(body));
    }

    fn function(&mut self, is_static: bool, into: &mut Vec<Statement>) {
        self.at += 1;
        let name = self.take_name().unwrap_or_default();
        let parameters = if self.take_mark("(") {
            self.parameters(")")
        } else {
            Vec::new()
        };
        self.take_mark(")");
        if self.take_mark("->") {
            self.expression();
        }
        let body = self.block();
        into.push(Statement::Function(Rc::new(Function {
            name,
            parameters,
            body,
            is_static,
        })));
    }

    fn parameters(&mut self, end: &str) -> Vec<(Binding, String, Option<Expression>)> {
        let mut parameters = Vec::new();
        while !self.is_mark(end) && !self.at_line_end() {
            let binding = if self.take_mark("**") {
                Binding::DoubleStar
            } else if self.take_mark("*") {
                Binding::Star
            } else {
                Binding::Positional
            };
            if let Some(name) = self.take_name() {
                if end == ")" && self.take_mark(":") {
                    self.expression();
                }
                let default = self.take_mark("=").then(|| self.expression());
                parameters.push((binding, name, default));
            }
            // `*` and `/` alone only say how arguments may be given.
            self.take_mark("/");
            if !self.take_mark(",") && !self.is_mark(end) {
                self.at += 1;
            }
        }
        parameters
    }

    fn class(&mut self, into: &mut Vec<Statement>) {
        self.at += 1;
        let name = self.take_name().unwrap_or_default();
        let bases = if self.take_mark("(") {
            let arguments = self.arguments().0;
            arguments
                .into_iter()
                .filter(|argument| argument.binding == Binding::Positional)
                .map(|argument| argument.value)
                .collect()
        } else {
            Vec::new()
        };
        let body = self.block();
        into.push(Statement::Class(Rc::new(Class { name, bases, body })));
    }

    fn dotted(&mut self) -> String {
        let mut path = String::new();
        loop {
            // `from . import a`
            while self.take_mark(".") || self.take_mark("...") {}
            if self.is_word("import") {
                return path;
            }
            let Some(part) = self.take_name() else {
                return path;
            };
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(&part);
            if !self.is_mark(".") {
                return path;
            }
        }
    }

    fn import(&mut self, into: &mut Vec<Statement>) {
        loop {
            let path = self.dotted();
            if path.is_empty() {
                return;
            }
            let alias = self.take_word("as").then(|| self.take_name()).flatten();
            let first = path.split('.').next().unwrap_or_default().to_owned();
            into.push(match alias {
                Some(name) => Statement::Import { name, path },
                None => Statement::Import {
                    name: first.clone(),
                    path: first,
                },
            });
            if !self.take_mark(",") {
                return;
            }
        }
    }

    fn import_from(&mut self, into: &mut Vec<Statement>) {
        let module = self.dotted();
        self.take_word("import");
        self.take_mark("(");
        while let Some(member) = self.take_name() {
            let alias = self.take_word("as").then(|| self.take_name()).flatten();
            into.push(Statement::Import {
                name: alias.unwrap_or_else(|| member.clone()),
                path: format!("{module}.{member}"),
            });
            if !self.take_mark(",") {
                break;
            }
        }
        self.take_mark(")");
    }

    /// One or several with commas between, which is a tuple.
    fn expressions(&mut self) -> Expression {
        let first = self.tree();
        self.tuple_from(first).expression
    }

    fn tuple_from(&mut self, first: Tree) -> Tree {
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
    fn targets(&mut self) -> Expression {
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

    fn expression(&mut self) -> Expression {
        self.tree().expression
    }

    fn tree(&mut self) -> Tree {
        self.nested(Self::whole)
    }

    /// Binary operators, `a if b else c`, `lambda`, `:=`.
    fn whole(&mut self) -> Tree {
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
    fn binary(&mut self, least: u8) -> Tree {
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

    fn nested(&mut self, read: impl FnOnce(&mut Self) -> Tree) -> Tree {
        if self.depth >= DEPTH_LIMIT {
            self.at += usize::from(!self.at_line_end());
            return Tree::leaf(Expression::Unknown);
        }
        self.depth += 1;
        let tree = read(self);
        self.depth -= 1;
        tree
    }

    fn operator(&self) -> Option<(u8, &'static str)> {
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

    fn unary(&mut self) -> Tree {
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

    fn postfix(&mut self) -> Tree {
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
    fn arguments(&mut self) -> (Vec<Argument>, usize) {
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
    fn index(&mut self) -> Tree {
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
    fn comprehension(&mut self, element: Tree) -> Tree {
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

    fn atom(&mut self) -> Tree {
        let token = match self.peek() {
            None | Some(Token::LineEnd | Token::Indent | Token::Dedent) => {
                return Tree::leaf(Expression::Unknown);
            }
            Some(token) => token.clone(),
        };
        match token {
            Token::Number => {
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
            Token::Mark("...") => {
                self.at += 1;
                Tree::leaf(Expression::Constant)
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
    fn sequence(&mut self, end: &'static str) -> Tree {
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
    fn braces(&mut self) -> Tree {
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
