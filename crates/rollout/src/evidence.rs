//! Evidence on disk: a verdict and all that is needed to reach it again.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use warpsmith_judge::{Judged, TaskSource};
use warpsmith_schema::{Form, Profile, Submission, Target, Verdict};
use warpsmith_store::{Bundle, StoreError};

const SUBMISSION: &str = "submission/";

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
pub struct Recorded {
    pub verdict: Verdict,
    pub task: TaskSource,
    pub submission: Submission,
    pub seed: u64,
    pub compile_mode: Option<String>,
}

/// A task's name as a folder's.
pub fn plain(task: &str) -> String {
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
pub fn write(
    place: &Path,
    judged: Judged,
    compile_mode: Option<String>,
) -> Result<Verdict, StoreError> {
    let place = std::path::absolute(place).map_err(|source| StoreError::Write {
        path: place.to_path_buf(),
        source,
    })?;
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
pub fn read(path: &Path) -> Result<Recorded, StoreError> {
    let bundle = Bundle::open(path)?;
    let json = |name: &str| -> Result<Value, StoreError> {
        let file = path.join(name);
        serde_json::from_slice(&bundle.read(name)?)
            .map_err(|source| StoreError::Json { path: file, source })
    };
    let typed = |name: &str, source| -> StoreError {
        let file = path.join(name);
        StoreError::Json { path: file, source }
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
