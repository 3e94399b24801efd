//! C++ and CUDA text as tokens: no more than is needed to tell one top-level declaration from the next.

use std::ops::Range;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    Word,
    /// A number, a string or a character.
    Literal,
    /// A whole line that begins with `#`, with its continuations.
    Directive,
    /// One character of an operator or of punctuation.
    Symbol(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: TokenKind,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// Text that can be taken apart: its brackets match.
pub(super) struct Tokens<'a> {
    pub(super) text: &'a str,
    pub(super) all: Vec<Token>,
}

impl<'a> Tokens<'a> {
    /// `None` where the text has what is not understood here.
    pub(super) fn read(text: &'a str) -> Option<Self> {
        let bytes = text.as_bytes();
        let mut all = Vec::new();
        let (mut at, mut line_is_empty) = (0, true);
        while let Some(&byte) = bytes.get(at) {
            let rest = &text[at..];
            let start = at;
            let kind = match byte {
                b'\n' => {
                    line_is_empty = true;
                    at += 1;
                    continue;
                }
                _ if byte.is_ascii_whitespace() => {
                    at += 1;
                    continue;
                }
                // A line that is continued elsewhere than in a directive.
                b'\\' => return None,
                _ if rest.starts_with("//") => {
                    at += line_end(rest);
                    continue;
                }
                _ if rest.starts_with("/*") => {
                    at += 2 + rest[2..].find("*/")? + 2;
                    continue;
                }
                b'#' if line_is_empty => {
                    at += line_end(rest);
                    TokenKind::Directive
                }
                b'"' | b'\'' => {
                    at += quoted(rest)?;
                    TokenKind::Literal
                }
                _ if byte.is_ascii_digit() => {
                    at += span(rest, |c| c.is_alphanumeric() || "._'".contains(c));
                    TokenKind::Literal
                }
                _ if byte.is_ascii_alphabetic() || byte == b'_' => {
                    at += span(rest, |c| c.is_alphanumeric() || c == '_');
                    // A raw string, or one of another character type.
                    if matches!(bytes.get(at), Some(b'"' | b'\'')) {
                        return None;
                    }
                    TokenKind::Word
                }
                _ if byte.is_ascii() => {
                    at += 1;
                    TokenKind::Symbol(byte)
                }
                _ => return None,
            };
            line_is_empty = false;
            all.push(Token {
                kind,
                start,
                end: at,
            });
        }
        let tokens = Self { text, all };
        tokens.brackets_match().then_some(tokens)
    }

    fn brackets_match(&self) -> bool {
        let mut open = Vec::new();
        for token in &self.all {
            match token.kind {
                TokenKind::Symbol(byte @ (b'(' | b'[' | b'{')) => open.push(byte),
                TokenKind::Symbol(byte @ (b')' | b']' | b'}'))
                    if open.pop().map(closing) != Some(byte) =>
                {
                    return false;
                }
                _ => {}
            }
        }
        open.is_empty()
    }

    pub(super) fn word(&self, index: usize) -> Option<&'a str> {
        let token = self.all.get(index)?;
        (token.kind == TokenKind::Word).then(|| self.of(*token))
    }

    pub(super) fn of(&self, token: Token) -> &'a str {
        &self.text[token.start..token.end]
    }

    pub(super) fn symbol(&self, index: usize) -> Option<u8> {
        match self.all.get(index)?.kind {
            TokenKind::Symbol(byte) => Some(byte),
            _ => None,
        }
    }

    /// Whether the same character stands there three times without a gap: the ends of a launch's configuration.
    pub(super) fn tripled(&self, index: usize, byte: u8) -> bool {
        (0..3).all(|step| self.symbol(index + step) == Some(byte))
            && self.all[index + 2].end - self.all[index].start == 3
    }

    /// The bracket that closes this one.
    pub(super) fn matching(&self, index: usize) -> Option<usize> {
        let open = self.symbol(index)?;
        let mut depth = 0;
        for (place, token) in self.all.iter().enumerate().skip(index) {
            match token.kind {
                TokenKind::Symbol(byte) if byte == open => depth += 1,
                TokenKind::Symbol(byte) if byte == closing(open) => {
                    depth -= 1;
                    if depth == 0 {
                        return Some(place);
                    }
                }
                _ => {}
            }
        }
        None
    }

    pub(super) fn words(&self, range: Range<usize>) -> impl Iterator<Item = &'a str> {
        range.filter_map(|index| self.word(index))
    }
}

fn closing(open: u8) -> u8 {
    match open {
        b'(' => b')',
        b'[' => b']',
        b'<' => b'>',
        _ => b'}',
    }
}

fn span(text: &str, part: impl Fn(char) -> bool) -> usize {
    text.find(|c| !part(c)).unwrap_or(text.len())
}

/// Of a line with its continuations; its line break is not part of it.
fn line_end(text: &str) -> usize {
    let mut end = 0;
    for line in text.split_inclusive('\n') {
        let whole = line.trim_end_matches('\n');
        if !whole.trim_end_matches('\r').ends_with('\\') {
            return end + whole.len();
        }
        end += line.len();
    }
    text.len()
}

fn quoted(text: &str) -> Option<usize> {
    let quote = text.chars().next()?;
    let mut escaped = false;
    for (place, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '\n' => return None,
            _ if c == quote => return Some(place + 1),
            _ => {}
        }
    }
    None
}
