//! An index of known tasks that finds near-duplicates: of a benchmark's tasks, so that no training set holds one of them,
//! and of a set's own tasks, so that it holds none twice.
//!
//! A benchmark is stored as fingerprints: hashes, from which its source cannot be recovered. The file has one JSON object a
//! line. The first line has the `format`; each other line describes a task:
//!
//! - `id`,
//! - `parts`: hexadecimal hashes of subgraphs, separated by blanks, in ascending order; `*3` follows one that occurs three times,
//! - `operators`: how many operators the task applies; `only`: the hash of the operator if there is exactly one,
//! - `ranks`: the number of dimensions of each input tensor, null if the source does not tell,
//! - `extents`: the hash of the sizes that the source names, null if they are not known.
//!
//! Hashes are comparable only between files of the same `format`.

use std::collections::HashMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::structure::{
    NEAR_DUPLICATE_THRESHOLD, SimilarityBasis, Structure, SubgraphHash, is_index_key,
};
use crate::text::modules;
use warpsmith_schema::Task;
use warpsmith_tasks::TaskError;

/// Counts up with every change to what is hashed.
const FORMAT: u32 = 1;

/// `KernelBench`'s tasks. `docs/concepts/decontamination.md` says which, and how to make this file.
const KERNELBENCH: &str = include_str!("../data/kernelbench.jsonl");

/// An indexed task and how similar another one is to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SimilarTask {
    pub id: String,
    pub similarity: f64,
    #[serde(rename = "why")]
    pub basis: SimilarityBasis,
}

impl SimilarTask {
    /// Whether the two are too similar to be in one set, or to be trained on and measured with.
    pub fn is_near_duplicate(&self) -> bool {
        self.similarity > NEAR_DUPLICATE_THRESHOLD
    }
}

/// Structures by task id, with an inverted index from subgraph hashes to tasks.
#[derive(Debug, Clone, Default)]
pub struct FingerprintIndex {
    tasks: Vec<(String, Structure)>,
    /// Tasks by their subgraph hashes and by the hash of their only operator.
    postings: HashMap<SubgraphHash, Vec<usize>>,
}

impl FingerprintIndex {
    /// The fingerprints that come with this crate.
    pub fn kernelbench() -> Result<Self, TaskError> {
        Self::parse(KERNELBENCH, Path::new("kernelbench.jsonl"))
    }

    pub fn of<'a>(tasks: impl IntoIterator<Item = &'a Task>) -> Result<Self, TaskError> {
        let mut index = Self::default();
        for task in tasks {
            let structure = Structure::of(&task.source).map_err(|_| TaskError::NotATask {
                path: task.origin.clone().into(),
                reason: "it has no class `Model` with a `forward`",
            })?;
            index.insert(task.id.clone(), structure);
        }
        Ok(index)
    }

    /// Ids need not be unique.
    pub fn insert(&mut self, id: String, structure: Structure) {
        let place = self.tasks.len();
        for key in index_keys(&structure) {
            self.postings.entry(key).or_default().push(place);
        }
        self.tasks.push((id, structure));
    }

    /// Adds all tasks of another index.
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

    /// The most similar task, however little similar; of several the first. Compares with all tasks.
    pub fn nearest(&self, structure: &Structure) -> Option<SimilarTask> {
        let all = (0..self.tasks.len()).map(|place| self.compare_with(structure, place));
        most_similar(all).map(|found| self.similar_task(&found))
    }

    /// The most similar task if it is a near-duplicate. Compares only with tasks that share an index key, so it is fast enough
    /// to be asked for each task of a large set.
    pub fn near_duplicate(&self, structure: &Structure) -> Option<SimilarTask> {
        let near_duplicates = self.more_similar_than(structure, NEAR_DUPLICATE_THRESHOLD);
        most_similar(near_duplicates).map(|found| self.similar_task(&found))
    }

    /// As [`Self::near_duplicate`], but a single operator in other sizes is none: for demonstrations, where an operator that never
    /// stands alone could not be learnt alone.
    pub fn near_duplicate_or_same_sizes(&self, structure: &Structure) -> Option<SimilarTask> {
        let near_duplicates = self
            .more_similar_than(structure, NEAR_DUPLICATE_THRESHOLD)
            .filter(|found| {
                let known = &self.tasks[found.place].1;
                !structure.is_same_operator_in_other_sizes(known)
            });
        most_similar(near_duplicates).map(|found| self.similar_task(&found))
    }

    /// The task that a text holds: a module's file, or a prompt or reply with modules in it. A single operator in other sizes is
    /// none, as for demonstrations.
    pub fn held_by(&self, text: &str) -> Option<SimilarTask> {
        modules(text).into_iter().find_map(|module| {
            let structure = Structure::of(&module).ok()?;
            self.near_duplicate_or_same_sizes(&structure)
        })
    }

    /// All tasks more similar than `above`, which must be at least [`crate::FAMILY_THRESHOLD`]: less similar tasks need not
    /// share an index key.
    pub(crate) fn more_similar_than(
        &self,
        structure: &Structure,
        above: f64,
    ) -> impl Iterator<Item = Comparison> {
        let mut places: Vec<usize> = index_keys(structure)
            .filter_map(|key| self.postings.get(&key))
            .flatten()
            .copied()
            .collect();
        places.sort_unstable();
        places.dedup();
        places
            .into_iter()
            .map(|place| self.compare_with(structure, place))
            .filter(move |found| found.similarity > above)
    }

    fn compare_with(&self, structure: &Structure, place: usize) -> Comparison {
        let (similarity, basis) = structure.compare(&self.tasks[place].1);
        Comparison {
            place,
            similarity,
            basis,
        }
    }

    fn similar_task(&self, found: &Comparison) -> SimilarTask {
        SimilarTask {
            id: self.tasks[found.place].0.clone(),
            similarity: found.similarity,
            basis: found.basis,
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
            let subgraphs: Vec<String> = structure
                .subgraphs
                .iter()
                .map(|(hash, count)| match count {
                    1 => format!("{hash:08x}"),
                    count => format!("{hash:08x}*{count}"),
                })
                .collect();
            serde_json::json!({
                "id": id,
                "parts": subgraphs.join(" "),
                "operators": structure.operators,
                "only": structure.only_operator.map(|only| format!("{only:08x}")),
                "ranks": structure.input_ranks,
                "extents": structure.extents.map(|extents| format!("{extents:08x}")),
            })
            .to_string()
        });
        let lines: Vec<String> = [head].into_iter().chain(lines).collect();
        lines.join("\n") + "\n"
    }

    fn parse(text: &str, path: &Path) -> Result<Self, TaskError> {
        let mut index = Self::default();
        let broken = |number: usize, reason: String| TaskError::BrokenFingerprint {
            path: path.to_path_buf(),
            line: number + 1,
            reason,
        };
        let mut lines = text.lines().enumerate();
        let head = lines.next().map_or("", |(_, line)| line);
        let head: FingerprintHeader =
            serde_json::from_str(head).map_err(|error| broken(0, error.to_string()))?;
        if head.format != FORMAT {
            let reason = format!("format {}, expected {FORMAT}", head.format);
            return Err(broken(0, reason));
        }
        for (number, line) in lines {
            let (id, structure) =
                parse_fingerprint(line).map_err(|reason| broken(number, reason))?;
            index.insert(id, structure);
        }
        Ok(index)
    }
}

/// How similar a structure is to the task at a place in the index.
pub(crate) struct Comparison {
    pub(crate) place: usize,
    similarity: f64,
    basis: SimilarityBasis,
}

#[derive(Deserialize)]
struct FingerprintHeader {
    format: u32,
}

#[derive(Deserialize)]
struct FingerprintLine {
    id: String,
    parts: String,
    operators: u32,
    only: Option<String>,
    ranks: Option<Vec<u8>>,
    #[serde(default)]
    extents: Option<String>,
}

fn parse_fingerprint(line: &str) -> Result<(String, Structure), String> {
    let line: FingerprintLine = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let hash = |text: &str| {
        SubgraphHash::from_str_radix(text, 16).map_err(|_| format!("`{text}` is no hash"))
    };
    let mut subgraphs: Vec<(SubgraphHash, u32)> = Vec::new();
    for entry in line.parts.split_whitespace() {
        let (subgraph, count) = match entry.split_once('*') {
            Some((subgraph, count)) => {
                let count = count
                    .parse()
                    .map_err(|_| format!("`{entry}` has no count"))?;
                (hash(subgraph)?, count)
            }
            None => (hash(entry)?, 1),
        };
        if subgraphs.last().is_some_and(|(last, _)| *last >= subgraph) {
            return Err(format!("`{entry}` is out of order"));
        }
        subgraphs.push((subgraph, count));
    }
    let only_operator = line.only.as_deref().map(hash).transpose()?;
    let structure = Structure {
        subgraphs,
        operators: line.operators,
        only_operator,
        input_ranks: line.ranks,
        extents: line.extents.as_deref().map(hash).transpose()?,
    };
    Ok((line.id, structure))
}

/// The keys that a structure is found by.
fn index_keys(structure: &Structure) -> impl Iterator<Item = SubgraphHash> {
    let subgraphs = structure.subgraphs.iter().map(|(hash, _)| *hash);
    let keys = subgraphs.filter(|hash| is_index_key(*hash));
    // A task without operators is found by key zero, which no hash has but by chance.
    let none = (structure.operators() == 0).then_some(0);
    keys.chain(structure.only_operator).chain(none)
}

/// The most similar; of several the first.
fn most_similar(all: impl Iterator<Item = Comparison>) -> Option<Comparison> {
    all.reduce(|best, next| {
        if next.similarity > best.similarity {
            next
        } else {
            best
        }
    })
}
