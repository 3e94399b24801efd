use std::collections::BTreeSet;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::{Against, EpisodeMetrics, PrecisionClass, mean};

/// So many of so many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    pub count: usize,
    pub of: usize,
}

impl Share {
    /// Of these episodes, those of which something holds.
    pub(super) fn among<'a>(
        episodes: &[EpisodeMetrics<'a>],
        holds: impl Fn(&EpisodeMetrics<'a>) -> bool,
    ) -> Self {
        Self {
            count: episodes.iter().filter(|episode| holds(episode)).count(),
            of: episodes.len(),
        }
    }

    pub fn value(self) -> Option<f64> {
        (self.of > 0).then(|| self.count as f64 / self.of as f64)
    }
}

/// With the quotient, which readers of the JSON would work out anyway.
impl Serialize for Share {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Share", 3)?;
        fields.serialize_field("count", &self.count)?;
        fields.serialize_field("of", &self.of)?;
        fields.serialize_field("share", &self.value())?;
        fields.end()
    }
}

/// The numbers of a table's row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    pub tasks: usize,
    pub episodes: usize,
    pub compiled: Share,
    pub correct: Share,
    /// Mean runtime of the correct ones.
    pub average_runtime_us: Option<f64>,
    pub strict: Against,
    pub matched: Against,
}

impl Summary {
    pub fn of(episodes: &[EpisodeMetrics<'_>]) -> Self {
        let tasks: BTreeSet<&str> = episodes.iter().map(EpisodeMetrics::task).collect();
        let measured = episodes.iter().filter_map(EpisodeMetrics::measured);
        let runtimes: Vec<f64> = measured.map(|one| one.runtime_us).collect();
        Self {
            tasks: tasks.len(),
            episodes: episodes.len(),
            compiled: Share::among(episodes, EpisodeMetrics::compiled),
            correct: Share::among(episodes, EpisodeMetrics::correct),
            average_runtime_us: mean(&runtimes),
            strict: Against::of(episodes, PrecisionClass::Strict),
            matched: Against::of(episodes, PrecisionClass::Matched),
        }
    }
}
