//! `AdamW`: its settings, and the update on the CPU.

use serde::{Deserialize, Serialize};

/// Settings that stay the same over a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AdamW {
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f64,
    /// Decoupled from the gradient. Applied to matrices; norms, biases and the value head are left alone.
    pub weight_decay: f64,
    /// The gradient of all parameters together is clipped to this norm.
    pub max_grad_norm: f64,
}

impl Default for AdamW {
    fn default() -> Self {
        Self {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.01,
            max_grad_norm: 1.0,
        }
    }
}

/// One optimizer step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWStep {
    pub adamw: AdamW,
    pub learning_rate: f64,
    /// Counted from one, for the bias correction of the moments.
    pub step: u64,
}

/// Whether weight decay applies to a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightDecay {
    Applied,
    Exempt,
}

/// A parameter with its moments.
pub struct AdamWParameter<'a> {
    pub weights: &'a mut [f32],
    pub first_moment: &'a mut [f32],
    pub second_moment: &'a mut [f32],
    pub decay: WeightDecay,
}

impl AdamWStep {
    /// What a gradient of this norm is multiplied with.
    pub fn clip_factor(&self, norm: f64) -> f64 {
        (self.adamw.max_grad_norm / (norm + 1e-6)).min(1.0)
    }

    pub(super) fn exponent(&self) -> i32 {
        i32::try_from(self.step).unwrap_or(i32::MAX)
    }

    /// Updates a parameter by its clipped gradient, as PyTorch's `AdamW` does.
    pub fn update(&self, parameter: &mut AdamWParameter<'_>, grad: &[f32]) {
        let AdamW {
            beta1,
            beta2,
            epsilon,
            weight_decay,
            ..
        } = self.adamw;
        let decay_factor = match parameter.decay {
            WeightDecay::Applied => 1.0 - self.learning_rate * weight_decay,
            WeightDecay::Exempt => 1.0,
        };
        let learning_rate = self.learning_rate / (1.0 - beta1.powi(self.exponent()));
        let root = (1.0 - beta2.powi(self.exponent())).sqrt();
        let moments = parameter
            .first_moment
            .iter_mut()
            .zip(&mut *parameter.second_moment);
        let values = parameter.weights.iter_mut().zip(grad).zip(moments);
        for ((weight, grad), (first, second)) in values {
            let grad = f64::from(*grad);
            let mean = beta1 * f64::from(*first) + (1.0 - beta1) * grad;
            let square = beta2 * f64::from(*second) + (1.0 - beta2) * grad * grad;
            (*first, *second) = (mean as f32, square as f32);
            let change = learning_rate * mean / (square.sqrt() / root + epsilon);
            *weight = (decay_factor * f64::from(*weight) - change) as f32;
        }
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "what is not computed is exact")]
mod tests {
    use super::*;

    /// ```python
    /// p = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))
    /// o = torch.optim.AdamW([p], lr=0.1, weight_decay=0.5)
    /// for g in [[0.3, -0.2, 0.0], [0.1, 4.0, -1e-6], [-0.7, 0.0, 2.0]]:
    ///     p.grad = torch.tensor(g); o.step()
    ///     print(p.data.tolist())
    /// ```
    #[test]
    fn steps_are_pytorchs() {
        let adamw = AdamW {
            weight_decay: 0.5,
            ..AdamW::default()
        };
        let mut weights = [1.0, -2.0, 0.5];
        let (mut first, mut second) = ([0.0; 3], [0.0; 3]);
        let grads = [[0.3, -0.2, 0.0], [0.1, 4.0, -1e-6], [-0.7, 0.0, 2.0]];
        for (step, (grad, expected)) in (1..).zip(grads.iter().zip(EXPECTED)) {
            let step = AdamWStep {
                adamw,
                learning_rate: 0.1,
                step,
            };
            let mut parameter = AdamWParameter {
                weights: &mut weights,
                first_moment: &mut first,
                second_moment: &mut second,
                decay: WeightDecay::Applied,
            };
            step.update(&mut parameter, grad);
            for (found, expected) in weights.iter().zip(expected) {
                assert!((found - expected).abs() < 1e-5, "{found}, {expected}");
            }
        }
    }

    const EXPECTED: [[f32; 3]; 3] = [
        [0.85, -1.8, 0.475],
        [0.720_394, -1.780_976, 0.524_626],
        [0.714_901, -1.746_793, 0.434_514],
    ];

    #[test]
    fn what_does_not_decay_only_follows_its_gradient() {
        let mut weights = [1.0];
        let step = AdamWStep {
            adamw: AdamW::default(),
            learning_rate: 0.1,
            step: 1,
        };
        let mut parameter = AdamWParameter {
            weights: &mut weights,
            first_moment: &mut [0.0],
            second_moment: &mut [0.0],
            decay: WeightDecay::Exempt,
        };
        step.update(&mut parameter, &[0.0]);
        assert_eq!(weights, [1.0]);
        assert!((step.clip_factor(4.0) - 0.25).abs() < 1e-6);
        assert_eq!((step.clip_factor(0.5), step.clip_factor(0.0)), (1.0, 1.0));
    }
}
