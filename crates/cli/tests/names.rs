//! Names in the workspace: the field's words, and one meaning for each public type.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

/// Words of identifiers and flags that must not come back, where, and what to say instead. A name is read word by word:
/// `low rank` is `low_rank`, `LowRank` and `--low-rank`.
const RETIRED: &[(&str, &str, &str)] = &[
    // word                 where               instead
    (
        "slope",
        "crates/kernels crates/train crates/model",
        "gradient, `grad`",
    ),
    (
        "slopes",
        "crates/kernels crates/train crates/model",
        "gradients, `grad`",
    ),
    ("low rank", "crates", "LoRA"),
    ("pupil", "crates", "trainable model"),
    (
        "twin",
        "crates/kernels crates/train crates/tasks crates/decontaminate crates/synth crates/judge",
        "reference, honest control or near-duplicate",
    ),
    ("luck", "crates", "`SplitMix64`, seed"),
    ("court", "crates", "the trait `Judge`"),
    ("docket", "crates", "queue"),
    ("manner", "crates", "`JudgeConfig`, `JudgingOptions`"),
    ("scribe", "crates", "recorder"),
    ("dock", "crates/judge crates/cli", "`CaseJudge`"),
    ("restless", "crates", "noisy"),
    (
        "wanted",
        "crates/cli/src/policy.rs crates/cli/src/runs.rs crates/cli/src/commands/optimize.rs",
        "`PolicySpec`, spec",
    ),
    ("subject", "crates/cli", "`PolicyContext`"),
    (
        "reviewer",
        "crates configs scripts",
        "LLM judge, `llm_judge`",
    ),
    ("opinion", "crates configs scripts", "LLM-judge score"),
    ("opinions", "crates configs scripts", "LLM-judge scores"),
    (
        "practice",
        "crates/train crates/cli/src/commands/train",
        "`CollectSettings`",
    ),
    ("paid", "crates/judge", "gained"),
    ("nothing paid", "crates", "`nothing_rewarded`"),
    ("spared", "crates", "excluded"),
    (
        "learnt",
        "crates/train crates/cli/src scripts",
        "trained, trainable",
    ),
    ("decline", "crates/train", "`lr_scheduler_type`"),
    (
        "looks",
        "crates/train scripts",
        "evaluations, `validation_samples`",
    ),
    ("happening", "crates", "`EventKind`"),
    ("wish", "crates", "`StopRequest`"),
    (
        "tokens at once",
        "crates configs scripts",
        "`tokens_per_microbatch`",
    ),
    ("log totals", "crates", "`lse`"),
    ("agreements", "crates", "`delta`"),
    ("clip low", "crates configs scripts", "`clip_ratio_low`"),
    ("clip high", "crates configs scripts", "`clip_ratio_high`"),
    ("entropy bonus", "crates configs scripts", "`entropy_coeff`"),
    ("actor lambda", "crates configs scripts", "`lam`"),
    ("gradient clip", "crates configs scripts", "`max_grad_norm`"),
    ("by deviation", "crates configs scripts", "`normalize_std`"),
    (
        "by difficulty",
        "crates configs scripts",
        "`difficulty_weight`",
    ),
    (
        "learn speed",
        "crates configs scripts",
        "`--estimate-train-tps`",
    ),
    ("reckon for", "crates configs scripts", "`--estimate-for`"),
    (
        "lesson",
        "crates configs scripts",
        "demonstration, `train demos`",
    ),
    (
        "lessons",
        "crates configs scripts",
        "demonstrations, `train demos`",
    ),
];

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs_err::canonicalize(root).unwrap()
}

fn files_below(folder: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs_err::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_below(&path, extensions, found);
        } else if path
            .extension()
            .is_none_or(|extension| extensions.iter().any(|one| *one == extension))
        {
            found.push(path);
        }
    }
}

/// Names of a source, comments aside: each with its words in lower case, a space between.
fn identifiers(source: &str) -> impl Iterator<Item = (usize, String)> {
    let lines = source.lines().enumerate();
    lines.flat_map(|(number, line)| {
        let code = line.split("//").next().unwrap_or_default();
        let code = if code.trim_start().starts_with('#') {
            ""
        } else {
            code
        };
        let names =
            code.split(|letter: char| !letter.is_alphanumeric() && letter != '_' && letter != '-');
        let names: Vec<(usize, String)> = names
            .filter(|name| !name.is_empty())
            .map(|name| (number + 1, words(name)))
            .collect();
        names
    })
}

fn words(name: &str) -> String {
    let mut words = String::new();
    let mut before = ' ';
    for letter in name.chars() {
        if letter == '_' || letter == '-' {
            words.push(' ');
        } else {
            if letter.is_uppercase() && before.is_lowercase() {
                words.push(' ');
            }
            words.extend(letter.to_lowercase());
        }
        before = letter;
    }
    words
}

#[test]
fn retired_names_do_not_come_back() {
    let root = root();
    let mut found = Vec::new();
    // Most names stand in many places.
    let mut fine_by_words: BTreeMap<Vec<(String, &str)>, HashSet<String>> = BTreeMap::new();
    for folder in ["crates", "configs", "scripts"] {
        let mut files = Vec::new();
        files_below(
            &root.join(folder),
            &["rs", "cu", "cuh", "toml", "sh", "py"],
            &mut files,
        );
        for file in files {
            let Ok(source) = fs_err::read_to_string(&file) else {
                continue; // A data file without an extension.
            };
            let place = file
                .strip_prefix(&root)
                .unwrap()
                .to_string_lossy()
                .into_owned();
            if place.ends_with("tests/names.rs") {
                continue;
            }
            let here: Vec<(String, &str)> = RETIRED
                .iter()
                .filter(|(_, folders, _)| folders.split(' ').any(|one| place.starts_with(one)))
                .map(|(word, _, instead)| (format!(" {word} "), *instead))
                .collect();
            let fine = fine_by_words.entry(here.clone()).or_default();
            for (line, name) in identifiers(&source) {
                if fine.contains(&name) {
                    continue;
                }
                let spaced = format!(" {name} ");
                let retired: Vec<_> = here
                    .iter()
                    .filter(|(word, _)| spaced.contains(word))
                    .collect();
                for (_, instead) in &retired {
                    found.push(format!("{place}:{line}: `{name}`; say {instead}"));
                }
                if retired.is_empty() {
                    fine.insert(name);
                }
            }
        }
    }
    assert!(
        found.is_empty(),
        "{} retired names:\n{}",
        found.len(),
        found.join("\n")
    );
}

#[test]
fn no_two_public_types_share_a_name() {
    let root = root();
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for entry in fs_err::read_dir(root.join("crates")).unwrap() {
        let mut files = Vec::new();
        files_below(&entry.unwrap().path().join("src"), &["rs"], &mut files);
        for file in files {
            let Ok(source) = fs_err::read_to_string(&file) else {
                continue;
            };
            let place = file.strip_prefix(&root).unwrap().display().to_string();
            for line in source.lines() {
                let kinds = ["struct", "enum", "trait", "union", "type"];
                let rest = kinds
                    .iter()
                    .find_map(|kind| line.trim_start().strip_prefix(&format!("pub {kind} ")));
                if let Some(rest) = rest {
                    let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
                    let name = &rest[..end.unwrap_or(rest.len())];
                    types
                        .entry(name.to_owned())
                        .or_default()
                        .push(place.clone());
                }
            }
        }
    }
    types.retain(|_, places| places.len() > 1);
    assert!(
        types.is_empty(),
        "public types that share a name: {types:#?}"
    );
}

#[test]
fn names_are_read_word_by_word() {
    assert_eq!(words("LowRank"), "low rank");
    assert_eq!(words("tokens_at_once"), "tokens at once");
    assert_eq!(words("clip-low"), "clip low");
}
