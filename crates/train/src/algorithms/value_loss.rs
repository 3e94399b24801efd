//! Learning what to expect.

use super::Loss;

#[derive(Debug, Clone, PartialEq)]
pub struct ValueLoss {
    /// The gradient is with respect to the values.
    pub loss: Loss,
    /// Share of the tokens that count whose value moved so far that it is no longer pushed.
    pub clipped: f64,
}

/// `½ (V − return)²` for each token. With a clip a value that moved further than that from `old` is not pushed further:
/// the larger of the two losses counts.
pub fn value_loss(
    values: &[f32],
    old: &[f32],
    returns: &[f32],
    weights: &[f32],
    clip: Option<f32>,
) -> ValueLoss {
    for numbers in [values, old, returns] {
        assert_eq!(numbers.len(), weights.len());
    }
    let (mut clipped, mut counted) = (0_usize, 0_usize);
    let loss = Loss::weighted(weights, |token| {
        counted += 1;
        let (value, target) = (f64::from(values[token]), f64::from(returns[token]));
        let off = value - target;
        if let Some(clip) = clip {
            let (old, clip) = (f64::from(old[token]), f64::from(clip));
            let kept = value.clamp(old - clip, old + clip) - target;
            if kept * kept > off * off {
                clipped += 1;
                return (0.5 * kept * kept, 0.0);
            }
        }
        (0.5 * off * off, off)
    });
    ValueLoss {
        loss,
        clipped: clipped as f64 / counted.max(1) as f64,
    }
}

/// The share of the returns' variance that values foretell: 1 is all of it, 0 no better than the mean, less is worse than
/// that. `None` where returns do not vary.
pub fn explained_variance(values: &[f32], returns: &[f32], mask: &[bool]) -> Option<f64> {
    assert_eq!(values.len(), mask.len());
    assert_eq!(returns.len(), mask.len());
    let counted = || {
        let pairs = values.iter().zip(returns).zip(mask);
        pairs
            .filter(|(_, counts)| **counts)
            .map(|((value, target), _)| (f64::from(*value), f64::from(*target)))
    };
    let of_returns = variance(counted().map(|(_, target)| target))?;
    let of_errors = variance(counted().map(|(value, target)| target - value))?;
    (of_returns > 0.0).then(|| 1.0 - of_errors / of_returns)
}

fn variance(numbers: impl Iterator<Item = f64> + Clone) -> Option<f64> {
    let count = numbers.clone().count();
    if count == 0 {
        return None;
    }
    let mean = numbers.clone().sum::<f64>() / count as f64;
    Some(numbers.map(|one| (one - mean).powi(2)).sum::<f64>() / count as f64)
}
