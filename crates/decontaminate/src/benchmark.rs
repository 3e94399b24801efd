//! Tasks to be recognised: a benchmark's, so that no training set holds one of them, or a set's own, so that it holds
//! none twice.
//!
//! A benchmark is kept as fingerprints: hashes, from which its text cannot be had. One JSON object a line; the first says
//! what the file is (`format`), each other one describes a task:
//!
//! - `id`,
//! - `parts`: hexadecimal hashes with blanks between, in ascending order, `*3` after one that is there three times,
//! - `operators`: how many operators it applies; `only`: the hash of the operator where there is but one,
//! - `ranks`: dimensions of each input tensor, null where its text does not tell.
//!
//! Hashes of other versions of this crate are other hashes wherever `format` differs.

use std::collections::HashMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::structure::{NEAR, Part, Structure, Why, is_telling};
use warpsmith_tasks::{LoadedTask, TaskError};

/// Grows with every change to what is hashed.
const FORMAT: u32 = 1;

/// `KernelBench`'s tasks. `docs/concepts/decontamination.md` says which, and how to make this file.
const KERNELBENCH: &str = include_str!("../data/kernelbench.jsonl");

/// The task that another one is most like.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Near {
    pub id: String,
    pub similarity: f64,
    pub why: Why,
}

impl Near {
    /// Too alike for both to be in a set, or for one to train for the other.
    pub fn is_twin(&self) -> bool {
        self.similarity > NEAR
    }
}

/// Structures by name.
#[derive(Debug, Clone, Default)]
pub struct Benchmark {
    tasks: Vec<(String, Structure)>,
    /// Which tasks have a part, or a certain operator as their only one.
    having: HashMap<Part, Vec<usize>>,
}

impl Benchmark {
    /// The fingerprints that come with this crate.
    #[expect(clippy::expect_used, reason = "the text is ours, and a test reads it")]
    pub fn kernelbench() -> Self {
        Self::parse(KERNELBENCH, Path::new("kernelbench.jsonl")).expect("our own fingerprints")
    }

    pub fn of<'a>(tasks: impl IntoIterator<Item = &'a LoadedTask>) -> Result<Self, TaskError> {
        let mut benchmark = Self::default();
        for task in tasks {
            let structure = Structure::of(&task.source).map_err(|_| TaskError::NotATask {
                path: task.origin.clone().into(),
                reason: "it has no class `Model` with a `forward`",
            })?;
            benchmark.insert(task.id.clone(), structure);
        }
        Ok(benchmark)
    }

    /// Names need not be unique.
    pub fn insert(&mut self, id: String, structure: Structure) {
        let place = self.tasks.len();
        for part in keys(&structure) {
            self.having.entry(part).or_default().push(place);
        }
        self.tasks.push((id, structure));
    }

    /// Adds all tasks of another one.
    pub fn extend(&mut self, other: Self) {
        for (id, structure) in other.tasks {
            self.insert(id, structure);
        }
    }

    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.tasks.iter().map(|(id, _)| id.as_str())
    }

    /// The task most like this one, however little; of several the first. Compares with all of them.
    pub fn nearest(&self, structure: &Structure) -> Option<Near> {
        let all = (0..self.tasks.len()).map(|place| self.compared(structure, place));
        highest(all).map(|found| self.near(&found))
    }

    /// The task most like this one, if they are near-twins. Compares only with those that share something telling, so
    /// that it may be asked for each task of a large set.
    pub fn twin(&self, structure: &Structure) -> Option<Near> {
        highest(self.alike(structure, NEAR)).map(|found| self.near(&found))
    }

    /// All that are more alike than `above`, which is at least [`crate::FAMILY`].
    pub(crate) fn alike(
        &self,
        structure: &Structure,
        above: f64,
    ) -> impl Iterator<Item = Compared> {
        let mut places: Vec<usize> = keys(structure)
            .filter_map(|part| self.having.get(&part))
            .flatten()
            .copied()
            .collect();
        places.sort_unstable();
        places.dedup();
        places
            .into_iter()
            .map(|place| self.compared(structure, place))
            .filter(move |found| found.similarity > above)
    }

    fn compared(&self, structure: &Structure, place: usize) -> Compared {
        let (similarity, why) = structure.compare(&self.tasks[place].1);
        Compared {
            place,
            similarity,
            why,
        }
    }

    fn near(&self, found: &Compared) -> Near {
        Near {
            id: self.tasks[found.place].0.clone(),
            similarity: found.similarity,
            why: found.why,
        }
    }

    pub fn read(path: &Path) -> Result<Self, TaskError> {
        let text = fs_err::read_to_string(path).map_err(|source| TaskError::Read {
            path: path.to_path_buf(),
            source,
        })?;
        Self::parse(&text, path)
    }

    pub fn write(&self, path: &Path) -> Result<(), TaskError> {
        fs_err::write(path, self.text()).map_err(|source| TaskError::Write {
            path: path.to_path_buf(),
            source,
        })
    }

    fn text(&self) -> String {
        let head = serde_json::json!({ "format": FORMAT }).to_string();
        let lines = self.tasks.iter().map(|(id, structure)| {
            let parts: Vec<String> = structure
                .parts
                .iter()
                .map(|(part, count)| match count {
                    1 => format!("{part:08x}"),
                    count => format!("{part:08x}*{count}"),
                })
                .collect();
            serde_json::json!({
                "id": id,
                "parts": parts.join(" "),
                "operators": structure.operators,
                "only": structure.only.map(|only| format!("{only:08x}")),
                "ranks": structure.ranks,
            })
            .to_string()
        });
        let lines: Vec<String> = [head].into_iter().chain(lines).collect();
        lines.join("\n") + "\n"
    }

    fn parse(text: &str, path: &Path) -> Result<Self, TaskError> {
        let mut benchmark = Self::default();
        let broken = |index: usize, reason: String| TaskError::BrokenFingerprint {
            path: path.to_path_buf(),
            line: index + 1,
            reason,
        };
        let mut lines = text.lines().enumerate();
        let head = lines.next().map_or("", |(_, line)| line);
        let head: Head =
            serde_json::from_str(head).map_err(|error| broken(0, error.to_string()))?;
        if head.format != FORMAT {
            let reason = format!("format {}, expected {FORMAT}", head.format);
            return Err(broken(0, reason));
        }
        for (index, line) in lines {
            let (id, structure) = fingerprint(line).map_err(|reason| broken(index, reason))?;
            benchmark.insert(id, structure);
        }
        Ok(benchmark)
    }
}

/// How alike a structure is to the task at a place.
pub(crate) struct Compared {
    pub(crate) place: usize,
    similarity: f64,
    why: Why,
}

#[derive(Deserialize)]
struct Head {
    format: u32,
}

#[derive(Deserialize)]
struct Line {
    id: String,
    parts: String,
    operators: u32,
    only: Option<String>,
    ranks: Option<Vec<u8>>,
}

fn fingerprint(line: &str) -> Result<(String, Structure), String> {
    let line: Line = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let hash =
        |text: &str| Part::from_str_radix(text, 16).map_err(|_| format!("`{text}` is no hash"));
    let mut parts: Vec<(Part, u32)> = Vec::new();
    for entry in line.parts.split_whitespace() {
        let (part, count) = match entry.split_once('*') {
            Some((part, count)) => {
                let count = count
                    .parse()
                    .map_err(|_| format!("`{entry}` has no count"))?;
                (hash(part)?, count)
            }
            None => (hash(entry)?, 1),
        };
        if parts.last().is_some_and(|(last, _)| *last >= part) {
            return Err(format!("`{entry}` is out of order"));
        }
        parts.push((part, count));
    }
    let only = line.only.as_deref().map(hash).transpose()?;
    let structure = Structure {
        parts,
        operators: line.operators,
        only,
        ranks: line.ranks,
    };
    Ok((line.id, structure))
}

/// What a structure is found by.
fn keys(structure: &Structure) -> impl Iterator<Item = Part> {
    let telling = structure
        .parts
        .iter()
        .map(|(part, _)| *part)
        .filter(|part| is_telling(*part));
    // A task of no operator is found by having none: no part is zero but by chance.
    let none = (structure.operators() == 0).then_some(0);
    telling.chain(structure.only).chain(none)
}

/// The first of the most alike.
fn highest(all: impl Iterator<Item = Compared>) -> Option<Compared> {
    all.reduce(|best, next| {
        if next.similarity > best.similarity {
            next
        } else {
            best
        }
    })
}
