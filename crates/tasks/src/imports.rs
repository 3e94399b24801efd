//! Which modules a Python source imports, and which names it uses, without running it.
//!
//! Strings and comments are skipped, so that a module named in a docstring does not count. This
//! only chooses how a solution is built; no rule about cheating rests on it.

use std::collections::BTreeSet;

use crate::python::{Token, tokens};

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Names {
    /// First component of every imported module.
    pub(crate) imported: BTreeSet<String>,
    /// Every identifier outside strings and comments.
    pub(crate) used: BTreeSet<String>,
}

pub(crate) fn names(source: &str) -> Names {
    let tokens = tokens(source);
    let mut names = Names::default();
    let mut position = 0;
    while let Some(token) = tokens.get(position) {
        position += 1;
        let word = |at: usize| match tokens.get(at) {
            Some(Token::Word(word)) => Some(word.as_str()),
            _ => None,
        };
        match token {
            // `from a.b import c`; `raise x from y` lacks the `import`.
            Token::Word(keyword) if keyword == "from" => {
                let module = word(position);
                let after = past_dotted(&tokens, position);
                if let (Some(module), Some("import")) = (module, word(after)) {
                    names.imported.insert(module.to_owned());
                    // What follows names members, not modules.
                    position = after + 1;
                }
            }
            // `import a.b as c, d`
            Token::Word(keyword) if keyword == "import" => {
                while let Some(module) = word(position) {
                    names.imported.insert(module.to_owned());
                    position = past_dotted(&tokens, position);
                    if word(position) == Some("as") {
                        position += 2;
                    }
                    if tokens.get(position) != Some(&Token::Mark(",")) {
                        break;
                    }
                    position += 1;
                }
            }
            _ => {}
        }
    }
    names.used = tokens
        .into_iter()
        .filter_map(|token| match token {
            Token::Word(word) => Some(word),
            _ => None,
        })
        .collect();
    names
}

fn past_dotted(tokens: &[Token], mut position: usize) -> usize {
    position += 1;
    while tokens.get(position) == Some(&Token::Mark(".")) {
        position += 2;
    }
    position
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
