//! Makes the fingerprints of a benchmark: `cargo run -p warpsmith-decontaminate --example fingerprints -- TASKS… FILE`.
//!
//! TASKS are folders or JSONL files, as everywhere. Of tasks with one id the first counts.

use std::collections::BTreeSet;
use std::error::Error;
use std::path::Path;

use warpsmith_decontaminate::FingerprintIndex;
use warpsmith_tasks::load_all;

fn main() -> Result<(), Box<dyn Error>> {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    let [sources @ .., target] = paths.as_slice() else {
        return Err("usage: fingerprints TASKS… FILE".into());
    };
    let mut tasks = Vec::new();
    for source in sources {
        tasks.extend(load_all(Path::new(source))?);
    }
    let mut seen = BTreeSet::new();
    tasks.retain(|task| seen.insert(task.id.clone()));
    tasks.sort_by_key(|task| (task.level, task.problem_id));
    FingerprintIndex::of(&tasks)?.write(Path::new(target))?;
    Ok(())
}
