//! Batches of token sequences, packed one after the other. No sequence attends to another.

/// Log-probability of each loss token, and entropy of the distribution it is drawn from; sequence after sequence. As an upstream
/// gradient: how the loss changes with each of them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TokenScores {
    pub logprobs: Vec<f32>,
    pub entropies: Vec<f32>,
}

/// Tokens of one conversation, of which some enter the loss: those that the policy sampled, or should imitate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSequence {
    tokens: Vec<u32>,
    loss_positions: Vec<usize>,
}

impl TokenSequence {
    /// `loss_mask` is true for tokens that enter the loss. Nothing predicts the first token, so it never does.
    pub fn new(tokens: Vec<u32>, loss_mask: &[bool]) -> Self {
        assert_eq!(tokens.len(), loss_mask.len());
        let positions = 1..tokens.len();
        Self {
            loss_positions: positions.filter(|position| loss_mask[*position]).collect(),
            tokens,
        }
    }

    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Positions of the tokens that enter the loss.
    pub fn loss_positions(&self) -> &[usize] {
        &self.loss_positions
    }

    /// How many tokens enter the loss.
    pub fn loss_tokens(&self) -> usize {
        self.loss_positions.len()
    }

    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

/// Sequences packed one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedBatch {
    pub(crate) tokens: Vec<u32>,
    pub(crate) lengths: Vec<usize>,
    /// Rows whose prediction enters the loss, and the token that each should predict.
    pub(crate) loss_targets: Vec<(u32, u32)>,
}

impl PackedBatch {
    pub fn new(sequences: &[&TokenSequence]) -> Self {
        let mut batch = Self {
            tokens: Vec::new(),
            lengths: Vec::new(),
            loss_targets: Vec::new(),
        };
        for sequence in sequences {
            let begin = batch.tokens.len();
            let targets = sequence.loss_positions.iter().map(|position| {
                let row = begin + position - 1;
                (row as u32, sequence.tokens[*position])
            });
            batch.loss_targets.extend(targets);
            batch.tokens.extend_from_slice(&sequence.tokens);
            batch.lengths.push(sequence.len());
        }
        batch
    }

    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Tokens of the longest sequence.
    pub fn longest(&self) -> usize {
        self.lengths.iter().max().copied().unwrap_or(0)
    }

    /// Tokens that enter the loss.
    pub fn loss_tokens(&self) -> usize {
        self.loss_targets.len()
    }

    /// The token that each row of the loss should predict.
    pub(crate) fn targets(&self) -> impl Iterator<Item = usize> {
        self.loss_targets.iter().map(|(_, target)| *target as usize)
    }

    /// Each row's position in its sequence.
    pub(crate) fn positions(&self) -> Vec<usize> {
        self.lengths.iter().flat_map(|length| 0..*length).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_predicted_by_the_row_before_it() {
        let sequences = [
            TokenSequence::new(vec![5, 6, 7], &[true, false, true]),
            TokenSequence::new(vec![8, 9], &[false, true]),
        ];
        let batch = PackedBatch::new(&[&sequences[0], &sequences[1]]);
        assert_eq!(batch.tokens, [5, 6, 7, 8, 9]);
        assert_eq!(batch.lengths, [3, 2]);
        assert_eq!(batch.loss_targets, [(1, 7), (3, 9)]);
    }
}
