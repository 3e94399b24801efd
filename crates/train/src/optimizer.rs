//! From gradients to new parameters: `AdamW` in `f32`, and how its rate changes over a run.

use serde::{Deserialize, Serialize};

/// `AdamW`'s settings that stay the same over a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AdamW {
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f64,
    /// Shrinks matrices, apart from the gradient. Norms, biases and heads of one row are left alone.
    pub weight_decay: f64,
    /// Gradients longer than this, all together, are shortened to it.
    pub max_gradient_norm: f64,
}

impl Default for AdamW {
    fn default() -> Self {
        Self {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.01,
            max_gradient_norm: 1.0,
        }
    }
}

/// One parameter's running means of its gradient and of its square.
#[derive(Debug, Clone, PartialEq)]
pub struct Moments {
    pub first: Vec<f32>,
    pub second: Vec<f32>,
}

impl Moments {
    pub fn zero(count: usize) -> Self {
        Self {
            first: vec![0.0; count],
            second: vec![0.0; count],
        }
    }
}

/// One update of all parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Update {
    pub adamw: AdamW,
    pub rate: f64,
    /// Counted from one: the means start at zero, and this says how much of them is still that.
    pub step: u64,
}

impl Update {
    /// What gradients of this length, all together, are multiplied with.
    pub fn shortening(&self, norm: f64) -> f64 {
        (self.adamw.max_gradient_norm / (norm + 1e-6)).min(1.0)
    }

    /// Changes a parameter by its gradient, as PyTorch's `AdamW` does.
    pub fn apply(
        &self,
        parameter: &mut [f32],
        gradient: &[f32],
        moments: &mut Moments,
        decays: Decays,
    ) {
        let AdamW {
            beta1,
            beta2,
            epsilon,
            weight_decay,
            ..
        } = self.adamw;
        let kept = match decays {
            Decays::Yes => 1.0 - self.rate * weight_decay,
            Decays::No => 1.0,
        };
        let step = i32::try_from(self.step).unwrap_or(i32::MAX);
        let rate = self.rate / (1.0 - beta1.powi(step));
        let root = (1.0 - beta2.powi(step)).sqrt();
        let (first, second) = (&mut moments.first, &mut moments.second);
        for (((parameter, gradient), first), second) in
            parameter.iter_mut().zip(gradient).zip(first).zip(second)
        {
            let slope = f64::from(*gradient);
            let mean = beta1 * f64::from(*first) + (1.0 - beta1) * slope;
            let square = beta2 * f64::from(*second) + (1.0 - beta2) * slope * slope;
            (*first, *second) = (mean as f32, square as f32);
            let by = rate * mean / (square.sqrt() / root + epsilon);
            *parameter = (kept * f64::from(*parameter) - by) as f32;
        }
    }
}

/// Whether weight decay concerns a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decays {
    Yes,
    No,
}

/// What the rate does after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decline {
    Constant,
    /// To zero at the last step.
    Linear,
    /// To zero at the last step, slowly at first and at last.
    Cosine,
}

/// The learning rate over a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    pub peak: f64,
    /// Steps over which it rises to its peak.
    pub warmup: u64,
    pub steps: u64,
    pub decline: Decline,
}

impl Schedule {
    /// At a step counted from one.
    pub fn rate(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.peak * step as f64 / self.warmup as f64;
        }
        let falling = self.steps.saturating_sub(self.warmup).max(1);
        let share = ((step - self.warmup) as f64 / falling as f64).min(1.0);
        self.peak
            * match self.decline {
                Decline::Constant => 1.0,
                Decline::Linear => 1.0 - share,
                Decline::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * share).cos()),
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
        let mut parameter = [1.0, -2.0, 0.5];
        let mut moments = Moments::zero(3);
        let gradients = [[0.3, -0.2, 0.0], [0.1, 4.0, -1e-6], [-0.7, 0.0, 2.0]];
        for (step, (gradient, expected)) in gradients.iter().zip(EXPECTED).enumerate() {
            let update = Update {
                adamw,
                rate: 0.1,
                step: step as u64 + 1,
            };
            update.apply(&mut parameter, gradient, &mut moments, Decays::Yes);
            for (found, expected) in parameter.iter().zip(expected) {
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
        let mut parameter = [1.0];
        let update = Update {
            adamw: AdamW::default(),
            rate: 0.1,
            step: 1,
        };
        update.apply(&mut parameter, &[0.0], &mut Moments::zero(1), Decays::No);
        assert_eq!(parameter, [1.0]);
        assert!((update.shortening(4.0) - 0.25).abs() < 1e-6);
        assert_eq!((update.shortening(0.5), update.shortening(0.0)), (1.0, 1.0));
    }

    #[test]
    fn the_rate_rises_and_falls() {
        let schedule = |decline| Schedule {
            peak: 1.0,
            warmup: 4,
            steps: 12,
            decline,
        };
        let rates = |decline| [1, 4, 8, 12, 20].map(|step| schedule(decline).rate(step));
        assert_eq!(rates(Decline::Constant), [0.25, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!(rates(Decline::Linear), [0.25, 1.0, 0.5, 0.0, 0.0]);
        let cosine = rates(Decline::Cosine);
        assert!((cosine[2] - 0.5).abs() < 1e-12 && cosine[3].abs() < 1e-12);
        let without = Schedule {
            warmup: 0,
            ..schedule(Decline::Constant)
        };
        assert_eq!(without.rate(1), 1.0);
    }
}
