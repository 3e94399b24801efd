//! How a policy calls tools.

use serde_json::{Value, json};
use warpsmith_schema::ToolCall;

use crate::UnusableReply;
use crate::fenced::{self, Block, Piece};

/// The two forms of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireFormat {
    /// As the policy's interface has it: a name and JSON.
    Json,
    /// In its text: a line such as `write kernels/x.cu`, then a fenced block. For models that cannot escape code in JSON.
    Fenced,
}

/// Tools that take no argument: a line of their own.
const BARE: [&str; 5] = ["compile", "verify", "profile", "judge", "submit"];

/// The calls in a text, in their order.
pub(crate) fn calls(text: &str) -> Result<Vec<ToolCall>, UnusableReply> {
    let mut calls = Vec::new();
    let mut add = |name: &str, arguments: Value| {
        calls.push(ToolCall {
            id: format!("call_{}", calls.len() + 1),
            name: name.to_owned(),
            arguments,
        });
    };
    let mut blocks = 0;
    for piece in fenced::pieces(text) {
        match piece {
            Piece::Line(line) => {
                if let Some((name, arguments)) = in_line(line) {
                    add(name, arguments);
                }
            }
            Piece::Block(block) => {
                blocks += 1;
                let Some((name, arguments)) = in_block(&block) else {
                    continue;
                };
                if !block.closed {
                    let path = arguments["path"].as_str().unwrap_or(name).to_owned();
                    return Err(UnusableReply::CutOff { path });
                }
                add(name, arguments);
            }
        }
    }
    match (calls.is_empty(), blocks) {
        (false, _) => Ok(calls),
        (true, 0) => Err(UnusableReply::NoCall),
        (true, _) => Err(UnusableReply::NoHeading),
    }
}

/// A line by itself, whatever a model puts around a word to make it stand out.
fn plain(line: &str) -> &str {
    let marks = |letter: char| " \t*`#>:.-".contains(letter);
    line.trim_matches(marks)
        .trim_start_matches(|letter: char| letter.is_ascii_digit())
        .trim_matches(marks)
}

fn in_line(line: &str) -> Option<(&'static str, Value)> {
    let words = plain(line);
    if let Some(name) = BARE.into_iter().find(|name| *name == words) {
        return Some((name, json!({})));
    }
    let (name, rest) = words.split_once(' ')?;
    let rest = rest.trim().trim_matches(['`', '\'', '"']);
    let one_word = !rest.is_empty() && !rest.contains(' ');
    match name {
        "read" if one_word && rest.contains(['.', '/']) => Some(("read", json!({ "path": rest }))),
        "glob" if one_word && rest.contains('*') => Some(("glob", json!({ "pattern": rest }))),
        "grep" if !rest.is_empty() => Some(("grep", json!({ "pattern": rest }))),
        _ => None,
    }
}

fn in_block(block: &Block<'_>) -> Option<(&'static str, Value)> {
    let heading = plain(block.heading);
    let (word, rest) = heading.split_once(' ').unwrap_or((heading, ""));
    let path = rest.trim().trim_matches(['`', '\'', '"']);
    match word {
        "bash" => Some(("bash", json!({ "command": block.content }))),
        "todo" => Some(("todo", json!({ "items": todos(&block.content) }))),
        "write" if !path.is_empty() && !path.contains(' ') => {
            Some(("write", json!({ "path": path, "content": block.content })))
        }
        "edit" if !path.is_empty() && !path.contains(' ') => Some((
            "multi_edit",
            json!({ "path": path, "edits": changes(&block.content) }),
        )),
        _ => block
            .path()
            .map(|path| ("write", json!({ "path": path, "content": block.content }))),
    }
}

/// Pieces to replace: `<<<<<<<`, the old text, `=======`, the new text, `>>>>>>>`.
fn changes(content: &str) -> Vec<Value> {
    let (mut found, mut old, mut new) = (Vec::new(), String::new(), String::new());
    let mut part = 0;
    for line in content.lines() {
        if line.starts_with("<<<<<<<") {
            (old, new, part) = (String::new(), String::new(), 1);
        } else if line.starts_with("=======") && part == 1 {
            part = 2;
        } else if line.starts_with(">>>>>>>") && part == 2 {
            found.push(json!({ "old": old, "new": new }));
            part = 0;
        } else if part == 1 {
            old.push_str(line);
            old.push('\n');
        } else if part == 2 {
            new.push_str(line);
            new.push('\n');
        }
    }
    found
}

fn todos(content: &str) -> Vec<Value> {
    let lines = content
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let (state, text) = match line.trim_start_matches(['-', '*', ' ']) {
                line if line.starts_with("[x]") => ("done", &line[3..]),
                line if line.starts_with("[>]") => ("doing", &line[3..]),
                line if line.starts_with("[ ]") => ("open", &line[3..]),
                line => ("open", line),
            };
            json!({ "text": text.trim(), "state": state })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str) -> Vec<(String, Value)> {
        let found = calls(text).unwrap();
        found
            .into_iter()
            .map(|call| (call.name, call.arguments))
            .collect()
    }

    #[test]
    fn blocks_and_lines_become_calls_in_order() {
        let text = "First the kernel.\n\nwrite kernels/x.cu\n```cuda\nint a;\n```\n\nbash\n```\nls\n```\n\n**compile**\n\nread `model.py`\n1. judge";
        assert_eq!(
            named(text),
            [
                (
                    "write".to_owned(),
                    json!({ "path": "kernels/x.cu", "content": "int a;\n" })
                ),
                ("bash".to_owned(), json!({ "command": "ls\n" })),
                ("compile".to_owned(), json!({})),
                ("read".to_owned(), json!({ "path": "model.py" })),
                ("judge".to_owned(), json!({})),
            ]
        );
    }

    #[test]
    fn edits_are_pairs_of_old_and_new() {
        let text =
            "edit kernels/x.cu\n```\n<<<<<<< SEARCH\nint a;\n=======\nint b;\n>>>>>>> REPLACE\n```";
        assert_eq!(
            named(text),
            [(
                "multi_edit".to_owned(),
                json!({ "path": "kernels/x.cu", "edits": [{ "old": "int a;\n", "new": "int b;\n" }] })
            )]
        );
    }

    #[test]
    fn prose_is_no_call() {
        for text in [
            "I would read the file and judge it.",
            "Let me compile this first.",
            "read me",
        ] {
            assert_eq!(calls(text), Err(UnusableReply::NoCall), "{text}");
        }
        assert_eq!(calls("```cpp\nint a;\n```"), Err(UnusableReply::NoHeading));
    }

    #[test]
    fn a_block_without_end_is_told() {
        let cut = UnusableReply::CutOff {
            path: "kernels/x.cu".to_owned(),
        };
        assert_eq!(calls("write kernels/x.cu\n```\nint a"), Err(cut));
    }

    proptest::proptest! {
        #[test]
        fn no_text_breaks_it(text in "[`a-z/._ \n<>=*]{0,200}") {
            let _ = calls(&text);
        }
    }
}
