//! Numbers as people read them. What is not known is a dash.

use maud::{Markup, html};

/// What stands for a number that there is not.
pub const UNKNOWN: &str = "–";

fn told(value: Option<f64>, words: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), words)
}

/// `67 %`, `0.4 %`.
pub fn percent(share: Option<f64>) -> String {
    told(share, |share| {
        let percent = 100.0 * share;
        // Few of many are not none, and almost all not all.
        if (0.0..1.0).contains(&percent) && percent > 0.0 || percent > 99.0 && percent < 100.0 {
            format!("{percent:.1} %")
        } else {
            format!("{percent:.0} %")
        }
    })
}

/// `1.52x`
pub fn times(speedup: Option<f64>) -> String {
    told(speedup, |speedup| format!("{speedup:.2}x"))
}

/// `512.3 us`, `12.34 ms`
pub fn runtime(us: Option<f64>) -> String {
    told(us, |us| {
        if us >= 10_000.0 {
            format!("{:.2} ms", us / 1000.0)
        } else {
            format!("{us:.1} us")
        }
    })
}

/// `8.4 s`, `12 min`, `3.5 h`
pub fn duration(seconds: Option<f64>) -> String {
    told(seconds, |seconds| match seconds {
        s if s < 100.0 => format!("{s:.1} s"),
        s if s < 6000.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    })
}

/// `1 task`, `2 tasks`
pub fn count(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// A name as part of an address within the page.
pub fn anchor(name: &str) -> String {
    let plain = |letter: char| {
        if letter.is_ascii_alphanumeric() {
            letter.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    name.chars().map(plain).collect()
}

/// A fact in a list of facts.
pub fn fact(name: &str, value: &Markup) -> Markup {
    html! { div { dt { (name) } dd { (value) } } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_words() {
        let shares = [
            None,
            Some(0.0),
            Some(0.004),
            Some(0.667),
            Some(0.996),
            Some(1.0),
        ]
        .map(percent);
        assert_eq!(shares, ["–", "0 %", "0.4 %", "67 %", "99.6 %", "100 %"]);
        let seconds = [8.44, 700.0, 12_600.0].map(|seconds| duration(Some(seconds)));
        assert_eq!(seconds, ["8.4 s", "12 min", "3.5 h"]);
        assert_eq!(
            (runtime(Some(12_340.0)), times(Some(1.5))),
            ("12.34 ms".to_owned(), "1.50x".to_owned())
        );
        assert_eq!(
            (count(1, "task"), count(0, "task")),
            ("1 task".to_owned(), "0 tasks".to_owned())
        );
        assert_eq!(anchor("Level1/19 ä"), "level1-19--");
    }
}
