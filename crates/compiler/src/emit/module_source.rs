//! What of a task's module a solution takes over: imports and constants, the constructor with all that it needs, the arguments of
//! `forward`.

mod preamble;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ops::Range;

use tree_sitter::{Node, Parser};

use crate::not_covered::NotCovered;

/// What a solution needs to know of a task's module.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Module {
    /// Imports and constants before the class.
    pub(super) preamble: String,
    /// What the class inherits from, as it stands.
    pub(super) bases: String,
    /// `__init__`, as it stands, with what it needs of the class.
    pub(super) constructor: Option<String>,
    /// Arguments of `forward`.
    pub(crate) inputs: Vec<String>,
    /// The same with their defaults, and what else its parentheses hold.
    pub(super) signature: Vec<String>,
}

impl Module {
    pub(crate) fn read(source: &str) -> Result<Self, NotCovered> {
        let mut parser = Parser::new();
        let language = tree_sitter_python::LANGUAGE.into();
        let tree = match parser.set_language(&language) {
            Ok(()) => parser.parse(source, None),
            Err(_) => None,
        };
        let tree = tree.ok_or_else(|| unreadable("it cannot be parsed"))?;
        let text = Source::new(source);
        let statements = children(tree.root_node());
        let is_model = |node: &Node<'_>| {
            text.named(*node)
                .is_some_and(|(inner, name)| inner.kind() == "class_definition" && name == "Model")
        };
        // Of two classes of one name Python takes the later.
        let class = statements.iter().rposition(is_model);
        let class = class.ok_or_else(|| unreadable("there is no class `Model`"))?;
        text.read(&statements, class)
    }
}

fn unreadable(what: &str) -> NotCovered {
    NotCovered::Module {
        what: what.to_owned(),
    }
}

/// The text that the tree is of.
pub(super) struct Source<'s> {
    text: &'s str,
    lines: Vec<&'s str>,
}

/// A function, a class or an assignment as it stands, with its decorators.
struct Definition {
    name: String,
    text: String,
}

impl<'s> Source<'s> {
    fn new(text: &'s str) -> Self {
        let lines = text.lines().collect();
        Self { text, lines }
    }

    fn read(&self, statements: &[Node<'_>], class: usize) -> Result<Module, NotCovered> {
        let node = undecorated(statements[class]);
        let bases = node.child_by_field_name("superclasses");
        let bases = bases.map(|bases| self.flat(bases)).unwrap_or_default();
        let bases = bases
            .strip_prefix('(')
            .and_then(|bases| bases.strip_suffix(')'));
        let bases = bases.unwrap_or_default().trim_matches([' ', ',']);
        if bases.is_empty() {
            return Err(unreadable(
                "its class `Model` is not derived from `nn.Module`",
            ));
        }
        let body = node.child_by_field_name("body").map(children);
        let body = body.unwrap_or_default();
        let method = |name: &str| {
            let mut found = body.iter().rev().copied();
            found.find(|one| {
                self.named(*one).is_some_and(|(inner, found)| {
                    inner.kind() == "function_definition" && found == name
                })
            })
        };
        let forward = method("forward").ok_or_else(|| unreadable("there is no `forward`"))?;
        let (inputs, signature) = self.parameters(undecorated(forward))?;
        let made = method("__init__").map(|node| {
            let mut free = self.free_names(undecorated(node));
            let mut text = self.without_words(node);
            // Layers are often made by methods.
            for called in needed(self.definitions(&body), &text, &["__init__", "forward"]) {
                free.extend(words(&called));
                text = format!("{text}\n\n{called}");
            }
            for attribute in needed(self.attributes(&body), &text, &[]).iter().rev() {
                free.extend(words(attribute));
                text = format!("{attribute}\n\n{text}");
            }
            (renamed(&text), free)
        });
        let (constructor, mut free) = match made {
            Some((text, free)) => (Some(text), free),
            None => (None, BTreeSet::new()),
        };
        free.extend(words(bases));
        free.extend(signature.iter().flat_map(|part| {
            let (_, default) = part.split_once('=').unwrap_or_default();
            words(default)
        }));
        let mut preamble = preamble::write(self, &statements[..class], &free);
        // Python looks names up when they are used: what follows the class may be what makes it.
        let made = constructor.as_deref().unwrap_or_default();
        let later = &statements[class + 1..];
        let mut definitions = self.definitions(later);
        definitions.retain(|one| one.name != "Model");
        for definition in needed(definitions, made, &[]) {
            free.extend(words(&definition));
            preamble = format!("{preamble}\n\n\n{definition}");
        }
        let read: Vec<String> = free.into_iter().collect();
        for constant in needed(self.attributes(later), &read.join(" "), &[]) {
            preamble = format!("{preamble}\n\n{constant}");
        }
        Ok(Module {
            preamble,
            bases: bases.to_owned(),
            constructor,
            inputs,
            signature,
        })
    }

    pub(super) fn of(&self, node: Node<'_>) -> &'s str {
        self.text.get(node.byte_range()).unwrap_or_default()
    }

    /// On one line.
    fn flat(&self, node: Node<'_>) -> String {
        let parts: Vec<&str> = self.of(node).split_whitespace().collect();
        parts.join(" ")
    }

    /// A function or a class below its decorators, and its name.
    fn named<'t>(&self, node: Node<'t>) -> Option<(Node<'t>, &'s str)> {
        let inner = undecorated(node);
        let name = inner.child_by_field_name("name")?;
        let kinds = ["class_definition", "function_definition"];
        kinds
            .contains(&inner.kind())
            .then(|| (inner, self.of(name)))
    }

    /// Whole lines of a statement and the comments that belong to it.
    fn rows(&self, node: Node<'_>) -> Range<usize> {
        let (first, mut end) = (node.start_position().row, last_row(node) + 1);
        let depth = |line: &str| line.len() - line.trim_start().len();
        let own = node.start_position().column;
        let belongs = |line: &str| line.trim().is_empty() || depth(line) > own;
        while self.lines.get(end).is_some_and(|line| belongs(line)) {
            end += 1;
        }
        while end > first + 1 && self.lines[end - 1].trim().is_empty() {
            end -= 1;
        }
        first..end
    }

    fn whole(&self, node: Node<'_>) -> String {
        self.lines[self.rows(node)].join("\n")
    }

    /// A function without its docstring: who calls a solution has the module's.
    fn without_words(&self, node: Node<'_>) -> String {
        let rows = self.rows(node);
        let body = undecorated(node).child_by_field_name("body").map(children);
        let body = body.unwrap_or_default();
        let is_text = |node: &&Node<'_>| {
            let mut cursor = node.walk();
            let mut inside = node.named_children(&mut cursor);
            node.kind() == "expression_statement"
                && inside.next().is_some_and(|one| one.kind() == "string")
        };
        // A function of words alone needs them.
        let words = body.first().filter(is_text).filter(|_| body.len() > 1);
        let alone = words.filter(|words| {
            let begins = self.lines[words.start_position().row];
            let rest = self.lines[last_row(**words)];
            begins.len() - begins.trim_start().len() == words.start_position().column
                && rest.len() == words.end_position().column
        });
        let left_out = alone.map_or(0..0, |words| {
            words.start_position().row..last_row(*words) + 1
        });
        let kept = rows.filter(|row| !left_out.contains(row));
        let kept: Vec<&str> = kept.map(|row| self.lines[row]).collect();
        kept.join("\n").trim_end().to_owned()
    }

    /// Names and signature of the arguments after `self`.
    fn parameters(&self, function: Node<'_>) -> Result<(Vec<String>, Vec<String>), NotCovered> {
        let parameters = function.child_by_field_name("parameters").map(children);
        let (mut inputs, mut signature) = (Vec::new(), Vec::new());
        let mut positional = true;
        for parameter in parameters.unwrap_or_default().into_iter().skip(1) {
            let field = |name| {
                parameter
                    .child_by_field_name(name)
                    .map(|node| self.flat(node))
            };
            let (name, default) = match parameter.kind() {
                "typed_parameter" => {
                    let typed = children(parameter).first().copied();
                    let name = typed.map(|node| self.flat(node)).unwrap_or_default();
                    (name, None)
                }
                "default_parameter" | "typed_default_parameter" => {
                    (field("name").unwrap_or_default(), field("value"))
                }
                _ => (self.flat(parameter), None),
            };
            let starred = name.starts_with('*');
            if starred && !name.starts_with("**") && name != "*" {
                let what = format!("`forward` takes any number of arguments, `{name}`");
                return Err(NotCovered::Module { what });
            }
            positional &= !starred;
            if positional && name != "/" {
                inputs.push(name.clone());
            }
            signature.push(match default {
                Some(default) => format!("{name}={default}"),
                None => name,
            });
        }
        Ok((inputs, signature))
    }

    /// What a function reads that is neither an argument nor assigned in it.
    fn free_names(&self, function: Node<'_>) -> BTreeSet<String> {
        let (mut read, mut bound) = (BTreeSet::new(), BTreeSet::new());
        let names = |node: Option<Node<'_>>, into: &mut BTreeSet<String>| {
            let text = node.map(|node| self.of(node)).unwrap_or_default();
            into.extend(words(text));
        };
        let mut left = vec![function];
        while let Some(node) = left.pop() {
            match node.kind() {
                "identifier" => names(Some(node), &mut read),
                "assignment" | "for_statement" | "for_in_clause" => {
                    let target = node.child_by_field_name("left");
                    // `self.width = …` binds no name.
                    let plain = target.filter(|target| !self.of(*target).contains('.'));
                    names(plain, &mut bound);
                }
                "parameters" => {
                    for parameter in children(node) {
                        let name = parameter.child_by_field_name("name");
                        names(
                            name.or(parameter.named_child(0)).or(Some(parameter)),
                            &mut bound,
                        );
                    }
                }
                _ => {}
            }
            let mut cursor = node.walk();
            left.extend(node.named_children(&mut cursor));
        }
        read.difference(&bound).cloned().collect()
    }

    fn definitions(&self, statements: &[Node<'_>]) -> Vec<Definition> {
        let found = statements.iter().filter_map(|node| {
            let (_, name) = self.named(*node)?;
            Some(Definition {
                name: name.to_owned(),
                text: self.whole(*node).trim_end().to_owned(),
            })
        });
        found.collect()
    }

    /// What statements assign to plain names.
    fn attributes(&self, statements: &[Node<'_>]) -> Vec<Definition> {
        let found = statements.iter().filter_map(|node| {
            let assignment = node.named_child(0)?;
            let name = assignment.child_by_field_name("left")?;
            let is_name = assignment.kind() == "assignment" && name.kind() == "identifier";
            is_name.then(|| Definition {
                name: self.of(name).to_owned(),
                text: self.whole(*node).trim_end().to_owned(),
            })
        });
        found.collect()
    }
}

/// Statements and parameters, without comments.
pub(super) fn children(node: Node<'_>) -> Vec<Node<'_>> {
    let mut cursor = node.walk();
    let named = node.named_children(&mut cursor);
    named.filter(|child| !child.is_extra()).collect()
}

fn undecorated(node: Node<'_>) -> Node<'_> {
    match node.kind() {
        "decorated_definition" => node.child_by_field_name("definition").unwrap_or(node),
        _ => node,
    }
}

/// The row a node's text ends on; a block's end may be the start of the next row.
pub(super) fn last_row(node: Node<'_>) -> usize {
    let end = node.end_position();
    if end.column == 0 && end.row > node.start_position().row {
        end.row - 1
    } else {
        end.row
    }
}

/// The definitions that a text names, and those that they name, in their order.
fn needed(definitions: Vec<Definition>, by: &str, except: &[&str]) -> Vec<String> {
    let mut named = words(by);
    let mut chosen = vec![false; definitions.len()];
    loop {
        let next = definitions.iter().zip(&chosen).position(|(one, chosen)| {
            !chosen && named.contains(&one.name) && !except.contains(&one.name.as_str())
        });
        let Some(next) = next else { break };
        chosen[next] = true;
        named.extend(words(&definitions[next].text));
    }
    let chosen = definitions.into_iter().zip(chosen);
    chosen
        .filter_map(|(one, chosen)| chosen.then_some(one.text))
        .collect()
}

/// The class has another name in a solution.
fn renamed(text: &str) -> String {
    let text = text.replace("super(Model, self)", "super()");
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut written = String::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find("Model") {
        let (before, found) = rest.split_at(at);
        let after = &found["Model".len()..];
        let inside = before.ends_with(|letter| is_word(letter) || letter == '.')
            || after.starts_with(is_word);
        written.push_str(before);
        written.push_str(if inside || !after.starts_with('.') {
            "Model"
        } else {
            "ModelNew"
        });
        rest = after;
    }
    written.push_str(rest);
    written
}

pub(super) fn words(text: &str) -> BTreeSet<String> {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let parts = text.split(|letter| !is_word(letter));
    let parts = parts.filter(|part| !part.is_empty());
    parts.map(str::to_owned).collect()
}
