//! Log-probability and entropy of rows of logits, and the gradient of the logits.

use super::real::Real;

/// The distribution that one row of logits stands for.
#[derive(Debug, Clone, Copy)]
pub struct LogitStats {
    /// Log of the sum over exp(logit).
    pub lse: f64,
    pub entropy: f64,
}

impl LogitStats {
    pub fn new<T: Real>(logits: &[T]) -> Self {
        let max = logits
            .iter()
            .fold(f64::NEG_INFINITY, |max, logit| max.max(logit.to_f64()));
        let (mut sum, mut weighted) = (0.0, 0.0);
        for logit in logits {
            let above = logit.to_f64() - max;
            let power = above.exp();
            sum += power;
            // Not zero times minus infinity for tokens of probability zero.
            weighted += if power > 0.0 { power * above } else { 0.0 };
        }
        Self {
            lse: max + sum.ln(),
            entropy: sum.ln() - weighted / sum,
        }
    }

    pub fn logprob<T: Real>(&self, logits: &[T], target: usize) -> f64 {
        logits[target].to_f64() - self.lse
    }

    /// Replaces logits by their gradients, from the upstream gradients of the target's log-probability and of the entropy.
    pub fn backward<T: Real>(&self, logits: &mut [T], target: usize, upstream: [f64; 2]) {
        let [d_logprob, d_entropy] = upstream;
        for logit in &mut *logits {
            let logprob = logit.to_f64() - self.lse;
            let prob = logprob.exp();
            let surprise = if prob > 0.0 {
                logprob + self.entropy
            } else {
                0.0
            };
            *logit = T::from_f64(-prob * (d_logprob + d_entropy * surprise));
        }
        logits[target] += T::from_f64(d_logprob);
    }
}
