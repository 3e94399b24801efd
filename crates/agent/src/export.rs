//! Task sets as folders that other frameworks run: Harbor's task folders, and an evaluation of Inspect.
//!
//! Both have solutions judged by this program, which only the side that scores asks. A failure to judge is an error of theirs and
//! no score.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use serde_json::json;
use warpsmith_schema::{Message, Target, Task};

use crate::prompt;
use crate::settings::PromptStyle;

const TASK_TOML: &str = include_str!("export/task.toml");
const DOCKERFILE: &str = include_str!("export/Dockerfile");
const TEST_SH: &str = include_str!("export/test.sh");
const VERIFY_PY: &str = include_str!("export/verify.py");
const INSPECT_PY: &str = include_str!("export/inspect_task.py");
const INSPECT_CARD: &str = include_str!("export/inspect.md");

/// For a GPU, and for a machine without one.
const CUDA_IMAGE: &str = "pytorch/pytorch:2.9.1-cuda12.8-cudnn9-devel";
const CPU_IMAGE: &str = "python:3.12-slim";

/// Writes a folder for each task, as Harbor takes them.
pub fn export_harbor(tasks: &[Task], target: Target, folder: &Path) -> io::Result<()> {
    let (image, gpus) = match target {
        Target::Cuda => (CUDA_IMAGE, 1),
        Target::Cpu => (CPU_IMAGE, 0),
    };
    let instruction = prompt::workspace(target);
    let mut taken = BTreeSet::new();
    for task in tasks {
        let place = folder.join(folder_name(&task.id, &mut taken));
        let settings = TASK_TOML
            .replace("{id}", &quoted(&task.id))
            .replace("{name}", &quoted(&task.name))
            .replace("{origin}", &quoted(&task.origin))
            .replace("{target}", &quoted(target.name()))
            .replace("{gpus}", &gpus.to_string());
        for (path, text) in [
            ("task.toml", settings.as_str()),
            ("instruction.md", &instruction),
            (
                "environment/Dockerfile",
                &DOCKERFILE.replace("{image}", image),
            ),
            ("environment/model.py", &task.source),
            // Not what lies in the container: that may have been rewritten.
            ("tests/model.py", &task.source),
            ("tests/test.sh", TEST_SH),
            ("tests/verify.py", VERIFY_PY),
        ] {
            let path = place.join(path);
            if let Some(parent) = path.parent() {
                fs_err::create_dir_all(parent)?;
            }
            fs_err::write(path, text)?;
        }
    }
    Ok(())
}

/// Writes one evaluation of all tasks, as `inspect eval FOLDER/task.py` takes it.
pub fn export_inspect(tasks: &[Task], target: Target, folder: &Path) -> io::Result<()> {
    let mut lines = String::new();
    for task in tasks {
        let messages = prompt::for_single(task, target, PromptStyle::Full, None);
        let messages: Vec<_> = messages
            .iter()
            .filter_map(|message| match message {
                Message::System { text } => Some(json!({ "role": "system", "content": text })),
                Message::User { text } => Some(json!({ "role": "user", "content": text })),
                _ => None,
            })
            .collect();
        let row = json!({
            "id": task.id, "input": messages,
            "metadata": { "name": task.name, "origin": task.origin, "level": task.level, "source": task.source },
        });
        lines += &(row.to_string() + "\n");
    }
    fs_err::create_dir_all(folder)?;
    fs_err::write(folder.join("tasks.jsonl"), lines)?;
    let program = INSPECT_PY.replace("{target}", &quoted(target.name()));
    fs_err::write(folder.join("task.py"), program)?;
    let card = INSPECT_CARD.replace("{count}", &tasks.len().to_string());
    fs_err::write(folder.join("README.md"), card)
}

/// A string as TOML, JSON and Python read it.
fn quoted(text: &str) -> String {
    json!(text).to_string()
}

/// Letters that are no trouble as a folder's or an image's name, told apart where two tasks would be one.
fn folder_name(id: &str, taken: &mut BTreeSet<String>) -> String {
    let plain = |letter: char| match letter {
        'a'..='z' | '0'..='9' => letter,
        'A'..='Z' => letter.to_ascii_lowercase(),
        _ => '-',
    };
    let name: String = id.chars().map(plain).collect();
    let name = name.trim_matches('-');
    let name = if name.is_empty() { "task" } else { name };
    let mut found = name.to_owned();
    for number in 2.. {
        if taken.insert(found.clone()) {
            break;
        }
        found = format!("{name}-{number}");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_have_plain_names_of_their_own() {
        let mut taken = BTreeSet::new();
        let ids = ["level1/1_Square", "level1/1 square", "../..", "ß", "a"];
        let names = ids.map(|id| folder_name(id, &mut taken));
        let wanted = [
            "level1-1-square",
            "level1-1-square-2",
            "task",
            "task-2",
            "a",
        ];
        assert_eq!(names, wanted);
    }
}
