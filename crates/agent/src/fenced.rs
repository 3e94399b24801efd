//! Files in a reply, as fenced blocks: a heading line such as `write kernels/x.cu`, then the code.
//!
//! Small models cannot escape code inside JSON, and do not keep to a heading's form either. So a block belongs to the path
//! named on the last line before it that is not empty, whatever else that line says, or in its own first line.

use std::collections::BTreeMap;

use warpsmith_schema::{MODEL_NEW, clashing_path, is_solution_path};

/// Relative path to content.
pub type FencedFiles = BTreeMap<String, String>;

/// Why a reply holds nothing to act on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnusableReply {
    #[error("the reply has no fenced block")]
    NoBlock,
    #[error("no fenced block has a heading that names its file")]
    NoHeading,
    #[error("the reply calls no tool")]
    NoCall,
    #[error("the last block, `{path}`, has no end: the reply was cut off")]
    CutOff { path: String },
    #[error("`{path}` is a file and a folder of others")]
    FileAndFolder { path: String },
}

/// A reply, taken apart.
pub(crate) enum Piece<'a> {
    Line(&'a str),
    Block(Block<'a>),
}

pub(crate) struct Block<'a> {
    /// The last line before it that is not empty.
    pub(crate) heading: &'a str,
    pub(crate) content: String,
    pub(crate) closed: bool,
}

impl Block<'_> {
    /// The path it belongs to, in its heading or in its own first line.
    pub(crate) fn path(&self) -> Option<String> {
        let first = self.content.lines().next().unwrap_or_default();
        path_in(self.heading).or_else(|| path_in(first))
    }
}

pub(crate) fn pieces(reply: &str) -> Vec<Piece<'_>> {
    let mut found = Vec::new();
    let mut heading = "";
    let mut lines = reply.lines();
    while let Some(line) = lines.next() {
        let Some(fence) = fence(line) else {
            if !line.trim().is_empty() {
                heading = line;
                found.push(Piece::Line(line));
            }
            continue;
        };
        let mut content = String::new();
        let mut closed = false;
        for line in lines.by_ref() {
            if line.trim() == fence {
                closed = true;
                break;
            }
            content.push_str(line);
            content.push('\n');
        }
        found.push(Piece::Block(Block {
            heading: std::mem::take(&mut heading),
            content,
            closed,
        }));
    }
    found
}

/// The files of a reply; of two blocks for one path the later counts.
pub fn read_files(reply: &str) -> Result<FencedFiles, UnusableReply> {
    let (mut files, mut blocks) = (FencedFiles::new(), 0);
    for piece in pieces(reply) {
        let Piece::Block(block) = piece else {
            continue;
        };
        blocks += 1;
        match block.path() {
            Some(path) if !block.closed => return Err(UnusableReply::CutOff { path }),
            Some(path) => {
                files.insert(path, block.content);
            }
            None => {}
        }
    }
    if let Some(path) = clashing_path(files.keys().map(String::as_str)) {
        let path = path.to_owned();
        return Err(UnusableReply::FileAndFolder { path });
    }
    match (blocks, files.is_empty()) {
        (0, _) => Err(UnusableReply::NoBlock),
        (_, true) => Err(UnusableReply::NoHeading),
        _ => Ok(files),
    }
}

/// The fence that a line opens: three or more backticks or tildes, then perhaps a language.
fn fence(line: &str) -> Option<String> {
    let line = line.trim_start();
    ['`', '~'].into_iter().find_map(|mark| {
        let length = line.chars().take_while(|letter| *letter == mark).count();
        let info = &line[length..];
        (length >= 3 && !info.contains(mark)).then(|| mark.to_string().repeat(length))
    })
}

/// A path of a submission somewhere in a line of prose or comment.
fn path_in(line: &str) -> Option<String> {
    let inside = |letter: char| letter.is_ascii_alphanumeric() || "_-./".contains(letter);
    line.split(|letter| !inside(letter))
        .map(|word| word.trim_start_matches("./").trim_end_matches(['.', '-']))
        .find(|word| is_submission_path(word))
        .map(str::to_owned)
}

pub(crate) fn is_submission_path(path: &str) -> bool {
    let kernel = path.strip_prefix("kernels/").is_some_and(|name| {
        [".cu", ".cuh", ".cpp", ".cc", ".c", ".h", ".hpp"]
            .iter()
            .any(|ending| name.len() > ending.len() && name.ends_with(ending))
    });
    is_solution_path(path) && (path == MODEL_NEW || kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(reply: &str) -> Vec<(String, String)> {
        read_files(reply).unwrap().into_iter().collect()
    }

    #[test]
    fn a_heading_names_the_block_below_it() {
        let reply = "I fuse both.\n\nwrite model_new.py\n```python\nimport torch\n```\n\nwrite kernels/x.cu\n```cuda\nint a;\n\nint b;\n```\nDone.";
        assert_eq!(
            files(reply),
            [
                ("kernels/x.cu".to_owned(), "int a;\n\nint b;\n".to_owned()),
                ("model_new.py".to_owned(), "import torch\n".to_owned()),
            ]
        );
    }

    #[test]
    fn headings_come_in_many_forms() {
        for heading in [
            "write kernels/x.cpp",
            "### `kernels/x.cpp`",
            "**kernels/x.cpp**:",
            "2. File: ./kernels/x.cpp (the kernel)",
            "Now kernels/x.cpp.",
        ] {
            let reply = format!("{heading}\n\n```cpp\nint a;\n```");
            assert_eq!(
                files(&reply),
                [("kernels/x.cpp".to_owned(), "int a;\n".to_owned())],
                "{heading}"
            );
        }
        let inside = "Here:\n```cpp\n// kernels/x.cpp\nint a;\n```";
        assert_eq!(files(inside)[0].0, "kernels/x.cpp");
    }

    #[test]
    fn fences_within_code_do_not_end_it() {
        let reply = "model_new.py\n````python\ndoc = '''\n```\n'''\n````";
        assert_eq!(files(reply)[0].1, "doc = '''\n```\n'''\n");
    }

    #[test]
    fn paths_outside_a_submission_are_not_taken() {
        for heading in [
            "write ../kernels/x.cpp",
            "write /etc/passwd",
            "write model.py",
            "write kernels/../../x.cpp",
            "kernels/.cpp",
        ] {
            assert_eq!(
                read_files(&format!("{heading}\n```\nx\n```")),
                Err(UnusableReply::NoHeading),
                "{heading}"
            );
        }
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        assert_eq!(
            read_files("I cannot help with that."),
            Err(UnusableReply::NoBlock)
        );
        assert_eq!(
            read_files("```python\nx\n```"),
            Err(UnusableReply::NoHeading)
        );
        let cut = UnusableReply::CutOff {
            path: "kernels/x.cu".to_owned(),
        };
        assert_eq!(read_files("write kernels/x.cu\n```\nint a"), Err(cut));
    }

    #[test]
    fn the_later_block_of_a_path_counts() {
        let reply = "model_new.py\n```\none\n```\nBetter:\nmodel_new.py\n```\ntwo\n```";
        assert_eq!(files(reply)[0].1, "two\n");
    }

    proptest::proptest! {
        /// A reply is whatever a model says.
        #[test]
        fn no_text_breaks_it(text in "[`~a-z/._ \n]{0,200}") {
            if let Ok(files) = read_files(&text) {
                proptest::prop_assert!(files.keys().all(|path| is_submission_path(path)));
            }
        }
    }
}
