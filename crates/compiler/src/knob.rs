//! Decisions that a rule of thumb makes and only a measurement can settle.
//!
//! Whoever plans or writes a kernel asks [`Knobs`], saying what it would do itself and what else is possible. Without a
//! configuration the answer is what it would do itself; all that was asked is noted, so that somebody can try the rest.

use std::collections::{BTreeMap, BTreeSet};

/// Values of knobs by name, where they are not the usual ones.
pub type TuningConfig = BTreeMap<String, String>;

/// A decision that could have been another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Knob {
    /// The kernel or operator, and what is decided about it: `softmax: threads of a row`.
    pub name: String,
    /// As it was decided.
    pub value: String,
    /// What else it could be, the likeliest first.
    pub choices: Vec<String>,
    /// About how many bytes it concerns: the largest are worth trying first.
    pub bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Knobs {
    config: TuningConfig,
    /// The kernel or operator that decisions are about now.
    subject: String,
    bytes: u64,
    asked: Vec<Knob>,
}

impl Knobs {
    pub(crate) fn new(config: TuningConfig) -> Self {
        Self {
            config,
            ..Self::default()
        }
    }

    /// Whom the following decisions are about.
    pub(crate) fn about(&mut self, subject: &str, elements: i64) {
        subject.clone_into(&mut self.subject);
        self.bytes = elements.unsigned_abs().saturating_mul(4);
    }

    /// What to do: the configured choice where it is one of `others`, else `usual`.
    pub(crate) fn choose(&mut self, what: &str, usual: i64, others: &[i64]) -> i64 {
        let mut others = others.to_vec();
        let mut seen = BTreeSet::from([usual]);
        others.retain(|one| seen.insert(*one));
        if others.is_empty() {
            return usual;
        }
        let name = format!("{}: {what}", self.subject);
        let wanted = self.config.get(&name).and_then(|value| value.parse().ok());
        let value = wanted
            .filter(|value| others.contains(value))
            .unwrap_or(usual);
        if !self.asked.iter().any(|known| known.name == name) {
            let all = [&[usual], &others[..]].concat();
            let rest = all.iter().filter(|one| **one != value);
            self.asked.push(Knob {
                name,
                value: value.to_string(),
                choices: rest.map(ToString::to_string).collect(),
                bytes: self.bytes,
            });
        }
        value
    }

    /// The same for a decision between yes and no.
    pub(crate) fn whether(&mut self, what: &str, usual: bool) -> bool {
        self.choose(what, i64::from(usual), &[i64::from(!usual)]) != 0
    }

    /// All that was asked, in the order of asking.
    pub(crate) fn asked(&self) -> &[Knob] {
        &self.asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_of_thumb_decides_where_nothing_else_does() {
        let mut knobs = Knobs::default();
        knobs.about("softmax", 1024);
        assert_eq!(knobs.choose("threads", 128, &[64, 128, 256]), 128);
        assert!(knobs.whether("in registers", true));
        // Nothing to choose from is no decision.
        assert_eq!(knobs.choose("parts", 4, &[4]), 4);
        let knob = |name: &str, value: &str, choices: &[&str]| Knob {
            name: name.to_owned(),
            value: value.to_owned(),
            choices: choices.iter().map(ToString::to_string).collect(),
            bytes: 4096,
        };
        let expected = [
            knob("softmax: threads", "128", &["64", "256"]),
            knob("softmax: in registers", "1", &["0"]),
        ];
        assert_eq!(knobs.asked(), expected);
    }

    #[test]
    fn a_configured_value_counts_where_it_is_possible() {
        let config = [("a: threads", "256"), ("b: threads", "7")];
        let config = config.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let mut knobs = Knobs::new(config.into());
        knobs.about("a", 1);
        assert_eq!(knobs.choose("threads", 128, &[64, 256]), 256);
        assert_eq!(knobs.asked()[0].choices, ["128", "64"]);
        knobs.about("b", 1);
        assert_eq!(knobs.choose("threads", 128, &[64, 256]), 128);
    }
}
