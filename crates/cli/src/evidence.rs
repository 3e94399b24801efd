//! Evidence on disk: a verdict and all that is needed to reach it again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use warpsmith_judge::{Judged, TaskSource};
use warpsmith_machine::Caches;
use warpsmith_schema::{Form, Profile, Submission, Target, Verdict};
use warpsmith_store::{Bundle, StoreError};
use warpsmith_tasks::solution_hash;

use crate::failure::Stop;

const SUBMISSION: &str = "submission/";
/// More judgements of one solution than fit in a second.
const SAME_SECOND: u32 = 1000;

/// `seeds.json`: what the judge was asked, beside the sources.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Seeds {
    seed: u64,
    task: String,
    form: Form,
    target: Target,
    profile: Profile,
    compile_mode: Option<String>,
}

/// A bundle read back.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) verdict: Verdict,
    pub(crate) task: TaskSource,
    pub(crate) submission: Submission,
    pub(crate) seed: u64,
    pub(crate) compile_mode: Option<String>,
}

/// `<utc>-<task>-<hash8>` in the cache, numbered where that is taken.
pub(crate) fn place(caches: &Caches, task: &str, submission: &Submission) -> PathBuf {
    let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
    let hash = solution_hash(submission);
    let stem = format!("{now}-{}-{}", plain(task), &hash[..8]);
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

/// A task's name as a folder's.
pub(crate) fn plain(task: &str) -> String {
    task.chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || "._-".contains(c) {
                c
            } else {
                '-'
            }
        })
        .collect()
}

/// Writes the bundle, whose path the verdict then names.
pub(crate) fn write(
    place: &Path,
    judged: Judged,
    compile_mode: Option<String>,
) -> Result<Verdict, Stop> {
    let place = std::path::absolute(place)?;
    let Judged {
        mut verdict,
        evidence,
    } = judged;
    verdict.evidence = Some(place.display().to_string());
    let mut bundle = Bundle::create(&place)?;
    bundle.write("task.py", evidence.task_source.as_bytes())?;
    for (name, content) in &evidence.submission.files {
        bundle.write(&format!("{SUBMISSION}{name}"), content)?;
    }
    bundle.write_json(
        "seeds.json",
        &Seeds {
            seed: evidence.seed,
            task: evidence.task_name,
            form: evidence.submission.form,
            target: evidence.target,
            profile: evidence.profile,
            compile_mode,
        },
    )?;
    bundle.write_json("environment.json", &evidence.environment)?;
    bundle.write_json("samples.json", &evidence.samples)?;
    bundle.write("compile.log", evidence.compile_log.as_bytes())?;
    bundle.write("printed.log", evidence.printed.as_bytes())?;
    bundle.write_json("verdict.json", &verdict)?;
    bundle.finish()?;
    Ok(verdict)
}

/// Opens a bundle; one that was changed is refused.
pub(crate) fn read(path: &Path) -> Result<Recorded, Stop> {
    let bundle = Bundle::open(path)?;
    let json = |name: &str| -> Result<Value, Stop> {
        let file = path.join(name);
        serde_json::from_slice(&bundle.read(name)?)
            .map_err(|source| StoreError::Json { path: file, source }.into())
    };
    let typed = |name: &str, source| -> Stop {
        let file = path.join(name);
        StoreError::Json { path: file, source }.into()
    };
    let seeds: Seeds =
        serde_json::from_value(json("seeds.json")?).map_err(|error| typed("seeds.json", error))?;
    let verdict: Verdict = serde_json::from_value(json("verdict.json")?)
        .map_err(|error| typed("verdict.json", error))?;
    let mut files = BTreeMap::new();
    for name in bundle.names() {
        if let Some(inner) = name.strip_prefix(SUBMISSION) {
            files.insert(inner.to_owned(), bundle.read(name)?);
        }
    }
    Ok(Recorded {
        verdict,
        task: TaskSource {
            name: seeds.task,
            source: String::from_utf8_lossy(&bundle.read("task.py")?).into_owned(),
        },
        submission: Submission {
            form: seeds.form,
            files,
        },
        seed: seeds.seed,
        compile_mode: seeds.compile_mode,
    })
}
