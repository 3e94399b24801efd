//! Whether a run is still worth its electricity.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Stops a run that is getting worse instead of better. Part of a checkpoint, so that a resumed run is judged by all of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Guard {
    levels: BTreeMap<String, Level>,
}

/// How a number that should fall or stay has done.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Level {
    /// Over about the last ten steps.
    recent: f64,
    lowest: f64,
    /// Steps in a row far above.
    above: u32,
}

/// How much of what was known one step leaves.
const MEMORY: f64 = 0.9;
/// So many times the lowest, and so much above it, is far.
const FACTOR: f64 = 3.0;
const MARGIN: f64 = 0.5;
/// So many steps in a row, not one bad batch.
const PATIENCE: u32 = 5;

impl Guard {
    /// Takes in a number that should not rise, and says why the run should stop, if it should.
    pub fn hear(&mut self, name: &'static str, value: f64) -> Option<String> {
        if !value.is_finite() {
            return Some(format!("{name} is {value}"));
        }
        let first = Level {
            recent: value,
            lowest: value,
            above: 0,
        };
        let level = self.levels.entry(name.to_owned()).or_insert(first);
        level.recent = MEMORY * level.recent + (1.0 - MEMORY) * value;
        level.lowest = level.lowest.min(level.recent);
        if value > FACTOR * level.lowest + MARGIN {
            level.above += 1;
        } else {
            level.above = 0;
        }
        (level.above >= PATIENCE).then(|| {
            format!(
                "{name} is {value:.4}, for {PATIENCE} steps far above {:.4}, which it had come down to",
                level.lowest
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(values: impl IntoIterator<Item = f64>) -> Option<usize> {
        let mut guard = Guard::default();
        let mut steps = values.into_iter().enumerate();
        steps.find_map(|(step, value)| guard.hear("loss", value).map(|_| step))
    }

    #[test]
    fn a_run_that_falls_apart_is_stopped_and_a_noisy_one_is_not() {
        let falling = (0..40).map(|step| 2.0 / f64::from(step + 1));
        assert_eq!(heard(falling.clone()), None);
        assert_eq!(
            heard(falling.clone().chain([9.0, 9.0, 9.0, 9.0, 0.5])),
            None
        );
        assert_eq!(heard(falling.chain([9.0; 5])), Some(44));
        let noisy = (0..200).map(|step| 1.0 + f64::from(step % 7).sin());
        assert_eq!(heard(noisy), None);
        assert_eq!(heard([1.0, f64::NAN]), Some(1));
    }
}
