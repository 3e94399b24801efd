/// A piece of a Python text. Comments are none, nor are line ends inside brackets.
#[derive(Debug, Clone, PartialEq)]
pub enum Token {
    Word(String),
    Number,
    /// A string's content, escapes as they are written.
    Text(String),
    /// An operator or a bracket.
    Mark(&'static str),
    LineEnd,
    Indent,
    Dedent,
}

/// Longest first: the first that fits is meant.
const MARKS: [&str; 47] = [
    "**=", "//=", ">>=", "<<=", "...", "**", "//", ">>", "<<", "<=", ">=", "==", "!=", "->", "+=",
    "-=", "*=", "/=", "%=", "&=", "|=", "^=", "@=", ":=", "+", "-", "*", "/", "%", "@", "&", "|",
    "^", "~", "<", ">", "(", ")", "[", "]", "{", "}", ",", ":", ".", ";", "=",
];
/// What Python counts a tab as, at most.
const TAB: usize = 8;

pub fn tokens(source: &str) -> Vec<Token> {
    let mut reader = Reader {
        characters: source.chars().collect(),
        at: 0,
        brackets: 0,
        indents: vec![0],
        tokens: Vec::new(),
    };
    reader.read();
    reader.tokens
}

struct Reader {
    characters: Vec<char>,
    at: usize,
    brackets: usize,
    indents: Vec<usize>,
    tokens: Vec<Token>,
}

impl Reader {
    fn read(&mut self) {
        self.indentation();
        while let Some(character) = self.peek(0) {
            match character {
                '#' => self.skip_comment(),
                '\n' => {
                    self.at += 1;
                    if self.brackets == 0 {
                        self.end_line();
                        self.indentation();
                    }
                }
                // A line that goes on is one line.
                '\\' if self.peek(1) == Some('\n') => self.at += 2,
                '\\' if self.peek(1) == Some('\r') && self.peek(2) == Some('\n') => self.at += 3,
                '"' | '\'' => self.text(),
                _ if character.is_ascii_digit() => self.number(),
                '.' if self.peek(1).is_some_and(|next| next.is_ascii_digit()) => self.number(),
                _ if character == '_' || character.is_alphanumeric() => self.word(),
                _ => self.mark(),
            }
        }
        self.end_line();
        for _ in 1..self.indents.len() {
            self.tokens.push(Token::Dedent);
        }
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.characters.get(self.at + ahead).copied()
    }

    fn end_line(&mut self) {
        if !matches!(
            self.tokens.last(),
            None | Some(Token::LineEnd | Token::Indent | Token::Dedent)
        ) {
            self.tokens.push(Token::LineEnd);
        }
    }

    fn skip_comment(&mut self) {
        while self.peek(0).is_some_and(|next| next != '\n') {
            self.at += 1;
        }
    }

    /// At the beginning of a line; empty ones and comments say nothing about depth.
    fn indentation(&mut self) {
        let mut width = 0;
        while let Some(character) = self.peek(0) {
            match character {
                ' ' => width += 1,
                '\t' => width = (width / TAB + 1) * TAB,
                '\n' | '\u{c}' | '\u{feff}' => width = 0,
                '\r' => {}
                '#' => {
                    self.skip_comment();
                    continue;
                }
                _ => break,
            }
            self.at += 1;
        }
        if self.peek(0).is_none() {
            return;
        }
        let current = |indents: &[usize]| indents.last().copied().unwrap_or(0);
        if width > current(&self.indents) {
            self.indents.push(width);
            self.tokens.push(Token::Indent);
        }
        while width < current(&self.indents) {
            self.indents.pop();
            self.tokens.push(Token::Dedent);
        }
    }

    fn word(&mut self) {
        let start = self.at;
        while self
            .peek(0)
            .is_some_and(|next| next == '_' || next.is_alphanumeric())
        {
            self.at += 1;
        }
        let word: String = self.characters[start..self.at].iter().collect();
        if matches!(self.peek(0), Some('"' | '\'')) && is_prefix(&word) {
            self.text();
        } else {
            self.tokens.push(Token::Word(word));
        }
    }

    fn number(&mut self) {
        while let Some(next) = self.peek(0) {
            let exponent = matches!(next, 'e' | 'E')
                && matches!(self.peek(1), Some('+' | '-'))
                && self.peek(2).is_some_and(|digit| digit.is_ascii_digit());
            if exponent {
                self.at += 2;
            } else if next != '.' && next != '_' && !next.is_alphanumeric() {
                break;
            } else {
                self.at += 1;
            }
        }
        self.tokens.push(Token::Number);
    }

    /// One that does not end takes the rest of its line, or of the file where it has three quotes.
    fn text(&mut self) {
        let quote = self.peek(0);
        let triple = self.peek(1) == quote && self.peek(2) == quote;
        self.at += if triple { 3 } else { 1 };
        let mut content = String::new();
        while let Some(character) = self.peek(0) {
            if character == '\\' {
                content.push(character);
                content.extend(self.peek(1));
                self.at += 2;
                continue;
            }
            let ends = Some(character) == quote;
            if ends && !triple {
                self.at += 1;
                break;
            }
            if ends && self.peek(1) == quote && self.peek(2) == quote {
                self.at += 3;
                break;
            }
            if character == '\n' && !triple {
                break;
            }
            content.push(character);
            self.at += 1;
        }
        self.at = self.at.min(self.characters.len());
        self.tokens.push(Token::Text(content));
    }

    fn mark(&mut self) {
        let fits = |mark: &&str| {
            mark.chars()
                .enumerate()
                .all(|(ahead, expected)| self.peek(ahead) == Some(expected))
        };
        // White space, and characters that Python does not know.
        let Some(mark) = MARKS.into_iter().find(fits) else {
            self.at += 1;
            return;
        };
        match mark {
            "(" | "[" | "{" => self.brackets += 1,
            ")" | "]" | "}" => self.brackets = self.brackets.saturating_sub(1),
            _ => {}
        }
        self.at += mark.len();
        self.tokens.push(Token::Mark(mark));
    }
}

fn is_prefix(word: &str) -> bool {
    ["r", "b", "u", "f", "t", "rb", "br", "fr", "rf", "tr", "rt"]
        .contains(&word.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(source: &str) -> String {
        tokens(source)
            .into_iter()
            .map(|token| match token {
                Token::Word(word) => word,
                Token::Number => "0".into(),
                Token::Text(text) => format!("'{text}'"),
                Token::Mark(mark) => mark.into(),
                Token::LineEnd => ";".into(),
                Token::Indent => ">".into(),
                Token::Dedent => "<".into(),
            })
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn lines_brackets_and_depth() {
        assert_eq!(
            shown("def f(a,\n      b):\n    # why\n\n    return a \\\n  @ b\nx = 1e-5\n"),
            "def f ( a , b ) : ; > return a @ b ; < x = 0 ;"
        );
        assert_eq!(shown("if a:\n\tb\n  c\nd"), "if a : ; > b ; < c ; d ;");
    }

    #[test]
    fn strings_of_every_kind() {
        assert_eq!(shown("x = r'a\\'b' + F\"{y}\""), "x = 'a\\'b' + '{y}' ;");
        assert_eq!(
            shown("'''a\n'b'\n''' # c\nfor_ = 2"),
            "'a\n'b'\n' ; for_ = 0 ;"
        );
        assert_eq!(shown("x = 'open\ny"), "x = 'open' ; y ;");
    }

    #[test]
    fn numbers_are_one_token() {
        assert_eq!(
            shown("1.5e-3+.5 - 0x1F*1_000j, x.y, a[1:2]"),
            "0 + 0 - 0 * 0 , x . y , a [ 0 : 0 ] ;"
        );
    }
}
