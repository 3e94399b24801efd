//! Which modules a Python source imports, and which names it uses, without running it.
//!
//! Strings and comments are skipped, so a module named in a docstring does not count. The result only decides how a solution is
//! built; no rule against cheating depends on it.

use std::collections::BTreeSet;

use tree_sitter::{Node, TreeCursor};

use crate::python::concrete_tree;

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Names {
    /// First component of every imported module. Members of a relative import count: they may be modules.
    pub(crate) imported: BTreeSet<String>,
    /// Every identifier outside strings and comments.
    pub(crate) used: BTreeSet<String>,
}

pub(crate) fn names(source: &str) -> Names {
    let mut names = Names::default();
    let Some(tree) = concrete_tree(source) else {
        return names;
    };
    let text = |node: Node<'_>| source.get(node.byte_range()).unwrap_or_default().to_owned();
    let mut cursor = tree.walk();
    loop {
        let node = cursor.node();
        match node.kind() {
            "identifier" => {
                names.used.insert(text(node));
            }
            "import_statement" | "import_from_statement" => {
                names.imported.extend(modules(node).into_iter().map(text));
            }
            "future_import_statement" => {
                names.imported.insert("__future__".to_owned());
            }
            _ => {}
        }
        if !next(&mut cursor) {
            return names;
        }
    }
}

/// The first name of each module of an import.
fn modules(node: Node<'_>) -> Vec<Node<'_>> {
    let mut cursor = node.walk();
    let paths: Vec<Node<'_>> = match node.child_by_field_name("module_name") {
        Some(module) if module.kind() == "dotted_name" => vec![module],
        _ => node.children_by_field_name("name", &mut cursor).collect(),
    };
    paths.into_iter().filter_map(first_name).collect()
}

fn first_name(path: Node<'_>) -> Option<Node<'_>> {
    match path.kind() {
        "dotted_name" => path.named_child(0),
        "aliased_import" => path.child_by_field_name("name")?.named_child(0),
        _ => None,
    }
}

/// To the next node in the order of the text, past the inside of strings.
fn next(cursor: &mut TreeCursor<'_>) -> bool {
    if cursor.node().kind() != "string" && cursor.goto_first_child() {
        return true;
    }
    while !cursor.goto_next_sibling() {
        if !cursor.goto_parent() {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imported(source: &str) -> Vec<String> {
        names(source).imported.into_iter().collect()
    }

    #[test]
    fn every_way_to_import() {
        assert_eq!(
            imported(
                "import torch, os.path as p, sys\nfrom a.b import (c,\n  d)\nif x: import e; from f import g as h\n"
            ),
            ["a", "e", "f", "os", "sys", "torch"]
        );
        assert_eq!(imported("from a \\\n  import b\n"), ["a"]);
        assert_eq!(
            imported("try:\n    import late\nexcept E as e:\n    raise F from e\n"),
            ["late"]
        );
    }

    #[test]
    fn strings_and_comments_do_not_import() {
        let source = "'''\nimport one\n'''\n# import two\nx = \"import three\"\ny = r'\\d'; import_four = rb\"\"\"import five\"\"\"\n\
                      z = 'it\\'s'; import six\n";
        assert_eq!(imported(source), ["six"]);
        assert!(names(source).used.contains("import_four"));
        assert!(!names("s = 'load_inline'").used.contains("load_inline"));
        assert!(
            names("from torch.utils.cpp_extension import load_inline")
                .used
                .contains("load_inline")
        );
    }

    #[test]
    fn nonsense_does_no_harm() {
        for source in [
            "",
            "import",
            "from",
            "import ,",
            "'",
            "\"\"\"",
            "\\",
            "from . import x",
            "import a,",
            "r'",
            "é = 1",
        ] {
            let _ = names(source);
        }
    }
}
