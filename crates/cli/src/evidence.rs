//! Evidence on disk, and where that of single judgements goes.

use std::path::{Path, PathBuf};

use warpsmith_judge::Judged;
use warpsmith_machine::Caches;
use warpsmith_schema::{Submission, Verdict};
use warpsmith_store::StoreError;
pub(crate) use warpsmith_store::evidence::{folder_name, read};
use warpsmith_tasks::solution_hash;

/// Writes the bundle, whose path the verdict then names.
pub(crate) fn write(
    place: &Path,
    judged: Judged,
    compile_mode: Option<String>,
) -> Result<Verdict, StoreError> {
    warpsmith_store::evidence::write(place, judged.verdict, judged.evidence, compile_mode)
}

/// More judgements of one solution than fit in a second.
const SAME_SECOND: u32 = 1000;

/// `<utc>-<task>-<hash8>` in the cache, numbered where that is taken.
pub(crate) fn place(caches: &Caches, task: &str, submission: &Submission) -> PathBuf {
    let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
    let hash = solution_hash(submission);
    let stem = format!("{now}-{}-{}", folder_name(task), &hash[..8]);
    let mut names = (2..SAME_SECOND).map(|number| format!("{stem}-{number}"));
    let mut path = caches.evidence().join(&stem);
    while path.exists() {
        match names.next() {
            Some(name) => path = caches.evidence().join(name),
            None => break,
        }
    }
    path
}
