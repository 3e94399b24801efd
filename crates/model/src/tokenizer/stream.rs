//! Text of tokens as they come: a character may be spread over several tokens.

use super::Tokenizer;
use crate::ModelError;

/// Tokens of one reply, and how much of their text was given out.
#[derive(Debug, Clone, Default)]
pub struct TextStream {
    tokens: Vec<u32>,
    /// Decoding starts here: far enough back that the tokenizer sees what came before.
    context: usize,
    /// Up to here the text was given out.
    given: usize,
}

impl TextStream {
    /// The text that this token completes; empty where a character is still in pieces.
    pub fn push(&mut self, tokenizer: &Tokenizer, token: u32) -> Result<String, ModelError> {
        self.tokens.push(token);
        let text = self.pending(tokenizer)?;
        // A replacement character at the end is a character whose last bytes have not come yet.
        if text.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        self.context = self.given;
        self.given = self.tokens.len();
        Ok(text)
    }

    /// What is left when no more tokens come, broken characters and all.
    pub fn finish(&self, tokenizer: &Tokenizer) -> Result<String, ModelError> {
        self.pending(tokenizer)
    }

    fn pending(&self, tokenizer: &Tokenizer) -> Result<String, ModelError> {
        let before = tokenizer.decode(&self.tokens[self.context..self.given])?;
        let mut text = tokenizer.decode(&self.tokens[self.context..])?;
        let start = before.len().min(text.len());
        Ok(if text.is_char_boundary(start) {
            text.split_off(start)
        } else {
            String::new()
        })
    }
}
