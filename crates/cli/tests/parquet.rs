//! Sets that pyarrow wrote, and ours read by it.
#![cfg(feature = "parquet")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::venv::python_with;
use warpsmith_schema::{Dtype, GraphValue, OpGraph, ValueSource};
use warpsmith_tasks::{SetSplit, SetTask, load, load_all, write_set};

const PYARROW: &str = "pyarrow==26.0.1";

fn set() -> Vec<SetTask> {
    let task = |id: &str, ops: &[&str]| SetTask {
        id: id.into(),
        name: None,
        level: None,
        problem_id: None,
        ops: ops.iter().map(|&op| op.to_owned()).collect(),
        data_source: format!("torch#{}", ops.len()),
        code: format!("class Model: pass # é {id}\n"),
        graph: None,
        eager_us: None,
        split: None,
    };
    let applied = ValueSource::Applied {
        op: "relu".into(),
        inputs: vec![Some(0), None],
        arguments: BTreeMap::new(),
        result: 0,
    };
    let values = [ValueSource::Input { position: 0 }, applied].map(|from| GraphValue {
        shape: vec![4],
        dtype: Dtype::Float32,
        from,
        line: None,
    });
    vec![
        SetTask {
            graph: Some(OpGraph {
                values: values.into(),
                returns: vec![1],
                nesting: None,
            }),
            eager_us: Some(1250.5),
            split: Some(SetSplit::Train),
            ..task("two", &["torch.nn.ReLU", "torch.sum"])
        },
        task("none", &[]),
        SetTask {
            split: Some(SetSplit::Validation),
            ..task("one", &["torch.nn.LeakyReLU"])
        },
    ]
}

fn run(script: &str, path: &Path) -> Output {
    let output = Command::new(python_with(PYARROW, &[PYARROW]))
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
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set.parquet");
    write_set(&path, &set()).unwrap();
    let output = run(
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
            "graph": "string", "eager_us": "double", "split": "string", "name": "string", "level": "int32", "problem_id": "int32",
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
        &format!("{WRITE}pq.write_table(table, sys.argv[1], compression='zstd')"),
        &path,
    );
    let error = load_all(&path).unwrap_err();
    assert!(error.to_string().to_lowercase().contains("zstd"), "{error}");
    assert!(error.hint().unwrap().contains("snappy"));
}

/// Published collections as their authors write them, and what `sft` learns of each row.
#[cfg(feature = "local-models")]
#[test]
fn rows_of_collections_become_trajectories() {
    use warpsmith_schema::Message;
    use warpsmith_train::data::{Columns, TrainingData};

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kernels.parquet");
    run(
        "import sys, pyarrow as pa, pyarrow.parquet as pq\n\
         turns = [{'role': 'system', 'content': 's'}, {'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'a'}]\n\
         pq.write_table(pa.table({'messages': [turns, turns[:2], None], 'question': ['q1', 'q2', None], 'answer': ['a1', '', 'a3'],\n\
         'python_code': ['class Model: pass', 'class Model: 1', None], 'triton_code': ['class ModelNew: ```', 'class ModelNew: 2', 'x'],\n\
         'number': [1, 2, 3]}), sys.argv[1])",
        &path,
    );
    let read = |columns: &str| {
        let columns: Columns = columns.parse().unwrap();
        let found = TrainingData::read(std::slice::from_ref(&path), &columns, &|_| None);
        found.map(|data| data.trajectories)
    };
    let said = |trajectory: &warpsmith_schema::Trajectory| match trajectory.messages.last() {
        Some(Message::Assistant { text, .. }) => text.clone(),
        other => panic!("{other:?}"),
    };
    let conversations = read("messages=messages").unwrap();
    assert_eq!(conversations.len(), 1);
    assert_eq!(conversations[0].messages.len(), 3);
    assert_eq!(said(&conversations[0]), "a");
    let texts = read("prompt=question,reply=answer").unwrap();
    assert_eq!(texts.iter().map(said).collect::<Vec<_>>(), ["a1"]);
    let modules = read("source=python_code,code=triton_code").unwrap();
    assert_eq!(modules.len(), 2);
    assert_eq!(modules[1].task.source, "class Model: 1");
    // What is learnt is what counts as a solution, also where the code has a fence in it.
    for (module, code) in modules
        .iter()
        .zip(["class ModelNew: ```\n", "class ModelNew: 2\n"])
    {
        let files = warpsmith_agent::read_files(&said(module)).unwrap();
        assert_eq!(files["model_new.py"], code);
        assert!(module.messages.len() > 1 && module.id != modules[0].id || module == &modules[0]);
    }
    for (columns, why) in [
        (
            "messages=chat",
            "there is no column `chat`; there are messages, question,",
        ),
        ("messages=answer", "row 1: the conversation is no list"),
        ("prompt=number,reply=answer", "row 1: `number` is no text"),
    ] {
        let error = read(columns).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

/// KernelBench's level 2, 76, in words of one's own, as a module, in a prompt, and as a reply; and a module of none.
#[cfg(feature = "local-models")]
#[test]
fn rows_that_hold_a_benchmark_task_are_left_out_and_counted() {
    use warpsmith_decontaminate::FingerprintIndex;
    use warpsmith_train::data::{Columns, TrainingData};

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kernels.parquet");
    run(
        "import sys, pyarrow as pa, pyarrow.parquet as pq\n\
         known = 'import torch\\nfrom torch import nn\\n\\nclass Layer(nn.Module):\\n    def __init__(self, width, out, shape):\\n        super().__init__()\\n\
         \x20       self.linear = nn.Linear(width, out, bias=False)\\n        self.shift = nn.Parameter(torch.randn(shape))\\n\
         \x20   def forward(self, x):\\n        return torch.relu(self.linear(x) + self.shift)\\n\\ndef get_inputs():\\n    return [torch.rand(64, 128)]\\n'\n\
         own = 'import torch\\n\\nclass Model(torch.nn.Module):\\n    def forward(self, x, y):\\n        return torch.tanh(x * y).cumsum(1) - torch.atan(y)\\n'\n\
         fence = lambda text: 'Make it fast:\\n```python\\n' + text + '```\\n'\n\
         pq.write_table(pa.table({'source': [known, own, own, own], 'code': ['x', known, 'x', 'y'],\n\
         'prompt': [fence(known), 'q', fence(own), 'q'], 'reply': ['a', fence(known), 'a', 'a'],\n\
         'messages': [[{'role': 'user', 'content': fence(one)}, {'role': 'assistant', 'content': 'a'}] for one in (known, own, own, known)]}), sys.argv[1])",
        &path,
    );
    let benchmark = FingerprintIndex::kernelbench().unwrap();
    let held = |text: &str| Some(benchmark.held_by(text)?.id);
    let places = std::slice::from_ref(&path);
    for columns in [
        "source=source,code=code",
        "prompt=prompt,reply=reply",
        "messages=messages",
    ] {
        let columns: Columns = columns.parse().unwrap();
        let found = TrainingData::read(places, &columns, &held).unwrap();
        assert_eq!(found.trajectories.len(), 2, "{columns}");
        assert_eq!(found.benchmark, ["level2/76", "level2/76"], "{columns}");
        let all = TrainingData::read(places, &columns, &|_| None).unwrap();
        assert_eq!(all.trajectories.len(), 4, "{columns}");
    }
    let columns = Columns::default();
    let error = TrainingData::read(places, &columns, &|_| Some("level1/1".into())).unwrap_err();
    assert!(error.to_string().contains("all 4 rows"), "{error}");
    assert!(error.hint().unwrap().contains("--no-decontaminate"));
}
