//! Task sets in the public schema and in our own, as JSONL and as Parquet.
#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]
#![allow(clippy::print_stderr, reason = "what is skipped is said")]

use std::collections::BTreeMap;
use std::path::Path;

use warpsmith_schema::{Dtype, GraphValue, OpGraph, ValueSource};
use warpsmith_tasks::{Portion, SetTask, load, load_all, write_set};

const CODE: &str = "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x # é\n";

fn graph() -> OpGraph {
    let value = |from| GraphValue {
        shape: vec![4],
        dtype: Dtype::Float32,
        from,
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
    }
}

fn set() -> Vec<SetTask> {
    let task = |id: &str, ops: &[&str]| SetTask {
        id: id.into(),
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
            split: Some(Portion::Train),
            ..task("b-two", &["torch.nn.ReLU", "torch.sum"])
        },
        task("a-none", &[]),
        SetTask {
            split: Some(Portion::Validation),
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
    use std::process::{Command, Output};

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

    /// A Python that has pyarrow: `WARPSMITH_PYARROW`, else `python3`.
    fn pyarrow() -> Option<String> {
        let python = std::env::var("WARPSMITH_PYARROW").unwrap_or_else(|_| "python3".into());
        let found = Command::new(&python)
            .args(["-c", "import pyarrow.parquet"])
            .output();
        if found.is_ok_and(|output| output.status.success()) {
            return Some(python);
        }
        eprintln!("skipped: `{python}` has no pyarrow; name one that has in `WARPSMITH_PYARROW`");
        None
    }

    fn run(python: &str, script: &str, path: &Path) -> Output {
        let output = Command::new(python)
            .args(["-c", script])
            .arg(path)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        output
    }

    #[test]
    fn pyarrow_reads_what_we_write() {
        let Some(python) = pyarrow() else { return };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("set.parquet");
        write_set(&path, &set()).unwrap();
        let output = run(
            &python,
            "import json, sys, pyarrow.parquet as pq\n\
             table = pq.read_table(sys.argv[1])\n\
             print(json.dumps({'types': {field.name: str(field.type) for field in table.schema}, 'rows': table.to_pylist()}))",
            &path,
        );
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            found["types"],
            serde_json::json!({
                "id": "string", "ops": "list<element: string not null>", "data_source": "string", "code": "string",
                "graph": "string", "eager_us": "double", "split": "string",
            })
        );
        let mut rows: Vec<serde_json::Value> = found["rows"].as_array().unwrap().clone();
        for row in &mut rows {
            if let Some(text) = row["graph"].as_str() {
                row["graph"] = serde_json::from_str(text).unwrap();
            }
        }
        let rows: Vec<SetTask> = rows
            .into_iter()
            .map(|row| serde_json::from_value(row).unwrap())
            .collect();
        assert_eq!(rows, set());
    }

    const WRITE: &str = "import sys, pyarrow as pa, pyarrow.parquet as pq\n\
        code = 'class Model:\\n    def forward(self, x):\\n        return x\\n'\n\
        count = 3000\n\
        table = pa.table({\n\
        'ops': pa.array([['torch.nn.ReLU', 'torch.sum'][:1 + i % 2] for i in range(count)], pa.list_(pa.string())),\n\
        'data_source': ['torch#%d' % (1 + i % 2) for i in range(count)],\n\
        'code': [code + '# %d\\n' % (i % 7) for i in range(count)],\n\
        'unknown': list(range(count))})\n";

    #[test]
    fn we_read_what_pyarrow_writes() {
        let Some(python) = pyarrow() else { return };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("public.parquet");
        for options in [
            "compression='snappy'",
            "compression='none'",
            "compression='snappy', use_dictionary=False",
            "compression='snappy', data_page_version='2.0'",
            "compression='snappy', row_group_size=100, version='1.0'",
            "compression='snappy', use_dictionary=False, column_encoding={'code': 'DELTA_LENGTH_BYTE_ARRAY'}",
        ] {
            run(
                &python,
                &format!("{WRITE}pq.write_table(table, sys.argv[1], {options})"),
                &path,
            );
            let tasks = load_all(&path).unwrap();
            assert_eq!(tasks.len(), 3000, "{options}");
            let task = load(&format!("{}#1002", path.display())).unwrap();
            assert_eq!(task.name, "torch.nn.ReLU torch.sum", "{options}");
            assert!(task.source.ends_with("# 0\n"), "{options}: {}", task.source);
        }
        // KernelBench as its authors publish it
        run(
            &python,
            "import sys, pyarrow as pa, pyarrow.parquet as pq\n\
             pq.write_table(pa.table({'code': ['class Model: pass'] * 2, 'level': [1, 1], 'name': ['19_ReLU', '20_LeakyReLU'], \
             'problem_id': [19, 20]}), sys.argv[1])",
            &path,
        );
        let ids: Vec<String> = load_all(&path)
            .unwrap()
            .into_iter()
            .map(|task| task.id)
            .collect();
        assert_eq!(ids, ["level1/19", "level1/20"]);
        // What this build cannot unpack is named.
        run(
            &python,
            &format!("{WRITE}pq.write_table(table, sys.argv[1], compression='zstd')"),
            &path,
        );
        let error = load_all(&path).unwrap_err();
        assert!(error.to_string().to_lowercase().contains("zstd"), "{error}");
        assert!(error.hint().unwrap().contains("snappy"));
    }
}
