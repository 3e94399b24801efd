/// From values to places on a line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scale {
    Linear {
        from: f64,
        to: f64,
    },
    /// Of positive values.
    Log {
        from: f64,
        to: f64,
    },
}

impl Scale {
    /// Wide enough for all values and never empty.
    pub fn linear(values: impl IntoIterator<Item = f64>) -> Self {
        let (from, to) = range(values).unwrap_or((0.0, 1.0));
        let room = if to > from {
            0.0
        } else {
            from.abs().max(1.0) / 2.0
        };
        Self::Linear {
            from: from - room,
            to: to + room,
        }
    }

    /// From a power of two to another, with 1 between them.
    pub fn log(values: impl IntoIterator<Item = f64>) -> Self {
        let positive = values.into_iter().filter(|value| *value > 0.0);
        let (from, to) = range(positive).unwrap_or((1.0, 1.0));
        Self::Log {
            from: from.min(0.5).log2().floor().exp2(),
            to: to.max(2.0).log2().ceil().exp2(),
        }
    }

    /// From a power of two to another, around what there is: of times, of which none is 1.
    pub fn log_around(values: impl IntoIterator<Item = f64>) -> Self {
        let positive = values.into_iter().filter(|value| *value > 0.0);
        let (from, to) = range(positive).unwrap_or((0.5, 2.0));
        let from = from.log2().floor();
        Self::Log {
            from: from.exp2(),
            to: to.log2().ceil().max(from + 1.0).exp2(),
        }
    }

    /// Where it begins and ends.
    pub fn ends(self) -> (f64, f64) {
        match self {
            Self::Linear { from, to } | Self::Log { from, to } => (from, to),
        }
    }

    /// 0 at its beginning, 1 at its end.
    pub fn place(self, value: f64) -> f64 {
        match self {
            Self::Linear { from, to } => (value - from) / (to - from),
            Self::Log { from, to } => (value / from).ln() / (to / from).ln(),
        }
    }

    /// Round values along it, about `wanted` of them.
    pub fn ticks(self, wanted: usize) -> Vec<f64> {
        let wanted = wanted.max(1) as f64;
        match self {
            Self::Linear { from, to } => {
                let rough = (to - from) / wanted;
                let power = 10_f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|times| times * power);
                let step = step
                    .into_iter()
                    .find(|step| *step >= rough * 0.999)
                    .unwrap_or(rough);
                let (first, last) = (
                    (from / step - 1e-9).ceil() as i64,
                    (to / step + 1e-9).floor() as i64,
                );
                (first..=last).map(|count| count as f64 * step).collect()
            }
            Self::Log { from, to } => {
                let (first, last) = (from.log2().round() as i32, to.log2().round() as i32);
                let step = (f64::from(last - first) / wanted).ceil().max(1.0) as i32;
                // Always with 1 among them.
                let among = |power: &i32| power % step == 0;
                (first..=last)
                    .filter(among)
                    .map(|power| 2_f64.powi(power))
                    .collect()
            }
        }
    }
}

fn range(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let finite = values.into_iter().filter(|value| value.is_finite());
    finite.fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((from, to)) => Some((from.min(value), to.max(value))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_ticks() {
        let linear = Scale::linear([0.0, 3.0]);
        assert_eq!(Some(linear.place(1.5)), Some(0.5));
        assert_eq!(linear.ticks(6), [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]);
        let log = Scale::log([0.6, 7.0]);
        assert_eq!(log, Scale::Log { from: 0.5, to: 8.0 });
        let around = Scale::log_around([300.0, 1500.0]);
        assert_eq!(around.ends(), (256.0, 2048.0));
        assert_eq!(Scale::log_around([4.0]).ends(), (4.0, 8.0));
        assert_eq!(
            (log.place(0.5), log.place(2.0), log.place(8.0)),
            (0.0, 0.5, 1.0)
        );
        assert_eq!(log.ticks(8), [0.5, 1.0, 2.0, 4.0, 8.0]);
        assert_eq!(Scale::log([1000.0]).ticks(4), [1.0, 8.0, 64.0, 512.0]);
    }

    #[test]
    fn nothing_and_one_value_have_a_width() {
        assert_eq!(Scale::linear([]), Scale::Linear { from: 0.0, to: 1.0 });
        assert_eq!(
            Scale::linear([f64::NAN, 4.0]),
            Scale::Linear { from: 2.0, to: 6.0 }
        );
        assert_eq!(Scale::log([]), Scale::Log { from: 0.5, to: 2.0 });
    }
}
