//! Means of few measurements, with what can be said of them.

/// A mean and where it lies with 95 % confidence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpeedInterval {
    pub mean: f64,
    pub low: f64,
    pub high: f64,
    pub measurements: u32,
}

/// Student's t for a two-sided 95 % interval, by degrees of freedom from one.
const STUDENT: [f64; 15] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131,
];
/// Of more.
const NORMAL: f64 = 2.1;

/// The geometric mean of positive numbers with its 95 % interval by Student's t on their logarithms: times are skewed, their
/// logarithms are less so. Of a single number the interval is all positive numbers.
pub fn interval_of(values: &[f64]) -> Option<SpeedInterval> {
    if values.is_empty()
        || values
            .iter()
            .any(|value| !(value.is_finite() && *value > 0.0))
    {
        return None;
    }
    let count = values.len() as f64;
    let mean = values.iter().map(|value| value.ln()).sum::<f64>() / count;
    let measurements = values.len() as u32;
    if values.len() == 1 {
        return Some(SpeedInterval {
            mean: values[0],
            low: 0.0,
            high: f64::INFINITY,
            measurements,
        });
    }
    let squares = values
        .iter()
        .map(|value| (value.ln() - mean).powi(2))
        .sum::<f64>();
    let deviation = (squares / (count - 1.0) / count).sqrt();
    let student = STUDENT.get(values.len() - 2).copied().unwrap_or(NORMAL);
    Some(SpeedInterval {
        mean: mean.exp(),
        low: (mean - student * deviation).exp(),
        high: (mean + student * deviation).exp(),
        measurements,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_students() {
        // scipy.stats.t.interval(0.95, 3, numpy.mean(y), scipy.stats.sem(y)) with y = numpy.log([10, 11, 12, 10.5]), exp
        let found = interval_of(&[10.0, 11.0, 12.0, 10.5]).unwrap();
        assert!((found.mean - 10.8503).abs() < 1e-3, "{found:?}");
        assert!((found.low - 9.5897).abs() < 2e-3, "{found:?}");
        assert!((found.high - 12.2766).abs() < 2e-3, "{found:?}");
    }

    #[test]
    fn one_measurement_says_nothing_of_the_next() {
        let found = interval_of(&[10.0]).unwrap();
        assert_eq!(
            (found.mean, found.low, found.high),
            (10.0, 0.0, f64::INFINITY)
        );
        assert_eq!(interval_of(&[]), None);
        assert_eq!(interval_of(&[1.0, f64::NAN]), None);
    }
}
