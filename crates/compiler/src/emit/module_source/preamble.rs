//! What stands before the class of a solution.

use std::collections::BTreeSet;

use tree_sitter::Node;

use super::{Source, children, last_row, words};

const KERNELS: &str = "from warpsmith_kernels import kernels";

/// Imports, ours after them, and what else `__init__` may need, which reads the names `free`. Sizes of the inputs are often
/// written there too: those that nothing reads are left out.
pub(super) fn write(source: &Source<'_>, before: &[Node<'_>], free: &BTreeSet<String>) -> String {
    let unused = unused_constants(source, before, free);
    let is_import = |node: &&Node<'_>| {
        let kinds = [
            "import_statement",
            "import_from_statement",
            "future_import_statement",
        ];
        kinds.contains(&node.kind())
    };
    let imports: Vec<&Node<'_>> = before.iter().filter(is_import).collect();
    let binds_torch = |node: &Node<'_>| {
        let root = source.of(*node).split('.').next();
        node.kind() == "dotted_name" && root == Some("torch")
    };
    let imports_torch = imports
        .iter()
        .any(|node| node.kind() == "import_statement" && children(**node).iter().any(binds_torch));
    let last_import = imports.last().map(|node| last_row(**node));
    let ours = || {
        let torch = (!imports_torch).then_some("import torch");
        torch.into_iter().chain([KERNELS])
    };
    let mut kept: Vec<&str> = Vec::new();
    if last_import.is_none() {
        kept.extend(ours());
    }
    let rows = before.last().map_or(0, |node| last_row(*node) + 1);
    let in_statement = |row: usize| {
        let has = |node: &Node<'_>| (node.start_position().row..=last_row(*node)).contains(&row);
        before.iter().any(has)
    };
    for (row, line) in source.lines[..rows].iter().enumerate() {
        let is_blank = line.trim().is_empty();
        let repeats_blank = is_blank && kept.last().is_none_or(|last| last.trim().is_empty());
        let is_comment = line.starts_with('#') && !in_statement(row);
        if !unused.contains(&row) && !is_comment && !repeats_blank {
            kept.push(line);
        }
        if last_import == Some(row) {
            kept.extend(ours());
        }
    }
    while kept.last().is_some_and(|line| line.trim().is_empty()) {
        kept.pop();
    }
    kept.join("\n")
}

/// The rows of constants that neither the constructor nor anything else before the class reads.
fn unused_constants(
    source: &Source<'_>,
    before: &[Node<'_>],
    free: &BTreeSet<String>,
) -> BTreeSet<usize> {
    let constants: Vec<Option<Vec<String>>> = before
        .iter()
        .map(|node| constant_names(source, *node))
        .collect();
    let mut read = free.clone();
    let mut chosen: Vec<bool> = constants.iter().map(Option::is_none).collect();
    for (node, _) in before.iter().zip(&chosen).filter(|(_, chosen)| **chosen) {
        read.extend(words(source.of(*node)));
    }
    // A constant may be made of others.
    while let Some(next) = constants.iter().zip(&chosen).position(|(names, chosen)| {
        !chosen && names.iter().flatten().any(|name| read.contains(name))
    }) {
        chosen[next] = true;
        read.extend(words(source.of(before[next])));
    }
    let unused = before.iter().zip(chosen).filter(|(_, chosen)| !chosen);
    unused
        .flat_map(|(node, _)| node.start_position().row..=last_row(*node))
        .collect()
}

/// The names of an assignment of numbers: `SIZE = 4`, `rows, columns = 2, 3`, `shape = (SIZE, 8)`.
fn constant_names(source: &Source<'_>, node: Node<'_>) -> Option<Vec<String>> {
    let text = source.of(node);
    let (names, value) = text.rsplit_once('=')?;
    let is_plain = |letter: char| letter.is_alphanumeric() || "_ ,=".contains(letter);
    let ends = value.ends_with(|letter: char| letter.is_ascii_digit() || letter == ')');
    let assigns = node
        .named_child(0)
        .is_some_and(|inner| inner.kind() == "assignment");
    (assigns && ends && names.chars().all(is_plain)).then(|| words(names).into_iter().collect())
}
