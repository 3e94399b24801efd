//! Source text with its comments, texts, numbers and words of the language set apart. It knows just enough to be of help to
//! the eye: what it takes for something else is still shown as it is.

use maud::{Markup, html};

/// What a file is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    /// C++ and CUDA.
    Cpp,
    Python,
    Text,
}

impl Language {
    fn of(path: &str) -> Self {
        match path.rsplit_once('.').map(|(_, ending)| ending) {
            Some("py") => Self::Python,
            Some("cu" | "cuh" | "cpp" | "cc" | "c" | "h" | "hpp") => Self::Cpp,
            _ => Self::Text,
        }
    }

    fn words(self) -> &'static [&'static str] {
        match self {
            Self::Cpp => &CPP,
            Self::Python => &PYTHON,
            Self::Text => &[],
        }
    }
}

const CPP: [&str; 47] = [
    "__device__",
    "__forceinline__",
    "__global__",
    "__host__",
    "__restrict__",
    "__shared__",
    "alignas",
    "auto",
    "bool",
    "break",
    "case",
    "char",
    "class",
    "const",
    "constexpr",
    "continue",
    "do",
    "double",
    "else",
    "enum",
    "extern",
    "false",
    "float",
    "for",
    "if",
    "inline",
    "int",
    "int64_t",
    "long",
    "namespace",
    "nullptr",
    "return",
    "short",
    "signed",
    "size_t",
    "sizeof",
    "static",
    "struct",
    "switch",
    "template",
    "true",
    "typename",
    "uint32_t",
    "unsigned",
    "using",
    "void",
    "while",
];
const PYTHON: [&str; 31] = [
    "False", "None", "True", "and", "as", "assert", "break", "class", "continue", "def", "del",
    "elif", "else", "except", "finally", "for", "from", "if", "import", "in", "is", "lambda",
    "not", "or", "pass", "raise", "return", "self", "try", "while", "with",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Comment,
    Text,
    Number,
    Word,
}

impl Kind {
    fn class(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Comment => Some("c"),
            Self::Text => Some("t"),
            Self::Number => Some("n"),
            Self::Word => Some("w"),
        }
    }
}

/// The text of a file.
pub fn code(name: &str, source: &str) -> Markup {
    let language = Language::of(name);
    html! {
        pre tabindex="0" role="group" aria-label=(name) {
            code {
                @for (kind, text) in pieces(source, language) {
                    @match kind.class() {
                        Some(class) => span class=(class) { (text) },
                        None => (text),
                    }
                }
            }
        }
    }
}

/// What somebody has to say about a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeNote {
    /// From one.
    pub line: usize,
    /// Whether it is the reason why something failed.
    pub error: bool,
    pub text: String,
}

/// The text of a file with line numbers, and what there is to say right below the lines it is about.
pub fn annotated_code(name: &str, source: &str, notes: &[CodeNote]) -> Markup {
    let mut lines: Vec<Vec<(Kind, &str)>> = vec![Vec::new()];
    for (kind, text) in pieces(source, Language::of(name)) {
        for (number, part) in text.split('\n').enumerate() {
            if number > 0 {
                lines.push(Vec::new());
            }
            if let (Some(line), false) = (lines.last_mut(), part.is_empty()) {
                line.push((kind, part));
            }
        }
    }
    if lines.last().is_some_and(Vec::is_empty) && lines.len() > 1 {
        lines.pop();
    }
    let width = lines.len().to_string().len();
    html! {
        pre.numbered tabindex="0" role="group" aria-label=(name) {
            code {
                @for (number, line) in lines.iter().enumerate() {
                    @let about = || notes.iter().filter(move |note| note.line == number + 1);
                    span.line.noted[about().next().is_some()] {
                        span.number { (format!("{:>width$} ", number + 1)) }
                        @for (kind, text) in line {
                            @match kind.class() {
                                Some(class) => span class=(class) { (text) },
                                None => (text),
                            }
                        }
                        "\n"
                    }
                    @for note in about() {
                        span.note.failed[note.error] { (" ".repeat(width)) @if note.error { " ✗ " } @else { " ! " } (note.text) "\n" }
                    }
                }
            }
        }
    }
}

/// The source cut into pieces, neighbours of one kind together.
fn pieces(source: &str, language: Language) -> Vec<(Kind, &str)> {
    let mut pieces: Vec<(Kind, &str)> = Vec::new();
    let (mut begun, mut at) = (0, 0);
    while at < source.len() {
        let (kind, length) = piece(&source[at..], language);
        if kind != Kind::Plain {
            if begun < at {
                pieces.push((Kind::Plain, &source[begun..at]));
            }
            pieces.push((kind, &source[at..at + length]));
            begun = at + length;
        }
        at += length;
    }
    if begun < source.len() {
        pieces.push((Kind::Plain, &source[begun..]));
    }
    pieces
}

/// What the text begins with, and how long that is in bytes.
fn piece(text: &str, language: Language) -> (Kind, usize) {
    let first = text.chars().next().unwrap_or_default();
    let until = |end: &str, from: usize| {
        text[from..]
            .find(end)
            .map_or(text.len(), |found| from + found + end.len())
    };
    // Looked for only where it is wanted: all of a line's pieces together would look through it as often as there are pieces.
    let line = || text.find('\n').unwrap_or(text.len());
    let while_in =
        |belongs: fn(char) -> bool| text.find(|letter| !belongs(letter)).unwrap_or(text.len());
    match language {
        Language::Text => return (Kind::Plain, text.len()),
        Language::Python if first == '#' => return (Kind::Comment, line()),
        Language::Python if text.starts_with("\"\"\"") => return (Kind::Text, until("\"\"\"", 3)),
        Language::Python if text.starts_with("'''") => return (Kind::Text, until("'''", 3)),
        Language::Cpp if text.starts_with("//") => return (Kind::Comment, line()),
        Language::Cpp if text.starts_with("/*") => return (Kind::Comment, until("*/", 2)),
        // The directive's name; what follows is code.
        Language::Cpp if first == '#' => {
            let name = text[1..].find(|letter: char| !letter.is_alphanumeric());
            return (Kind::Word, name.map_or(text.len(), |end| 1 + end));
        }
        _ => {}
    }
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    match first {
        '"' | '\'' => (Kind::Text, quoted(text, first)),
        digit if digit.is_ascii_digit() => (
            Kind::Number,
            while_in(|letter| letter.is_ascii_alphanumeric() || letter == '.'),
        ),
        letter if is_word(letter) => {
            let length = while_in(|letter| letter.is_alphanumeric() || letter == '_');
            let known = language.words().contains(&&text[..length]);
            (if known { Kind::Word } else { Kind::Plain }, length)
        }
        other => (Kind::Plain, other.len_utf8()),
    }
}

/// A text in quotes ends with its line at the latest.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, letter) in text.char_indices().skip(1) {
        match letter {
            '\n' => return at,
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if letter == quote => return at + quote.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_a_compiler_says_stands_below_its_line() {
        let source = "int x = 1;\n/* a\nb */ int y\n";
        let note = CodeNote {
            line: 3,
            error: true,
            text: "error: expected ';' <here>".to_owned(),
        };
        let text = annotated_code("kernels/a.cpp", source, &[note]).into_string();
        let places = [
            "1 ",
            "2 ",
            "<span class=\"c\">b */</span>",
            "expected ';' &lt;here&gt;",
        ]
        .map(|part| text.find(part));
        assert!(
            places.iter().all(Option::is_some) && places.is_sorted(),
            "{text}"
        );
        assert_eq!(text.matches("class=\"number\"").count(), 3, "{text}");
        assert!(text.contains("class=\"line noted\""), "{text}");
    }

    fn told(source: &str, language: Language) -> Vec<(&'static str, &str)> {
        let pieces = pieces(source, language);
        pieces
            .into_iter()
            .filter_map(|(kind, text)| Some((kind.class()?, text)))
            .collect()
    }

    #[test]
    fn pieces_of_two_languages() {
        let cpp =
            "#include <cmath>\n/* a\nb */ float f(int x1) { return 0.5f * g(\"//\\\"\"); } // end";
        let expected = [
            ("w", "#include"),
            ("c", "/* a\nb */"),
            ("w", "float"),
            ("w", "int"),
            ("w", "return"),
            ("n", "0.5f"),
            ("t", "\"//\\\"\""),
            ("c", "// end"),
        ];
        assert_eq!(told(cpp, Language::Cpp), expected);
        let python = "def f():\n    \"\"\"a\n'b\"\"\"\n    return 'é' + \"open\n# end";
        let expected = [
            ("w", "def"),
            ("t", "\"\"\"a\n'b\"\"\""),
            ("w", "return"),
            ("t", "'é'"),
            ("t", "\"open"),
            ("c", "# end"),
        ];
        assert_eq!(told(python, Language::Python), expected);
        assert_eq!(told("return 1", Language::Text), []);
    }

    /// What is shown was written by whoever is being judged.
    #[test]
    fn a_line_as_long_as_a_file_takes_no_longer_than_many() {
        for line in [
            "+ ".repeat(1 << 20),
            "a1 ".repeat(1 << 19),
            "'".repeat(1 << 20),
        ] {
            for language in [Language::Cpp, Language::Python] {
                let begun = std::time::Instant::now();
                let found = pieces(&line, language);
                assert!(!found.is_empty());
                let spent = begun.elapsed();
                assert!(spent.as_secs() < 10, "{spent:?}");
            }
        }
    }

    #[test]
    fn languages_by_ending() {
        let found = ["kernels/a.cu", "model_new.py", "README", "a.txt"].map(Language::of);
        assert_eq!(
            found,
            [
                Language::Cpp,
                Language::Python,
                Language::Text,
                Language::Text
            ]
        );
    }

    #[test]
    fn what_is_highlighted_is_escaped() {
        let text = code("<i>.cpp", "\"</code><script>\" // <b>").into_string();
        assert!(
            !text.contains("<script>") && !text.contains("<b>") && !text.contains("<i>"),
            "{text}"
        );
    }

    proptest! {
        #[test]
        fn nothing_is_lost(source in "[a-z0-9_\"'#/*\\\\\n é.]{0,60}") {
            for language in [Language::Cpp, Language::Python, Language::Text] {
                let whole: String = pieces(&source, language).into_iter().map(|(_, text)| text).collect();
                prop_assert_eq!(&whole, &source);
            }
        }
    }
}
