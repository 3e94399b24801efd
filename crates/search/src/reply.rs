//! The files of a reply: whole ones, and changes to the parent's.

use warpsmith_agent::{FencedFiles, read_files};
use warpsmith_model::policy::FinishReason;
use warpsmith_schema::MODEL_NEW;

const SEARCH: &str = "<<<<<<< SEARCH";
const DIVIDER: &str = "=======";
const REPLACE: &str = ">>>>>>> REPLACE";

/// The files that a reply stands for, or why it stands for none.
pub(crate) fn files_of(
    text: &str,
    finish: FinishReason,
    parent: Option<&FencedFiles>,
) -> Result<FencedFiles, String> {
    let written = read_files(text).map_err(|why| why.to_string())?;
    if finish == FinishReason::Length {
        // Closed or not, it has lost what was to come.
        return Err("the reply was cut off".to_owned());
    }
    let mut files = FencedFiles::new();
    for (path, content) in written {
        let content = if content.contains(SEARCH) {
            let before = parent.and_then(|parent| parent.get(&path));
            let before = before
                .ok_or_else(|| format!("it changes `{path}`, which the parent does not have"))?;
            edited(before, &content).map_err(|why| format!("`{path}`: {why}"))?
        } else {
            content
        };
        files.insert(path, content);
    }
    // A module of its own stands for itself; else the parent's files are still meant.
    if !files.contains_key(MODEL_NEW) {
        for (path, content) in parent.into_iter().flatten() {
            files.entry(path.clone()).or_insert_with(|| content.clone());
        }
    }
    if files.contains_key(MODEL_NEW) {
        Ok(files)
    } else {
        Err(format!("the reply has no `{MODEL_NEW}`"))
    }
}

/// A text with the changes of a block: each names the lines it replaces, which must be there once.
fn edited(before: &str, changes: &str) -> Result<String, String> {
    let mut text = before.to_owned();
    let mut rest = changes;
    while let Some(at) = rest.find(SEARCH) {
        let body = rest[at + SEARCH.len()..].trim_start_matches([' ', '\r']);
        let body = body.strip_prefix('\n').unwrap_or(body);
        let divider = line_at(body, DIVIDER).ok_or("a change has no `=======`")?;
        let after = body[divider..]
            .split_once('\n')
            .map_or("", |(_, after)| after);
        let end = line_at(after, REPLACE).ok_or("a change has no `>>>>>>> REPLACE`")?;
        let (old, new) = (&body[..divider], &after[..end]);
        text = replaced(&text, old, new)?;
        rest = &after[end + REPLACE.len()..];
    }
    Ok(text)
}

/// Where a line begins that is this and nothing else.
fn line_at(text: &str, line: &str) -> Option<usize> {
    let mut at = 0;
    for one in text.split_inclusive('\n') {
        if one.trim() == line {
            return Some(at);
        }
        at += one.len();
    }
    None
}

fn replaced(text: &str, old: &str, new: &str) -> Result<String, String> {
    let gist = old.trim().lines().next().unwrap_or_default().to_owned();
    if old.trim().is_empty() {
        return Err("a change does not say what it replaces".to_owned());
    }
    match text.matches(old).count() {
        1 => Ok(text.replacen(old, new, 1)),
        // A model that does not repeat spaces as they are still means one place.
        0 => by_lines(text, old, new)
            .ok_or_else(|| format!("what is to be replaced is not there once: `{gist}`")),
        _ => Err(format!(
            "what is to be replaced is there several times: `{gist}`"
        )),
    }
}

/// The same where lines differ in spaces around them.
fn by_lines(text: &str, old: &str, new: &str) -> Option<String> {
    let wanted: Vec<&str> = old.trim().lines().map(str::trim).collect();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let is_here = |at: &usize| {
        let mut these = lines[*at..*at + wanted.len()].iter().zip(&wanted);
        these.all(|(line, wanted)| line.trim() == *wanted)
    };
    let last = lines.len().checked_sub(wanted.len())?;
    let mut places = (0..=last).filter(is_here);
    let at = places.next().filter(|_| places.next().is_none())?;
    let mut out: String = lines[..at].concat();
    out.push_str(new.trim_matches('\n'));
    out.push('\n');
    out.push_str(&lines[at + wanted.len()..].concat());
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parent() -> FencedFiles {
        let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
        FencedFiles::from([
            file(MODEL_NEW, "import warpsmith_kernels\n"),
            file("kernels/a.cpp", "int a = 1;\n  int b = 2;\nint c = 2;\n"),
        ])
    }

    fn read(reply: &str) -> Result<FencedFiles, String> {
        files_of(reply, FinishReason::Stopped, Some(&parent()))
    }

    fn change(old: &str, new: &str) -> String {
        format!("kernels/a.cpp\n```cpp\n{SEARCH}\n{old}\n{DIVIDER}\n{new}\n{REPLACE}\n```\n")
    }

    #[test]
    fn a_change_is_applied_to_the_parents_file() {
        let found = read(&change("int a = 1;", "int a = 3;")).unwrap();
        assert_eq!(
            found["kernels/a.cpp"],
            "int a = 3;\n  int b = 2;\nint c = 2;\n"
        );
        assert_eq!(found[MODEL_NEW], parent()[MODEL_NEW]);
        // Spaces around lines may differ.
        let found = read(&change("int b = 2;\n  int c = 2;", "int d = 4;")).unwrap();
        assert_eq!(found["kernels/a.cpp"], "int a = 1;\nint d = 4;\n");
    }

    #[test]
    fn whole_files_stand_beside_the_parents() {
        let found = read("kernels/a.cpp\n```\nnew\n```\n").unwrap();
        assert_eq!(found["kernels/a.cpp"], "new\n");
        assert_eq!(found.len(), 2);
        let found = read("model_new.py\n```\nalone\n```\n").unwrap();
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn what_cannot_be_applied_is_named() {
        let why = |reply: &str| read(reply).unwrap_err();
        assert!(why(&change("int x;", "int y;")).contains("not there once: `int x;`"));
        assert!(why(&change("int a = 1;\n  int c", "long")).contains("not there once"));
        assert!(
            why("kernels/b.cpp\n```\n<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE\n```\n")
                .contains("does not have")
        );
        assert!(why("kernels/a.cpp\n```\n<<<<<<< SEARCH\nx\n```\n").contains("no `=======`"));
        assert_eq!(why("No."), "the reply has no fenced block");
        let cut = files_of(
            &change("int a = 1;", ""),
            FinishReason::Length,
            Some(&parent()),
        );
        assert_eq!(cut.unwrap_err(), "the reply was cut off");
    }
}
