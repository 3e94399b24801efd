use std::collections::BTreeSet;

use serde::Serialize;

use super::{EpisodeMetrics, Summary, TaskFamily};

/// Episodes of one kind of task.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Group {
    pub name: String,
    pub summary: Summary,
}

pub fn by_level(episodes: &[EpisodeMetrics<'_>]) -> Vec<Group> {
    let level = |episode: &EpisodeMetrics<'_>| episode.trajectory.task.level;
    let mut levels: Vec<Option<u32>> = episodes.iter().map(level).collect();
    levels.sort_by_key(|level| (level.is_none(), *level));
    levels.dedup();
    let name =
        |level: &Option<u32>| level.map_or("no level".to_owned(), |level| format!("level {level}"));
    (levels.iter())
        .map(|wanted| group(name(wanted), episodes, |episode| level(episode) == *wanted))
        .collect()
}

pub fn by_family(episodes: &[EpisodeMetrics<'_>]) -> Vec<Group> {
    let family = |episode: &EpisodeMetrics<'_>| TaskFamily::of(&episode.trajectory.task);
    let mut families: Vec<TaskFamily> = episodes.iter().map(family).collect();
    families.sort_unstable();
    families.dedup();
    (families.iter())
        .map(|wanted| {
            group(wanted.name().to_owned(), episodes, |episode| {
                family(episode) == *wanted
            })
        })
        .collect()
}

/// By anything else; what has no name is in no group.
pub fn by_name<'a>(
    episodes: &[EpisodeMetrics<'_>],
    name: impl Fn(&EpisodeMetrics<'_>) -> Option<&'a str>,
) -> Vec<Group> {
    let names: BTreeSet<&str> = episodes.iter().filter_map(&name).collect();
    (names.into_iter())
        .map(|wanted| {
            group(wanted.to_owned(), episodes, |episode| {
                name(episode) == Some(wanted)
            })
        })
        .collect()
}

fn group(
    name: String,
    episodes: &[EpisodeMetrics<'_>],
    belongs: impl Fn(&EpisodeMetrics<'_>) -> bool,
) -> Group {
    let members: Vec<EpisodeMetrics<'_>> = episodes
        .iter()
        .filter(|one| belongs(one))
        .copied()
        .collect();
    Group {
        name,
        summary: Summary::of(&members),
    }
}
