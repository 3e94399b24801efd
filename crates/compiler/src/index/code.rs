//! Index expressions as text.

use std::fmt::Write;

use super::{Atom, Index, Var};

/// How variables and numbers are written.
pub(crate) trait IndexNames {
    fn name(&self, var: Var) -> String;

    /// Not negative; in brackets where it is more than a number.
    fn number(&self, number: i64) -> String {
        number.to_string()
    }

    /// A factor.
    fn factor(&self, number: i64) -> String {
        self.number(number)
    }

    /// A term that is added to an index, with its sign; it is not zero.
    fn offset(&self, by: i64) -> String {
        let sign = if by < 0 { '-' } else { '+' };
        format!(" {sign} {}", self.number(by.abs()))
    }
}

impl Index {
    /// In C; the same in CUDA.
    pub(crate) fn code(&self, words: &dyn IndexNames) -> String {
        let mut text = String::new();
        // Large factors come first and negative terms last, as in code written by hand.
        let mut terms: Vec<&(Atom, i64)> = self.terms.iter().collect();
        terms.sort_by_key(|(_, factor)| (*factor < 0, std::cmp::Reverse(factor.abs())));
        for (atom, factor) in terms {
            let part = match atom {
                Atom::Var(var) => words.name(*var),
                Atom::Div(inner, by) => {
                    format!("{} / {}", inner.operand(words), words.number(*by))
                }
                Atom::Mod(inner, by) => {
                    format!("{} % {}", inner.operand(words), words.number(*by))
                }
            };
            let part = match factor.abs() {
                1 => part,
                size => format!("{part} * {}", words.factor(size)),
            };
            match (text.is_empty(), *factor < 0) {
                (true, false) => text.push_str(&part),
                (true, true) => {
                    let _ = write!(text, "-{part}");
                }
                (false, false) => {
                    let _ = write!(text, " + {part}");
                }
                (false, true) => {
                    let _ = write!(text, " - {part}");
                }
            }
        }
        match (text.is_empty(), self.constant) {
            (true, constant) => constant.to_string(),
            (false, 0) => text,
            (false, constant) => text + &words.offset(constant),
        }
    }

    /// In brackets where it must be.
    pub(crate) fn operand(&self, words: &dyn IndexNames) -> String {
        let text = self.code(words);
        if text.contains(' ') || text.starts_with('-') {
            format!("({text})")
        } else {
            text
        }
    }
}
