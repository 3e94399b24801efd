use std::fmt::Write;

use maud::{Markup, html};

use super::Scale;

const WIDTH: f64 = 90.0;
const HEIGHT: f64 = 20.0;
/// More points than this cannot be told apart.
const POINTS: usize = 60;

/// A curve as small as a word, beside the number that says where it ends.
pub fn sparkline(values: &[f64]) -> Markup {
    let finite: Vec<f64> = values
        .iter()
        .copied()
        .filter(|one| one.is_finite())
        .collect();
    if finite.len() < 2 {
        return html! {};
    }
    let every = finite.len().div_ceil(POINTS);
    let mut shown: Vec<f64> = finite.iter().copied().step_by(every).collect();
    // Where it ends is what is asked.
    if let (Some(last), Some(end)) = (shown.last_mut(), finite.last()) {
        *last = *end;
    }
    let scale = Scale::linear(shown.iter().copied());
    let mut points = String::new();
    for (number, value) in shown.iter().enumerate() {
        let right = number as f64 / (shown.len() - 1).max(1) as f64 * (WIDTH - 2.0) + 1.0;
        let down = (1.0 - scale.place(*value)) * (HEIGHT - 4.0) + 2.0;
        // Writing to a text does not fail.
        let _ = write!(points, "{right:.1},{down:.1} ");
    }
    html! {
        svg.sparkline viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } aria-hidden="true" {
            polyline class="curve s0" points=(points.trim_end()) {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_ends_where_its_values_end() {
        let text = sparkline(&[1.0, f64::NAN, 0.5, 0.0]).into_string();
        assert!(
            text.contains("points=\"1.0,2.0 45.0,10.0 89.0,18.0\""),
            "{text}"
        );
        let many: Vec<f64> = (0..1000).map(f64::from).collect();
        let text = sparkline(&many).into_string();
        assert!(text.contains("89.0,2.0\"") && text.len() < 1500, "{text}");
        assert_eq!(sparkline(&[1.0]).into_string(), "");
    }
}
