//! Text that ends a reply, found wherever the pieces of the text are cut.

/// Holds back text that may be the beginning of a stop text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stops {
    stops: Vec<String>,
    held: String,
}

/// What came of a piece of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Passed {
    /// This much is certainly no part of a stop text.
    Text(String),
    /// What came before the stop text, and which it was.
    Stopped { text: String, stop: String },
}

impl Stops {
    /// Empty texts would end every reply at once and are left out.
    pub(crate) fn new(stops: &[String]) -> Self {
        Self {
            stops: stops
                .iter()
                .filter(|one| !one.is_empty())
                .cloned()
                .collect(),
            held: String::new(),
        }
    }

    pub(crate) fn push(&mut self, piece: &str) -> Passed {
        self.held.push_str(piece);
        let found = self
            .stops
            .iter()
            .filter_map(|stop| Some((self.held.find(stop.as_str())?, stop)))
            // The one that is complete first, which does not depend on how the text was cut; of two
            // that end together, the longer.
            .min_by_key(|(place, stop)| (place + stop.len(), *place));
        if let Some((place, stop)) = found {
            let stop = stop.clone();
            self.held.truncate(place);
            return Passed::Stopped {
                text: std::mem::take(&mut self.held),
                stop,
            };
        }
        let kept = self
            .stops
            .iter()
            .map(|stop| overlap(&self.held, stop))
            .max()
            .unwrap_or_default();
        let rest = self.held.split_off(self.held.len() - kept);
        Passed::Text(std::mem::replace(&mut self.held, rest))
    }

    /// What was held back, when no more comes.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes at the end of the text that the stop text begins with.
pub(crate) fn overlap(text: &str, stop: &str) -> usize {
    (1..stop.len())
        .rev()
        .find(|&length| stop.is_char_boundary(length) && text.ends_with(&stop[..length]))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_stop_across_pieces_is_found() {
        let mut stops = Stops::new(&["</end>".into(), "é!".into()]);
        assert_eq!(stops.push("a</e"), Passed::Text("a".into()));
        assert_eq!(stops.push("x</en"), Passed::Text("</ex".into()));
        let stopped = Passed::Stopped {
            text: String::new(),
            stop: "</end>".into(),
        };
        assert_eq!(stops.push("d> more"), stopped);
        assert_eq!(stops.push("bé"), Passed::Text("b".into()));
        assert_eq!(stops.finish(), "é");
    }

    proptest! {
        /// However the text is cut, what passes is what stands before the stop text that is complete first.
        #[test]
        fn cutting_does_not_matter(
            text in "[ab\u{e9}]{0,40}",
            stops in prop::collection::vec("[ab\u{e9}]{0,4}", 0..3),
            cuts in prop::collection::vec(1usize..5, 40),
        ) {
            let end = stops
                .iter()
                .filter(|stop| !stop.is_empty())
                .filter_map(|stop| Some((text.find(stop.as_str())?, stop.len())))
                .min_by_key(|(place, length)| (place + length, *place))
                .map(|(place, _)| place);
            let mut watch = Stops::new(&stops);
            let mut passed = String::new();
            let (mut characters, mut stopped) = (text.chars(), false);
            for cut in cuts {
                let piece: String = characters.by_ref().take(cut).collect();
                match watch.push(&piece) {
                    Passed::Text(text) => passed += &text,
                    Passed::Stopped { text, .. } => {
                        passed += &text;
                        stopped = true;
                        break;
                    }
                }
            }
            if !stopped {
                passed += &watch.finish();
            }
            prop_assert_eq!(stopped, end.is_some());
            prop_assert_eq!(passed, text[..end.unwrap_or(text.len())].to_owned());
        }
    }
}
