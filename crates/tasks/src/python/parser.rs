mod expressions;

use std::rc::Rc;

use expressions::{BINARY, COMPARISON};

use super::syntax::{Binding, Class, Expression, Function, Statement};
use super::tokens::{Token, tokens};

/// How deep a tree may be: brackets in brackets, blocks in blocks, and sums of sums alike. What is deeper is not read.
pub(super) const DEPTH_LIMIT: usize = 64;

pub fn parse(source: &str) -> Vec<Statement> {
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
}
