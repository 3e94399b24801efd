//! Which modules a Python source imports, and which names it uses, without running it.
//!
//! Strings and comments are skipped, so that a module named in a docstring does not count. This
//! only chooses how a solution is built; no rule about cheating rests on it.

use std::collections::BTreeSet;

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
                    if tokens.get(position) != Some(&Token::Mark(',')) {
                        break;
                    }
                    position += 1;
                }
            }
            Token::Word(_) | Token::Mark(_) => {}
        }
    }
    names.used = tokens
        .into_iter()
        .filter_map(|token| match token {
            Token::Word(word) => Some(word),
            Token::Mark(_) => None,
        })
        .collect();
    names
}

fn past_dotted(tokens: &[Token], mut position: usize) -> usize {
    position += 1;
    while tokens.get(position) == Some(&Token::Mark('.')) {
        position += 2;
    }
    position
}

#[derive(Debug, PartialEq)]
enum Token {
    Word(String),
    /// Anything else outside strings, a character each; a line's end is `\n`.
    Mark(char),
}

fn tokens(source: &str) -> Vec<Token> {
    let characters: Vec<char> = source.chars().collect();
    let at = |index: usize| characters.get(index).copied();
    let mut tokens = Vec::new();
    let mut index = 0;
    while let Some(character) = at(index) {
        match character {
            '#' => {
                while at(index).is_some_and(|next| next != '\n') {
                    index += 1;
                }
            }
            '"' | '\'' => {
                // The `r` of `r"…"` is no word of its own.
                if let Some(Token::Word(word)) = tokens.last()
                    && is_prefix(word)
                    && adjacent(&characters, index, word)
                {
                    tokens.pop();
                }
                index = past_string(&characters, index);
            }
            // A line that goes on is one line.
            '\\' if at(index + 1) == Some('\n') => index += 2,
            _ if character == '_' || character.is_alphanumeric() => {
                let start = index;
                while at(index).is_some_and(|next| next == '_' || next.is_alphanumeric()) {
                    index += 1;
                }
                tokens.push(Token::Word(characters[start..index].iter().collect()));
            }
            _ => {
                if character == '\n' || !character.is_whitespace() {
                    tokens.push(Token::Mark(character));
                }
                index += 1;
            }
        }
    }
    tokens
}

fn is_prefix(word: &str) -> bool {
    ["r", "b", "u", "f", "t", "rb", "br", "fr", "rf", "tr", "rt"]
        .contains(&word.to_ascii_lowercase().as_str())
}

fn adjacent(characters: &[char], quote: usize, prefix: &str) -> bool {
    let length = prefix.chars().count();
    quote >= length
        && characters[quote - length..quote]
            .iter()
            .copied()
            .eq(prefix.chars())
}

/// The position after the string that begins at `start`. One that does not end takes the rest of its line, or of the file.
fn past_string(characters: &[char], start: usize) -> usize {
    let quote = characters[start];
    let triple = characters
        .get(start..start + 3)
        .is_some_and(|next| next.iter().all(|&next| next == quote));
    let mut index = start + if triple { 3 } else { 1 };
    while let Some(&character) = characters.get(index) {
        if character == '\\' {
            index += 2;
        } else if triple {
            if characters
                .get(index..index + 3)
                .is_some_and(|next| next.iter().all(|&next| next == quote))
            {
                return index + 3;
            }
            index += 1;
        } else if character == quote {
            return index + 1;
        } else if character == '\n' {
            return index;
        } else {
            index += 1;
        }
    }
    characters.len()
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
