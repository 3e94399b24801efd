//! Islands, each with the fastest candidate of every cell. An island sees others only by migration, so that none takes over all.

use std::collections::BTreeMap;

use serde::Serialize;
use warpsmith_schema::{ArchiveCell, CandidatePlace};

/// What a search keeps to make further candidates from.
#[derive(Debug, Clone, PartialEq)]
pub struct Archive {
    pub islands: Vec<Island>,
}

/// The fastest of every cell, with its time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Island {
    pub cells: BTreeMap<ArchiveCell, Elite>,
}

/// The fastest candidate of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Elite {
    pub candidate: u32,
    pub us: f64,
}

impl Archive {
    pub(crate) fn new(islands: u32) -> Self {
        Self {
            islands: vec![Island::default(); islands.max(1) as usize],
        }
    }

    /// Offers a candidate to an island, and says what became of it.
    pub(crate) fn offer(&mut self, island: u32, cell: ArchiveCell, elite: Elite) -> CandidatePlace {
        let cells = &mut self.islands[island as usize].cells;
        let before = cells.get(&cell).copied();
        let kept = before.is_none_or(|before| elite.us < before.us);
        if kept {
            cells.insert(cell.clone(), elite);
        }
        CandidatePlace {
            candidate: elite.candidate,
            island,
            cell,
            kept,
            replaced: before.filter(|_| kept).map(|before| before.candidate),
        }
    }

    /// The fastest of all.
    pub fn best(&self) -> Option<Elite> {
        fastest(self.islands.iter().filter_map(Island::best))
    }
}

impl Island {
    pub fn best(&self) -> Option<Elite> {
        fastest(self.cells.values().copied())
    }

    /// The cell of its best.
    pub(crate) fn best_cell(&self) -> Option<(&ArchiveCell, Elite)> {
        let best = self.best()?;
        let mut cells = self.cells.iter();
        cells
            .find(|(_, elite)| elite.candidate == best.candidate)
            .map(|(cell, elite)| (cell, *elite))
    }
}

/// Of equal times the earlier candidate.
fn fastest(elites: impl Iterator<Item = Elite>) -> Option<Elite> {
    elites.min_by(|one, other| {
        let by_number = one.candidate.cmp(&other.candidate);
        one.us.total_cmp(&other.us).then(by_number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(launches: &str) -> ArchiveCell {
        ArchiveCell {
            roofline: "2-4x".to_owned(),
            launches: launches.to_owned(),
            registers: "unknown".to_owned(),
            shared: "unknown".to_owned(),
            precision: "fp32".to_owned(),
        }
    }

    #[test]
    fn a_cell_keeps_its_fastest_and_an_island_its_own() {
        let mut archive = Archive::new(2);
        let elite = |candidate, us| Elite { candidate, us };
        assert!(archive.offer(0, cell("1"), elite(1, 10.0)).kept);
        assert!(!archive.offer(0, cell("1"), elite(2, 11.0)).kept);
        let place = archive.offer(0, cell("1"), elite(3, 9.0));
        assert_eq!((place.kept, place.replaced), (true, Some(1)));
        // Slower, but of another kind.
        assert!(archive.offer(0, cell("2"), elite(4, 20.0)).kept);
        assert!(archive.offer(1, cell("1"), elite(5, 30.0)).kept);
        assert_eq!(archive.islands[0].best(), Some(elite(3, 9.0)));
        assert_eq!(archive.islands[1].best(), Some(elite(5, 30.0)));
        assert_eq!(archive.best(), Some(elite(3, 9.0)));
    }
}
