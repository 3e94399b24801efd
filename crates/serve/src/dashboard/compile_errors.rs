//! What a compiler or Python said, by the line it is about.

use warpsmith_report::page::CodeNote;

/// Lines of a message that say something about a file of the submission: g++'s `a.cpp:51:17: error: …`, nvcc's
/// `a.cu(51): error: …`, and the last frame of a Python traceback.
pub(super) fn notes(file: &str, said: &str) -> Vec<CodeNote> {
    let mut notes: Vec<CodeNote> = Vec::new();
    let mut add = |note: CodeNote| {
        if !notes.contains(&note) {
            notes.push(note);
        }
    };
    for line in said.lines() {
        if let Some((path, number, kind, text)) = compiler_line(line)
            && is_same(path, file)
        {
            add(CodeNote {
                line: number,
                error: kind.ends_with("error"),
                text: format!("{kind}: {text}"),
            });
        }
    }
    if let Some(note) = python_note(file, said) {
        add(note);
    }
    notes
}

fn compiler_line(line: &str) -> Option<(&str, usize, &str, &str)> {
    let kinds = ["fatal error", "error", "warning"];
    let (place, kind, text) = kinds.iter().find_map(|kind| {
        let sign = format!(": {kind}: ");
        // nvcc numbers its messages: `error #20: …`
        let numbered = format!(": {kind} #");
        let at = line.find(&sign).map(|at| (at, at + sign.len()));
        let at = at.or_else(|| {
            let at = line.find(&numbered)?;
            let text = line[at + numbered.len()..].find(": ")?;
            Some((at, at + numbered.len() + text + 2))
        })?;
        Some((&line[..at.0], *kind, &line[at.1..]))
    })?;
    let in_brackets = place
        .strip_suffix(')')
        .and_then(|place| place.rsplit_once('('));
    let (path, number) = if let Some((path, number)) = in_brackets {
        (path, number.parse().ok()?)
    } else {
        let mut parts = place.rsplitn(3, ':');
        let (last, before) = (parts.next()?, parts.next()?);
        match (parts.next(), before.parse()) {
            // `path:line:column`
            (Some(path), Ok(number)) => (path, number),
            // `path:line`
            _ => (place.rsplit_once(':')?.0, last.parse().ok()?),
        }
    };
    Some((path.trim(), number, kind, text))
}

/// Paths in messages may be longer than those of a submission.
fn is_same(path: &str, file: &str) -> bool {
    path == file
        || path
            .strip_suffix(file)
            .is_some_and(|rest| rest.ends_with('/'))
}

/// The last frame in this file, with what was raised.
fn python_note(file: &str, said: &str) -> Option<CodeNote> {
    let frame = said.lines().rev().find_map(|line| {
        let rest = line.trim_start().strip_prefix("File \"")?;
        let (path, rest) = rest.split_once("\", line ")?;
        let number = rest.split(|letter: char| !letter.is_ascii_digit()).next()?;
        is_same(path, file).then(|| number.parse().ok())?
    })?;
    let raised = said.lines().rev().find(|line| {
        let begins = line.chars().next().is_some_and(char::is_alphabetic);
        let name = line.split(':').next().unwrap_or_default();
        begins && (name.ends_with("Error") || name.ends_with("Exception"))
    })?;
    Some(CodeNote {
        line: frame,
        error: true,
        text: raised.trim().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(file: &str, said: &str) -> Vec<(usize, bool, String)> {
        let notes = notes(file, said).into_iter();
        notes
            .map(|note| (note.line, note.error, note.text))
            .collect()
    }

    #[test]
    fn what_gcc_nvcc_and_python_say_is_found_by_line() {
        let said = "== kernels/a.cpp\nkernels/a.cpp: In function 'void f()':\n\
                    kernels/a.cpp:51:17: error: expected ',' or ';' before 'const'\n   51 |  const float x\n\
                    kernels/a.cpp:60: warning: unused\n/build/kernels/a.cpp:7:1: fatal error: none.h: No such file\n\
                    kernels/b.cpp:51:17: error: another file\n";
        let expected = [
            (51, true, "error: expected ',' or ';' before 'const'"),
            (60, false, "warning: unused"),
            (7, true, "fatal error: none.h: No such file"),
        ]
        .map(|(line, error, text)| (line, error, text.to_owned()));
        assert_eq!(told("kernels/a.cpp", said), expected);
        let said = "kernels/a.cu(12): error: identifier \"x\" is undefined\nkernels/a.cu(13): warning #177-D: variable \"y\" was declared\n";
        let expected = [
            (12, true, "error: identifier \"x\" is undefined"),
            (13, false, "warning: variable \"y\" was declared"),
        ]
        .map(|(line, error, text)| (line, error, text.to_owned()));
        assert_eq!(told("kernels/a.cu", said), expected);
        let said = "Traceback (most recent call last):\n  File \"model_new.py\", line 3, in __init__\n    f()\n  \
                    File \"model_new.py\", line 9, in f\n    g\nNameError: name 'g' is not defined\n";
        let expected = [(9, true, "NameError: name 'g' is not defined".to_owned())];
        assert_eq!(told("model_new.py", said), expected);
        assert_eq!(told("kernels/a.cpp", said), []);
        for nothing in [
            "",
            "error: it failed",
            "output 0 at [1, 2] of [3, 4]: got 1",
        ] {
            assert_eq!(told("model_new.py", nothing), [], "{nothing}");
        }
    }
}
