//! The learning rate over a run.

use serde::{Deserialize, Serialize};

/// What the learning rate does after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LrSchedulerType {
    Constant,
    /// To zero at the last step.
    Linear,
    /// To zero at the last step, along half a cosine.
    Cosine,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LrSchedule {
    /// At its peak.
    pub learning_rate: f64,
    /// Steps over which it rises from zero to its peak.
    pub warmup_steps: u64,
    pub steps: u64,
    pub lr_scheduler_type: LrSchedulerType,
}

impl LrSchedule {
    /// At a step counted from one.
    pub fn at(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.learning_rate * step as f64 / self.warmup_steps as f64;
        }
        let falling = self.steps.saturating_sub(self.warmup_steps).max(1);
        let share = ((step - self.warmup_steps) as f64 / falling as f64).min(1.0);
        self.learning_rate
            * match self.lr_scheduler_type {
                LrSchedulerType::Constant => 1.0,
                LrSchedulerType::Linear => 1.0 - share,
                LrSchedulerType::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * share).cos()),
            }
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "what is not computed is exact")]
mod tests {
    use super::*;

    #[test]
    fn the_learning_rate_rises_and_falls() {
        let schedule = |lr_scheduler_type| LrSchedule {
            learning_rate: 1.0,
            warmup_steps: 4,
            steps: 12,
            lr_scheduler_type,
        };
        let rates = |kind| [1, 4, 8, 12, 20].map(|step| schedule(kind).at(step));
        assert_eq!(rates(LrSchedulerType::Constant), [0.25, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!(rates(LrSchedulerType::Linear), [0.25, 1.0, 0.5, 0.0, 0.0]);
        let cosine = rates(LrSchedulerType::Cosine);
        assert!((cosine[2] - 0.5).abs() < 1e-12 && cosine[3].abs() < 1e-12);
        let without = LrSchedule {
            warmup_steps: 0,
            ..schedule(LrSchedulerType::Constant)
        };
        assert_eq!(without.at(1), 1.0);
    }
}
