//! Which parts of a reply are the solution: the one rule, for episodes, servers and trainers.
//!
//! Small models cannot escape code inside JSON, and do not keep to a heading's form either. So a block belongs to the path
//! named on the last line before it that is not empty, whatever else that line says, or in its own first line. Where no block is
//! `model_new.py` by name, the last that defines a class `ModelNew` is: `KernelBench`'s form, with an inline extension or Triton.
//! A reply that is nothing but such a module needs no fence. What was thought before the answer is no part of it, nor are the
//! tokens that end a turn, which `OpenRLHF` and slime hand over with the text.

use std::collections::BTreeMap;

use warpsmith_schema::{MODEL_NEW, clashing_path, is_solution_path};

/// Relative path to content.
pub type FencedFiles = BTreeMap<String, String>;

/// More than any solution takes. A model that does not come to an end writes on to this, and its client need not send the rest.
const MAX_REPLY_BYTES: usize = 1 << 20;

/// Why a reply holds nothing to act on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnusableReply {
    #[error("the reply has no fenced block")]
    NoBlock,
    #[error("the reply is longer than {MAX_REPLY_BYTES} bytes")]
    TooLong,
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
    if reply.len() > MAX_REPLY_BYTES {
        return Err(UnusableReply::TooLong);
    }
    let reply = without_end_of_turn(reply);
    let answer = reply
        .rsplit_once("</think>")
        .map_or(reply, |(_, answer)| answer);
    let (mut files, mut blocks) = (FencedFiles::new(), 0);
    // Without a path, but with the class that is asked for.
    let mut unnamed = None;
    for piece in pieces(answer) {
        let Piece::Block(block) = piece else {
            continue;
        };
        blocks += 1;
        match block.path() {
            Some(path) if !block.closed => return Err(UnusableReply::CutOff { path }),
            Some(path) => {
                files.insert(path, block.content);
            }
            None if defines_model(&block.content) => unnamed = Some(block),
            None => {}
        }
    }
    if !files.contains_key(MODEL_NEW)
        && let Some(block) = unnamed
    {
        let path = MODEL_NEW.to_owned();
        if !block.closed {
            return Err(UnusableReply::CutOff { path });
        }
        files.insert(path, block.content);
    }
    if blocks == 0 && is_module(answer) {
        files.insert(MODEL_NEW.to_owned(), format!("{}\n", answer.trim()));
        return Ok(files);
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

/// A reply up to its last word, so that a fence with such a token behind it is still the end of a block.
fn without_end_of_turn(reply: &str) -> &str {
    let mut text = reply.trim_end();
    while let Some((before, token)) = text.rfind('<').map(|start| text.split_at(start))
        && is_end_of_turn(token)
    {
        text = before.trim_end();
    }
    text
}

/// `<|im_end|>`, `<|eot_id|>` and the like; `DeepSeek`'s bars are wide, and some families have none.
fn is_end_of_turn(token: &str) -> bool {
    let is_name = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '▁');
    let bars = ['|', '｜'];
    let inside = token
        .strip_prefix('<')
        .and_then(|rest| rest.strip_suffix('>'))
        .and_then(|rest| rest.strip_prefix(bars)?.strip_suffix(bars));
    matches!(token, "</s>" | "<eos>" | "<end_of_turn>")
        || inside.is_some_and(|name| !name.is_empty() && name.chars().all(is_name))
}

fn defines_model(code: &str) -> bool {
    code.lines().any(|line| {
        line.strip_prefix("class ModelNew")
            .is_some_and(|rest| rest.trim_start().starts_with(['(', ':']))
    })
}

/// Whether a text is a Python file from its first line on, and not prose about one.
fn is_module(text: &str) -> bool {
    let begins = ["import ", "from ", "#", "\"\"\"", "class "];
    let first = text.trim_start();
    defines_model(text) && begins.iter().any(|begin| first.starts_with(begin))
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
        let mut endless = "write kernels/x.cu\n```\nint a;\n```\n".to_owned();
        assert!(read_files(&endless).is_ok());
        endless.push_str(&"x".repeat(MAX_REPLY_BYTES - endless.len()));
        assert!(read_files(&endless).is_ok());
        endless.push('x');
        assert_eq!(read_files(&endless), Err(UnusableReply::TooLong));
    }

    #[test]
    fn the_later_block_of_a_path_counts() {
        let reply = "model_new.py\n```\none\n```\nBetter:\nmodel_new.py\n```\ntwo\n```";
        assert_eq!(files(reply)[0].1, "two\n");
    }

    const MODULE: &str = "import torch\n\nclass ModelNew(torch.nn.Module):\n    pass\n";

    #[test]
    fn a_module_without_a_heading_is_known_by_its_class() {
        let only = [(MODEL_NEW.to_owned(), MODULE.to_owned())];
        let helper = "```python\nprint('try it')\n```";
        let draft = "```python\nclass ModelNew(torch.nn.Module): ...\n```";
        for reply in [
            format!("Here it is.\n\n```python\n{MODULE}```\n"),
            format!("```\n{MODULE}```"),
            format!("{draft}\nBetter:\n```python\n{MODULE}```\nTo run it:\n{helper}"),
            format!("<think>First\nmodel_new.py\n{draft}\nno.</think>\n```python\n{MODULE}```"),
            MODULE.to_owned(),
            format!("</think>\n\n{MODULE}"),
        ] {
            assert_eq!(files(&reply), only, "{reply}");
        }
    }

    #[test]
    fn tokens_that_end_a_turn_are_not_read() {
        let only = [(MODEL_NEW.to_owned(), MODULE.to_owned())];
        let fenced = format!("Here.\n```python\n{MODULE}```");
        for end in [
            "<|im_end|>",
            "<|im_end|>\n<|endoftext|><|endoftext|>",
            "</s>",
            "<end_of_turn>\n",
            "<|eot_id|>",
            "<｜end▁of▁sentence｜>",
        ] {
            assert_eq!(files(&format!("{fenced}{end}")), only, "{end}");
            assert_eq!(files(&format!("{MODULE}{end}")), only, "{end}");
        }
        for kept in [
            "a <b>",
            "x < y",
            "<>",
            "<||>",
            "<|a b|>",
            "std::vector<int>",
        ] {
            assert_eq!(without_end_of_turn(kept), kept);
        }
    }

    #[test]
    fn a_named_module_goes_before_one_without_a_heading() {
        let reply =
            format!("write model_new.py\n```\nnamed\n```\nInstead of\n```python\n{MODULE}```");
        let expected = [(MODEL_NEW.to_owned(), "named\n".to_owned())];
        assert_eq!(files(&reply), expected);
        let with_kernel = format!("```python\n{MODULE}```\nkernels/x.cu\n```\nint a;\n```");
        let paths: Vec<String> = read_files(&with_kernel).unwrap().into_keys().collect();
        assert_eq!(paths, ["kernels/x.cu", MODEL_NEW]);
    }

    #[test]
    fn prose_about_a_module_is_none() {
        for (reply, why) in [
            (
                "The class ModelNew should be fused.",
                UnusableReply::NoBlock,
            ),
            (
                "Use\nclass ModelNew(Module)\nas above.",
                UnusableReply::NoBlock,
            ),
            (
                "```python\nclass ModelNewer:\n    pass\n```",
                UnusableReply::NoHeading,
            ),
            (
                "<think>\n```\nclass ModelNew: ...\n```\n</think>No.",
                UnusableReply::NoBlock,
            ),
        ] {
            assert_eq!(read_files(reply), Err(why), "{reply}");
        }
        let cut = UnusableReply::CutOff {
            path: MODEL_NEW.to_owned(),
        };
        let reply = format!("```python\n{MODULE}");
        assert_eq!(read_files(&reply), Err(cut));
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
