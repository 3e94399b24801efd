//! Learning to say what was said: supervised and rejection fine-tuning.

use super::Loss;

/// From the log-probability of each token; the gradient is with respect to those.
pub fn negative_log_likelihood(logprobs: &[f32], weights: &[f32]) -> Loss {
    assert_eq!(logprobs.len(), weights.len());
    Loss::weighted(weights, |token| (-f64::from(logprobs[token]), -1.0))
}

/// The same from logits, `vocabulary` of them for each token; the gradient is with respect to the logits.
pub fn cross_entropy(logits: &[f32], vocabulary: usize, targets: &[u32], weights: &[f32]) -> Loss {
    assert_eq!(targets.len(), weights.len());
    assert_eq!(logits.len(), vocabulary * targets.len());
    let (mut value, mut gradient) = (0.0, vec![0.0; logits.len()]);
    for (token, (&target, &weight)) in targets.iter().zip(weights).enumerate() {
        if weight == 0.0 {
            continue;
        }
        let span = token * vocabulary..(token + 1) * vocabulary;
        let row = &logits[span.clone()];
        let total = log_sum_exp(row);
        let weight = f64::from(weight);
        value += weight * (total - f64::from(row[target as usize]));
        for (to, logit) in gradient[span.clone()].iter_mut().zip(row) {
            *to = (weight * (f64::from(*logit) - total).exp()) as f32;
        }
        gradient[span.start + target as usize] -= weight as f32;
    }
    Loss { value, gradient }
}

/// The largest taken out first, so that nothing overflows.
pub(super) fn log_sum_exp(row: &[f32]) -> f64 {
    let largest = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = row
        .iter()
        .map(|one| (f64::from(*one) - largest).exp())
        .sum();
    largest + sum.ln()
}
