//! Level 4 wraps models of the Hugging Face hub by name. Nothing is fetched for it: what is not here is left out.

use std::env;
use std::path::{Path, PathBuf};

use warpsmith_schema::{Failure, FailureKind, Task};

const LEVEL: u32 = 4;

/// Tasks of level 4 whose weights are not in the hub's cache, and why that matters.
pub(super) fn without_weights(tasks: &[Task]) -> Vec<(String, Failure)> {
    let hub = hub();
    tasks
        .iter()
        .filter(|task| task.level == Some(LEVEL))
        .filter_map(|task| {
            let name = model(&task.source).unwrap_or(&task.name);
            let here = hub.as_ref().is_some_and(|hub| is_in(hub, name));
            (!here).then(|| (task.id.clone(), missing(name)))
        })
        .collect()
}

fn missing(name: &str) -> Failure {
    Failure {
        kind: FailureKind::Task,
        code: "no_weights".to_owned(),
        message: format!("the weights of `{name}` are not on this machine"),
        hint: Some(format!("fetch them with `hf download {name}`")),
    }
}

/// As `huggingface_hub` looks for it.
fn hub() -> Option<PathBuf> {
    let of = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    if let Some(hub) = of("HF_HUB_CACHE") {
        return Some(hub.into());
    }
    if let Some(home) = of("HF_HOME") {
        return Some(Path::new(&home).join("hub"));
    }
    let cache = of("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(Path::new(&of("HOME")?).join(".cache")))?;
    Some(cache.join("huggingface/hub"))
}

fn is_in(hub: &Path, name: &str) -> bool {
    let folder = format!("models--{}", name.replace('/', "--"));
    hub.join(folder).join("snapshots").is_dir()
}

/// `model_name = "EleutherAI/gpt-neo-2.7B"`
fn model(source: &str) -> Option<&str> {
    let mut lines = source.lines();
    let (_, value) = lines.find_map(|line| line.split_once("model_name = \""))?;
    value.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_named_by_its_module_and_found_in_the_cache() {
        let source = "config = 1\nmodel_name = \"a/b-2.7B\"\n";
        assert_eq!(model(source), Some("a/b-2.7B"));
        assert_eq!(model("x = 1"), None);
        let hub = tempfile::tempdir().unwrap();
        assert!(!is_in(hub.path(), "a/b-2.7B"));
        fs_err::create_dir_all(hub.path().join("models--a--b-2.7B/snapshots")).unwrap();
        assert!(is_in(hub.path(), "a/b-2.7B"));
    }
}
