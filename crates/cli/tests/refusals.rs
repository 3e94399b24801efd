//! Bad input is refused before anything is fetched, built or run.

use crate::common::{Context, code, json};
use crate::snapshot;

fn shown(arguments: &[&str]) -> String {
    let context = Context::new();
    context.shown(&context.bare(arguments).output().unwrap())
}

#[test]
fn a_missing_task_is_refused_before_anything_is_fetched() {
    snapshot!(shown(&["judge", "nowhere/model.py", "nowhere"]), @"
    exit_code: 2
    ----- stdout -----
    ----- stderr -----
    error: there is no task at `nowhere/model.py`
    hint: a task is a `.py` file, a folder with `model.py`, or `FILE.jsonl#level1/19`; `warpsmith new NAME` makes one
    ");
    snapshot!(shown(&["judge", "nowhere/model.py", "nowhere", "--json"]), @r#"
    exit_code: 2
    ----- stdout -----
    {
      "format": 1,
      "failure": {
        "kind": "config",
        "code": "no_task",
        "message": "there is no task at `nowhere/model.py`",
        "hint": "a task is a `.py` file, a folder with `model.py`, or `FILE.jsonl#level1/19`; `warpsmith new NAME` makes one"
      }
    }
    ----- stderr -----
    error: there is no task at `nowhere/model.py`
    hint: a task is a `.py` file, a folder with `model.py`, or `FILE.jsonl#level1/19`; `warpsmith new NAME` makes one
    "#);
}

#[test]
fn a_folder_that_is_no_solution_is_refused() {
    let context = Context::new();
    context.write("task/model.py", "class Model: pass");
    context.write("empty/notes.txt", "");
    context.write("half/model_new.py", "import torch");
    let run = |arguments: &[&str]| context.shown(&context.bare(arguments).output().unwrap());
    snapshot!(run(&["judge", "task", "empty"]), @"
    exit_code: 2
    ----- stdout -----
    ----- stderr -----
    error: the solution `empty` has no `model_new.py`
    hint: a solution is a folder with `model_new.py` and `kernels/`, or one `.py` file with an inline extension
    ");
    snapshot!(run(&["judge", "task", "half"]), @"
    exit_code: 2
    ----- stdout -----
    ----- stderr -----
    error: the solution `half` has no source in `kernels/`
    hint: put the kernels there as `.cu` or `.cpp`, or use `load_inline` in `model_new.py`
    ");
    snapshot!(run(&["judge", "task"]), @"
    exit_code: 2
    ----- stdout -----
    ----- stderr -----
    error: `task` has no `model_new.py` beside it, and no solution was given
    hint: say `warpsmith judge TASK SOLUTION`
    ");
    snapshot!(run(&["judge", "softmax", "nowhere"]), @"
    exit_code: 2
    ----- stdout -----
    ----- stderr -----
    error: there is no solution at `nowhere`
    hint: a solution is a folder with `model_new.py` and `kernels/`, or one `.py` file with an inline extension
    ");
}

#[test]
fn an_unknown_example_is_refused_and_the_known_are_listed() {
    let context = Context::new();
    let output = context
        .bare(&["judge", "--list-examples", "--json"])
        .output()
        .unwrap();
    let list = json(&output);
    let names: Vec<&str> = list["examples"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert!(
        names.contains(&"softmax") && names.contains(&"inline_form"),
        "{names:?}"
    );

    let output = context
        .bare(&["judge", "--example", "sofmax"])
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(code(&output), 2);
    assert!(
        stderr.starts_with("error: there is no example `sofmax`\nhint: the examples are argmax,"),
        "{stderr}"
    );
}

#[test]
fn a_python_that_is_not_there_is_the_users_to_mend() {
    snapshot!(shown(&["judge", "--python", "/nowhere/python"]), @"
    exit_code: 2
    ----- stdout -----
    ----- stderr -----
    error: failed to start `/nowhere/python`: No such file or directory (os error 2)
    hint: `--python` or `WARPSMITH_PYTHON` names it; leave it out to have one found
    ");
}

#[test]
fn evidence_that_is_none_is_refused() {
    let context = Context::new();
    context.write("folder/notes.txt", "");
    snapshot!(context.shown(&context.bare(&["replay", "folder"]).output().unwrap()), @"
    exit_code: 2
    ----- stdout -----
    ----- stderr -----
    error: `folder` is not a bundle: it has no `manifest.json`
    hint: give the folder that a verdict names under `evidence`
    ");
}

#[test]
fn an_out_folder_that_exists_is_refused_before_the_work() {
    let context = Context::new();
    context.write("out/notes.txt", "");
    snapshot!(context.shown(&context.bare(&["judge", "--out", "out"]).output().unwrap()), @"
    exit_code: 2
    ----- stdout -----
    ----- stderr -----
    error: `out` already exists
    hint: give a folder that does not exist yet
    ");
}

#[test]
fn new_writes_a_folder_once() {
    let context = Context::new();
    let run = |arguments: &[&str]| context.shown(&context.bare(arguments).output().unwrap());
    snapshot!(run(&["new", "gate"]), @"
    exit_code: 0
    ----- stdout -----
    gate/model.py
    gate/model_new.py
    gate/kernels/gate.cpp
    gate/kernels_cuda/gate.cu
    gate/README.md
    ----- stderr -----
    hint: `warpsmith judge gate` judges it as it is; then change it
    ");
    snapshot!(run(&["new", "gate"]), @"
    exit_code: 2
    ----- stdout -----
    ----- stderr -----
    error: `gate` already exists
    hint: choose another name, or remove it
    ");
    snapshot!(run(&["new", "2fast"]), @"
    exit_code: 2
    ----- stdout -----
    ----- stderr -----
    error: `2fast` cannot be the name of a kernel
    hint: use letters, digits and `_`, with a letter first
    ");
    let readme = fs_err::read_to_string(context.path("gate/README.md")).unwrap();
    assert!(readme.contains("warpsmith judge gate"), "{readme}");
}
