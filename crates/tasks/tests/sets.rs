//! Task sets in the public schema and in our own, as JSONL and as Parquet.

use std::collections::BTreeMap;
use std::path::Path;

use warpsmith_schema::{Dtype, GraphValue, OpGraph, ValueSource};
use warpsmith_tasks::{SetSplit, SetTask, load, load_all, write_set};

const CODE: &str = "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x # é\n";

fn graph() -> OpGraph {
    let value = |from| GraphValue {
        shape: vec![4],
        dtype: Dtype::Float32,
        from,
        line: None,
    };
    OpGraph {
        values: vec![
            value(ValueSource::Input { position: 0 }),
            value(ValueSource::Applied {
                op: "leaky_relu".into(),
                inputs: vec![Some(0), None],
                arguments: BTreeMap::from([("negative_slope".into(), serde_json::json!(0.1))]),
                result: 0,
            }),
        ],
        returns: vec![1],
        nesting: None,
    }
}

fn set() -> Vec<SetTask> {
    let task = |id: &str, ops: &[&str]| SetTask {
        id: id.into(),
        name: None,
        level: None,
        problem_id: None,
        ops: ops.iter().map(|&op| op.to_owned()).collect(),
        data_source: format!("torch#{}", ops.len()),
        code: format!("{CODE}# {id}\n"),
        graph: None,
        eager_us: None,
        split: None,
    };
    vec![
        SetTask {
            graph: Some(graph()),
            eager_us: Some(1250.5),
            split: Some(SetSplit::Train),
            ..task("b-two", &["torch.nn.ReLU", "torch.sum"])
        },
        task("a-none", &[]),
        SetTask {
            split: Some(SetSplit::Validation),
            ..task("c-one", &["torch.nn.LeakyReLU"])
        },
    ]
}

fn assert_loaded(path: &Path) {
    let tasks = load_all(path).unwrap();
    let expected = set();
    assert_eq!(tasks.len(), expected.len());
    for (task, expected) in tasks.iter().zip(&expected) {
        assert_eq!(task.id, expected.id);
        assert_eq!(task.source, expected.code);
        assert_eq!(task.graph, expected.graph);
    }
    assert_eq!(tasks[0].name, "torch.nn.ReLU torch.sum");
    assert_eq!(tasks[1].name, "a-none");
    let one = load(&format!("{}#c-one", path.display())).unwrap();
    assert_eq!(one, tasks[2]);
    assert_eq!(one.origin, format!("{}#c-one", path.display()));
}

#[test]
fn a_set_is_written_as_lines_and_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set.jsonl");
    write_set(&path, &set()).unwrap();
    assert_loaded(&path);
    let text = fs_err::read_to_string(&path).unwrap();
    let lines: Vec<SetTask> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines, set());
    // Nothing is left of one that could not be written, and nothing is lost.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a folder.jsonl");
    fs_err::create_dir(&path).unwrap();
    let error = write_set(&path, &set()).unwrap_err();
    assert!(error.to_string().starts_with("failed to write"), "{error}");
    assert_eq!(fs_err::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn the_public_schema_names_no_task() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("public.jsonl");
    let line = |ops: serde_json::Value| {
        serde_json::json!({"ops": ops, "data_source": "torch#1", "code": CODE}).to_string()
    };
    let lines = [
        line(serde_json::json!(["torch.nn.ReLU"])),
        String::new(),
        line(serde_json::json!("[\"torch.nn.GELU\"]")),
        line(serde_json::Value::Null),
    ];
    fs_err::write(&path, lines.join("\n")).unwrap();
    let tasks = load_all(&path).unwrap();
    let named: Vec<(&str, &str)> = tasks
        .iter()
        .map(|task| (task.id.as_str(), task.name.as_str()))
        .collect();
    assert_eq!(
        named,
        [
            ("1", "torch.nn.ReLU"),
            ("3", "[\"torch.nn.GELU\"]"),
            ("4", "4")
        ]
    );
    assert_eq!(load(&format!("{}#3", path.display())).unwrap(), tasks[1]);
}

#[test]
fn a_graph_may_be_text_and_must_be_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("graphs.jsonl");
    let text = serde_json::to_string(&graph()).unwrap();
    let line =
        |graph: &str| serde_json::json!({"id": "a", "code": CODE, "graph": graph}).to_string();
    fs_err::write(&path, line(&text)).unwrap();
    assert_eq!(load_all(&path).unwrap()[0].graph, Some(graph()));
    fs_err::write(&path, line("{}")).unwrap();
    let error = load_all(&path).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("graphs.jsonl:1: `graph`: missing field"),
        "{error}"
    );
}

#[cfg(not(feature = "parquet"))]
#[test]
fn without_parquet_the_feature_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set.parquet");
    fs_err::write(&path, "PAR1").unwrap();
    for error in [
        load_all(&path).unwrap_err(),
        write_set(&path, &set()).unwrap_err(),
    ] {
        assert!(error.to_string().contains("Parquet"), "{error}");
        assert!(error.hint().unwrap().contains("--features parquet"));
    }
}

#[cfg(feature = "parquet")]
mod parquet {
    use super::*;

    #[test]
    fn a_set_is_written_as_columns_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("set.parquet");
        write_set(&path, &set()).unwrap();
        assert_loaded(&path);
        write_set(&path, &[]).unwrap();
        assert!(
            load_all(&path)
                .unwrap_err()
                .to_string()
                .contains("holds no task")
        );
    }

    #[test]
    fn what_is_no_parquet_is_said_to_be_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("set.parquet");
        write_set(&path, &set()).unwrap();
        let whole = fs_err::read(&path).unwrap();
        for length in [0, 3, 4, 12, whole.len() / 2, whole.len() - 1] {
            fs_err::write(&path, &whole[..length]).unwrap();
            let error = load_all(&path).unwrap_err();
            assert!(
                error.to_string().contains("failed to read"),
                "{length}: {error}"
            );
        }
    }
}
