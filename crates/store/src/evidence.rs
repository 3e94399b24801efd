//! Evidence on disk: a verdict and everything needed to replay it. [`write`] writes a bundle, [`read`] reads one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use warpsmith_schema::{Profile, Submission, SubmissionForm, Target, Verdict};

use crate::{Bundle, StoreError};

const SUBMISSION: &str = "submission/";
/// Only a finished bundle has one.
const MANIFEST: &str = "manifest.json";

/// `seeds.json`: the request to the judge, apart from the sources.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct JudgeRequest {
    seed: u64,
    task: String,
    form: SubmissionForm,
    target: Target,
    profile: Profile,
    compile_mode: Option<String>,
}

/// What stands behind one verdict. It is written after the run, when its seed is worthless to the candidate.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Evidence {
    pub task_name: String,
    pub task_source: String,
    pub submission: Submission,
    /// The master seed; every input and weight follows from it.
    pub seed: u64,
    pub target: Target,
    pub profile: Profile,
    /// Versions, device, clocks and temperature before and after.
    pub environment: BTreeMap<String, Value>,
    /// Raw intervals of candidate and baselines.
    pub samples: Value,
    pub compile_log: String,
    /// What the candidate printed, clipped; for people, never parsed.
    pub printed: String,
}

/// A bundle read back.
#[derive(Debug)]
pub struct RecordedVerdict {
    pub verdict: Verdict,
    pub task_name: String,
    pub task_source: String,
    pub submission: Submission,
    pub seed: u64,
    pub compile_mode: Option<String>,
}

/// File systems take 255 bytes; a folder's name gets a prefix and a suffix.
const NAME_BYTES: usize = 120;
/// Hexadecimal digits of a name's hash.
const HASH_DIGITS: usize = 8;

/// A folder's name for a task's id, different for different ids. `level1/19` becomes `level1-19`. Where anything else has
/// to be replaced, a hash of the id is appended. An id that already looks like either form gets a hash too.
pub fn folder_name(task: &str) -> String {
    if is_numbered(task, '/') {
        return task.replace('/', "-");
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let hashed = task
        .len()
        .checked_sub(HASH_DIGITS + 1)
        .and_then(|at| task.get(at..))
        .and_then(|end| end.strip_prefix('-'))
        .is_some_and(|end| end.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let is_plain = !task.is_empty()
        && task.len() <= NAME_BYTES
        && !task.starts_with('.')
        && !hashed
        && !is_numbered(task, '-')
        && task.chars().all(fits);
    if is_plain {
        return task.to_owned();
    }
    let folded: String = task
        .chars()
        .take(NAME_BYTES - HASH_DIGITS - 1)
        .map(|c| if fits(c) { c } else { '-' })
        .collect();
    let hash = blake3::hash(task.as_bytes()).to_hex();
    let folded = folded.trim_start_matches('.');
    format!("{folded}-{}", &hash[..HASH_DIGITS])
}

/// Whether an id is `level1/19` with this separator. The numbers are shorter than a hash.
fn is_numbered(task: &str, between: char) -> bool {
    let is_number = |text: &str| {
        (1..=7).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    task.strip_prefix("level")
        .and_then(|rest| rest.split_once(between))
        .is_some_and(|(level, number)| is_number(level) && is_number(number))
}

/// How many bundles are kept below a folder to which only this program writes.
#[derive(Debug, Clone)]
pub struct EvidenceQuota {
    pub folder: PathBuf,
    pub max_bundles: usize,
}

impl EvidenceQuota {
    /// Removes the oldest bundles beyond the limit. One that cannot be removed is tried again the next time.
    pub fn enforce(&self) {
        let mut bundles = Vec::new();
        let mut open = vec![self.folder.clone()];
        while let Some(folder) = open.pop() {
            let Ok(entries) = fs_err::read_dir(&folder) else {
                continue;
            };
            for entry in entries.flatten() {
                let path = entry.path();
                // A link leads to folders that are not ours.
                if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    continue;
                }
                match fs_err::metadata(path.join(MANIFEST)).and_then(|found| found.modified()) {
                    Ok(written) => bundles.push((written, path)),
                    Err(_) => open.push(path),
                }
            }
        }
        bundles.sort();
        let surplus = bundles.len().saturating_sub(self.max_bundles);
        for (_, path) in bundles.drain(..surplus) {
            let _ = fs_err::remove_dir_all(&path);
            // Parent folders that are empty now.
            for folder in path.ancestors().skip(1) {
                if *folder == self.folder || fs_err::remove_dir(folder).is_err() {
                    break;
                }
            }
        }
    }
}

/// Judgements of one submission that are told apart by a number.
const MAX_NUMBERED: u32 = 1000;

/// The place for a bundle, `<utc>-<task>-<hash8>` below a folder, numbered where that is taken.
pub fn timestamped_place(folder: &Path, task: &str, hash: &str) -> PathBuf {
    let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
    free_place(&folder.join(format!(
        "{now}-{}-{}",
        folder_name(task),
        &hash[..HASH_DIGITS]
    )))
}

/// This place, or, where something is there already, the first of `PLACE-2`, `PLACE-3`, … that is free.
pub fn free_place(place: &Path) -> PathBuf {
    let numbered = |number: u32| {
        let mut name = place.as_os_str().to_owned();
        name.push(format!("-{number}"));
        PathBuf::from(name)
    };
    let mut places = std::iter::once(place.to_path_buf()).chain((2..MAX_NUMBERED).map(numbered));
    places
        .find(|place| !place.exists())
        .unwrap_or_else(|| place.to_path_buf())
}

/// Writes a bundle and returns the verdict, which then names its path.
pub fn write(
    place: &Path,
    mut verdict: Verdict,
    evidence: Evidence,
    compile_mode: Option<String>,
) -> Result<Verdict, StoreError> {
    let place = std::path::absolute(place).map_err(|source| StoreError::Write {
        path: place.to_path_buf(),
        source,
    })?;
    verdict.evidence = Some(place.display().to_string());
    let mut bundle = Bundle::create(&place)?;
    bundle.write("task.py", evidence.task_source.as_bytes())?;
    for (name, content) in &evidence.submission.files {
        bundle.write(&format!("{SUBMISSION}{name}"), content)?;
    }
    bundle.write_json(
        "seeds.json",
        &JudgeRequest {
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

/// Reads a bundle back. One that was changed since is refused.
pub fn read(path: &Path) -> Result<RecordedVerdict, StoreError> {
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
    let seeds: JudgeRequest =
        serde_json::from_value(json("seeds.json")?).map_err(|error| typed("seeds.json", error))?;
    let verdict: Verdict = serde_json::from_value(json("verdict.json")?)
        .map_err(|error| typed("verdict.json", error))?;
    let mut files = BTreeMap::new();
    for name in bundle.names() {
        if let Some(inner) = name.strip_prefix(SUBMISSION) {
            files.insert(inner.to_owned(), bundle.read(name)?);
        }
    }
    Ok(RecordedVerdict {
        verdict,
        task_name: seeds.task,
        task_source: String::from_utf8_lossy(&bundle.read("task.py")?).into_owned(),
        submission: Submission {
            form: seeds.form,
            files,
        },
        seed: seeds.seed,
        compile_mode: seeds.compile_mode,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn no_two_tasks_have_one_folder() {
        let long = "a".repeat(300);
        let names = [
            "level1/19",
            "level1-19",
            "level1 19",
            "level1.19",
            "a/b",
            "a-b",
            "a\\b",
            "ä",
            "ö",
            "",
            "-",
            ".",
            "..",
            "../x",
            "x",
            ".x",
            &long,
            &long[1..],
            "19_ReLU",
        ];
        let mut all: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        // What a fold gives is no other task's name either.
        all.extend(names.iter().map(|name| folder_name(name)));
        let distinct: BTreeSet<String> = all.into_iter().collect();
        let folded: BTreeSet<String> = distinct.iter().map(|name| folder_name(name)).collect();
        assert_eq!(folded.len(), distinct.len());
        for name in &folded {
            assert!(
                !name.is_empty() && name.len() <= NAME_BYTES && !name.starts_with('.'),
                "{name}"
            );
            assert!(!name.contains(['/', '\\']), "{name}");
        }
        assert_eq!(folder_name("19_ReLU"), "19_ReLU");
        assert_eq!(folder_name("level1/19"), "level1-19");
        assert!(folder_name("level1-19").starts_with("level1-19-"));
    }

    #[test]
    fn a_place_that_is_taken_is_numbered() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("a.b");
        let name = || {
            let free = free_place(&place);
            fs_err::create_dir(&free).unwrap();
            free.file_name().unwrap().to_string_lossy().into_owned()
        };
        assert_eq!([name(), name(), name()], ["a.b", "a.b-2", "a.b-3"]);
        let timed = timestamped_place(folder.path(), "level1/19", "0123456789abcdef");
        let timed = timed.file_name().unwrap().to_string_lossy().into_owned();
        assert!(timed.ends_with("Z-level1-19-01234567"), "{timed}");
    }

    #[test]
    fn the_oldest_bundles_go_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let served = place.path().join("served");
        let bundle = |path: &str, age: u64| {
            let folder = place.path().join(path);
            fs_err::create_dir_all(folder.join("submission")).unwrap();
            fs_err::write(folder.join("submission/model_new.py"), "x").unwrap();
            fs_err::write(folder.join(MANIFEST), "{}").unwrap();
            let written = SystemTime::now() - Duration::from_secs(age);
            let file = std::fs::File::options()
                .write(true)
                .open(folder.join(MANIFEST))
                .unwrap();
            file.set_modified(written).unwrap();
            folder
        };
        let run = bundle("runs/a/evidence/task/old", 9000);
        let old = bundle("served/first/0/task/old", 500);
        let older = bundle("served/first/0/other/older", 600);
        let newer = bundle("served/second/1/task/newer", 20);
        let newest = bundle("served/second/0/task/newest", 10);
        std::os::unix::fs::symlink(place.path().join("runs"), served.join("link")).unwrap();
        let quota = |most| EvidenceQuota {
            folder: served.clone(),
            max_bundles: most,
        };
        quota(4).enforce();
        assert!(old.exists() && older.exists());
        quota(3).enforce();
        assert!(!older.exists() && old.exists());
        assert!(!served.join("first/0/other").exists() && served.join("first/0/task").exists());
        quota(1).enforce();
        assert!(!old.exists() && !newer.exists() && newest.exists());
        assert!(!served.join("first").exists());
        quota(0).enforce();
        assert!(!newest.exists() && served.exists() && run.exists());
        EvidenceQuota {
            folder: place.path().join("nowhere"),
            max_bundles: 0,
        }
        .enforce();
    }
}
