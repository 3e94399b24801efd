//! Sources apart from what does not change what they do: two that differ only in comments and spaces are judged once.

use warpsmith_agent::FencedFiles;

/// One hash over the normalised files.
pub fn normalized_hash(files: &FencedFiles) -> String {
    let mut hasher = blake3::Hasher::new();
    for (path, text) in files {
        let text = normalized_source(path, text);
        for part in [path.as_bytes(), text.as_bytes()] {
            // Lengths first, so that no two sets of files read the same.
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
    }
    hasher.finalize().to_hex().to_string()
}

/// A file without comments, blank lines and needless spaces. Python keeps its indentation, strings keep everything, and
/// lines stay lines: pragmas end with them.
pub fn normalized_source(path: &str, text: &str) -> String {
    let is_python = path.ends_with(".py");
    let mut lines = Vec::new();
    let without_comments = without_comments(text, is_python);
    for line in without_comments.lines() {
        let end = line.trim_end();
        if end.trim_start().is_empty() {
            continue;
        }
        let indent = &end[..end.len() - end.trim_start().len()];
        let rest = single_spaces(end.trim_start());
        lines.push(if is_python {
            format!("{indent}{rest}")
        } else {
            rest
        });
    }
    lines.join("\n")
}

/// Runs of spaces outside quotes as one; none beside punctuation of C++.
fn single_spaces(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let (mut quote, mut escaped, mut pending) = (None, false, false);
    for letter in line.chars() {
        if let Some(mark) = quote {
            out.push(letter);
            let ends = letter == mark && !escaped;
            escaped = letter == '\\' && !escaped;
            if ends {
                quote = None;
            }
            continue;
        }
        if letter.is_whitespace() {
            pending = !out.is_empty();
            continue;
        }
        if pending {
            let before = out.chars().next_back().unwrap_or(' ');
            let quotes = |letter: char| letter == '"' || letter == '\'';
            let word = |letter: char| letter.is_alphanumeric() || letter == '_';
            let joins = |letter: char| word(letter) || quotes(letter);
            // Two operators could become another one, as `a + +b`.
            let glues = !joins(before) && !joins(letter) && !"(){}[];,".contains(before);
            // A letter before a quote makes another string of it.
            if (joins(before) && word(letter)) || (word(before) && quotes(letter)) || glues {
                out.push(' ');
            }
            pending = false;
        }
        if letter == '"' || letter == '\'' {
            quote = Some(letter);
            escaped = false;
        }
        out.push(letter);
    }
    out
}

fn without_comments(text: &str, is_python: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let letters: Vec<char> = text.chars().collect();
    let mut at = 0;
    let mut quote: Option<(char, usize)> = None;
    while at < letters.len() {
        let letter = letters[at];
        let next = letters.get(at + 1).copied();
        if let Some((mark, length)) = quote {
            if letter == '\\' {
                out.push(letter);
                out.extend(next);
                at += 2;
                continue;
            }
            let closes = (0..length).all(|more| letters.get(at + more) == Some(&mark));
            let taken = if closes { length } else { 1 };
            out.extend(&letters[at..at + taken]);
            at += taken;
            // A quote that has no end, as an apostrophe in a pragma, ends with its line.
            if closes || (letter == '\n' && length == 1) {
                quote = None;
            }
            continue;
        }
        let starts_comment = if is_python {
            letter == '#'
        } else {
            letter == '/' && next == Some('/')
        };
        if starts_comment {
            while at < letters.len() && letters[at] != '\n' {
                at += 1;
            }
            continue;
        }
        if !is_python && letter == '/' && next == Some('*') {
            at += 2;
            while at < letters.len() && !(letters[at] == '*' && letters.get(at + 1) == Some(&'/')) {
                if letters[at] == '\n' {
                    out.push('\n');
                }
                at += 1;
            }
            at += 2;
            out.push(' ');
            continue;
        }
        let digit_before = out
            .chars()
            .next_back()
            .is_some_and(|one| one.is_ascii_digit());
        // `1'000` is a number.
        let separates = letter == '\'' && !is_python && digit_before;
        if (letter == '"' || letter == '\'') && !separates {
            let triple = is_python && next == Some(letter) && letters.get(at + 2) == Some(&letter);
            let length = if triple { 3 } else { 1 };
            quote = Some((letter, length));
            out.extend(&letters[at..at + length]);
            at += length;
            continue;
        }
        out.push(letter);
        at += 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_spaces_do_not_tell_sources_apart() {
        let one = "// fast\nint f( int a ) {\n\n  return a + 1; /* one\nmore */ }\n";
        let other = "int f(int a) {\nreturn a+1;\n}\n";
        assert_eq!(
            normalized_source("kernels/a.cu", one),
            "int f(int a){\nreturn a+1;\n}"
        );
        assert_eq!(
            normalized_source("kernels/a.cu", one),
            normalized_source("kernels/a.cu", other)
        );
        let python = "import a  # why\n\nclass A:\n    x = '# no comment'\n";
        assert_eq!(
            normalized_source("model_new.py", python),
            "import a\nclass A:\n    x='# no comment'"
        );
    }

    #[test]
    fn what_changes_the_program_stays() {
        let different = |one: &str, other: &str| {
            assert_ne!(
                normalized_source("a.cu", one),
                normalized_source("a.cu", other)
            );
        };
        different("#pragma unroll 4\nfor", "#pragma unroll 8\nfor");
        different("#pragma unroll\nfor", "for");
        different("a + +b", "a ++b");
        different("char* a = \"x  y\";", "char* a = \"x y\";");
        different("int a;", "inta;");
        assert_ne!(
            normalized_source("m.py", "if a:\n    b\nc"),
            normalized_source("m.py", "if a:\n    b\n    c")
        );
        assert_eq!(
            normalized_source("a.cpp", "int a = 1'000; // 'x\nint b;"),
            "int a=1'000;\nint b;"
        );
    }
}
