//! How undecided a policy is.

use super::Loss;
use super::cross_entropy::log_sum_exp;

/// The weighted entropy of the distributions that logits stand for, `vocabulary` of them for each token; the gradient is
/// with respect to the logits.
pub fn entropy(logits: &[f32], vocabulary: usize, weights: &[f32]) -> Loss {
    assert_eq!(logits.len(), vocabulary * weights.len());
    let (mut value, mut gradient) = (0.0, vec![0.0; logits.len()]);
    for (token, &weight) in weights.iter().enumerate() {
        if weight == 0.0 {
            continue;
        }
        let span = token * vocabulary..(token + 1) * vocabulary;
        let row = &logits[span.clone()];
        let total = log_sum_exp(row);
        let log_probability = |logit: &f32| f64::from(*logit) - total;
        let entropy: f64 = row
            .iter()
            .map(log_probability)
            .map(|one| -one.exp() * one)
            .sum();
        let weight = f64::from(weight);
        value += weight * entropy;
        for (to, logit) in gradient[span].iter_mut().zip(row) {
            let log_probability = log_probability(logit);
            *to = (-weight * log_probability.exp() * (log_probability + entropy)) as f32;
        }
    }
    Loss { value, gradient }
}

/// What a policy is paid for staying undecided, as a loss; the gradient is with respect to the entropy at each token.
pub fn entropy_coeff(entropies: &[f32], weights: &[f32], coefficient: f64) -> Loss {
    assert_eq!(entropies.len(), weights.len());
    Loss::weighted(weights, |token| {
        (-coefficient * f64::from(entropies[token]), -coefficient)
    })
}
