//! Tasks from files, folders and lines.

use std::path::Path;

use tempfile::TempDir;
use warpsmith_schema::Task;
use warpsmith_tasks::{TaskError, load, load_all};

fn module(operation: &str) -> String {
    format!(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return {operation}\n\
         def get_inputs():\n    return [torch.randn(4, 4)]\ndef get_init_inputs():\n    return []\n"
    )
}

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = folder.path().join(name);
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        fs_err::write(path, content).unwrap();
    }
    folder
}

fn line(level: u32, problem: u32, name: &str) -> String {
    serde_json::json!({"level": level, "problem_id": problem, "name": name, "code": module(name)})
        .to_string()
}

fn at(folder: &Path, rest: &str) -> String {
    format!("{}/{rest}", folder.display())
}

fn ids(tasks: &[Task]) -> Vec<&str> {
    tasks.iter().map(|task| task.id.as_str()).collect()
}

#[test]
fn a_module_and_a_folder_with_one() {
    let source = module("x + 1");
    let folder = folder(&[("plus.py", &source), ("twice/model.py", &source)]);
    let plus = load(&at(folder.path(), "plus.py")).unwrap();
    assert_eq!(
        plus,
        Task {
            id: "plus".into(),
            name: "plus".into(),
            source: source.clone(),
            level: None,
            problem_id: None,
            origin: at(folder.path(), "plus.py"),
            graph: None,
        }
    );
    assert_eq!(load(&at(folder.path(), "twice")).unwrap().id, "twice");
    assert_eq!(load(&at(folder.path(), "twice/")).unwrap().source, source);
}

#[test]
fn a_solution_beside_its_task_is_no_task() {
    let source = module("x + 1");
    let folder = folder(&[("model.py", &source), ("model_new.py", &source)]);
    assert_eq!(ids(&load_all(folder.path()).unwrap()), ["model"]);
}

#[test]
fn what_is_not_a_task_says_why() {
    let folder = folder(&[
        ("empty.py", " \n"),
        ("notes.txt", "x"),
        ("bare/readme", "x"),
    ]);
    for (name, expected) in [
        ("missing.py", "no task at"),
        ("missing.jsonl#3", "no task at"),
        ("empty.py", "it is empty"),
        ("notes.txt", "none of `.py`, `.jsonl` and `.parquet`"),
        ("bare", "no `model.py`"),
    ] {
        let error = load(&at(folder.path(), name)).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(error.hint().is_some());
    }
}

#[test]
fn one_of_many_lines() {
    let text = [
        line(1, 19, "19_ReLU"),
        String::new(),
        line(2, 19, "19_Gelu"),
        line(1, 3, "3_Sum"),
    ]
    .join("\n");
    let folder = folder(&[("many.jsonl", &text), ("one.jsonl", &line(3, 4, "4_Net"))]);
    let load = |selector: &str| load(&at(folder.path(), selector));

    let task = load("many.jsonl#level1/19").unwrap();
    assert_eq!(
        (task.name.as_str(), task.level, task.problem_id),
        ("19_ReLU", Some(1), Some(19))
    );
    assert_eq!(task.origin, at(folder.path(), "many.jsonl#level1/19"));
    assert_eq!(load("many.jsonl#3").unwrap().name, "3_Sum");
    for selector in ["19_Gelu", "Gelu", "level2/19_Gelu", "level2/Gelu"] {
        assert_eq!(
            load(&format!("many.jsonl#{selector}")).unwrap().id,
            "level2/19"
        );
    }
    assert_eq!(load("one.jsonl").unwrap().id, "level3/4");

    let error = load("many.jsonl#19").unwrap_err();
    assert!(matches!(error, TaskError::Ambiguous { .. }));
    assert!(
        error.hint().unwrap().contains("level1/19, level2/19"),
        "{:?}",
        error.hint()
    );
    let error = load("many.jsonl#level9/9").unwrap_err();
    assert_eq!(
        error.hint().unwrap(),
        "it has level1/3, level1/19, level2/19"
    );
    assert!(matches!(
        load("many.jsonl").unwrap_err(),
        TaskError::Ambiguous { .. }
    ));
}

#[test]
fn a_broken_line_is_named() {
    let good = line(1, 1, "1_A");
    for (bad, expected) in [
        ("{\"level\": 1", "EOF"),
        (
            "{\"level\": 1, \"problem_id\": 2, \"name\": \"x\"}",
            "missing field `code`",
        ),
        ("{\"name\": \"x\", \"code\": \" \"}", "`code` is empty"),
        (good.as_str(), "already on line 1"),
    ] {
        let folder = folder(&[("tasks.jsonl", &format!("{good}\n\n{bad}\n"))]);
        let error = load_all(&folder.path().join("tasks.jsonl")).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("tasks.jsonl:3: ") && text.contains(expected),
            "{text}"
        );
    }
}

#[test]
fn a_kernelbench_checkout_in_each_of_its_forms() {
    let source = module("x");
    let folder = folder(&[
        ("KernelBench/level1/2_Two.py", &source),
        ("KernelBench/level1/10_Ten.py", &source),
        ("KernelBench/level1/__init__.py", ""),
        ("KernelBench/level2/1_One.py", &source),
        ("KernelBench/notes.md", "x"),
        ("setup.cfg", "x"),
    ]);
    let expected = ["level1/2", "level1/10", "level2/1"];
    assert_eq!(ids(&load_all(folder.path()).unwrap()), expected);
    assert_eq!(
        ids(&load_all(&folder.path().join("KernelBench")).unwrap()),
        expected
    );
    let level = folder.path().join("KernelBench/level1");
    assert_eq!(ids(&load_all(&level).unwrap()), expected[..2]);
    assert_eq!(load(&at(&level, "10_Ten.py")).unwrap().id, "level1/10");
    assert_eq!(
        load(&at(folder.path(), "KernelBench#level2/1"))
            .unwrap()
            .name,
        "1_One"
    );
}

#[test]
fn lines_without_numbers_keep_their_order() {
    let text = "{\"name\": \"b\", \"code\": \"x = 1\"}\n{\"name\": \"a\", \"code\": \"x = 2\"}\n";
    let folder = folder(&[("made.jsonl", text), ("none.jsonl", "\n")]);
    assert_eq!(
        ids(&load_all(&folder.path().join("made.jsonl")).unwrap()),
        ["b", "a"]
    );
    assert!(matches!(
        load_all(&folder.path().join("none.jsonl")),
        Err(TaskError::Empty { .. })
    ));
    assert!(matches!(
        load_all(&folder.path().join("no")),
        Err(TaskError::Missing { .. })
    ));
}
