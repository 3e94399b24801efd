//! Modules as people write them, at odd extents: each is captured, covered on both targets, and its kernels compute what it does.

use std::path::Path;
use std::process::Command;

use warpsmith_compiler::solutions;
use warpsmith_machine::Caches;
use warpsmith_schema::{Target, Task};
use warpsmith_tasks::capture_missing;

use super::python;

const PYTHON: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../compiler/python");
/// Whole blocks of networks.
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/modules");

fn modules(folder: &Path) -> Vec<Task> {
    let made = Command::new(python().executable)
        .arg(Path::new(PYTHON).join("modules.py"))
        .arg(folder)
        .status()
        .unwrap();
    assert!(made.success());
    tasks_in(folder)
}

fn tasks_in(folder: &Path) -> Vec<Task> {
    let files = fs_err::read_dir(folder).unwrap();
    let read = |file: std::io::Result<fs_err::DirEntry>| {
        let path = file.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        Task {
            id: name.clone(),
            name,
            source: fs_err::read_to_string(path).unwrap(),
            level: None,
            problem_id: None,
            origin: "test".to_owned(),
            graph: None,
        }
    };
    files.map(read).collect()
}

#[test]
fn what_people_write_is_covered_and_right() {
    let folder = tempfile::tempdir().unwrap();
    let caches = Caches {
        root: folder.path().join("caches"),
    };
    let mut tasks = modules(&folder.path().join("modules"));
    assert!(tasks.len() > 50);
    let blocks = tasks_in(Path::new(EXAMPLES));
    assert!(blocks.len() >= 6);
    tasks.extend(blocks);
    let captures = capture_missing(&tasks, &python(), &caches);
    for (task, graph) in tasks.iter_mut().zip(captures) {
        task.graph = Some(
            graph
                .unwrap()
                .unwrap_or_else(|error| panic!("{}: {error}", task.id)),
        );
    }
    for (target, place) in [(Target::Cpu, "cpu"), (Target::Cuda, "cuda")] {
        let place = folder.path().join(place);
        for task in &tasks {
            let found = solutions(task, target);
            let found = found.unwrap_or_else(|error| panic!("{}: {error}", task.id));
            let place = place.join(&task.id);
            for (strategy, files) in found {
                for (path, text) in files {
                    let path = place.join(strategy).join(path);
                    fs_err::create_dir_all(path.parent().unwrap()).unwrap();
                    fs_err::write(path, text).unwrap();
                }
            }
            fs_err::write(place.join("model.py"), &task.source).unwrap();
        }
        let check = Command::new(python().executable)
            .arg(Path::new(PYTHON).join("check_solutions.py"))
            .arg(&place)
            .args(["--only", "tuned"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&check.stdout);
        let failed = String::from_utf8_lossy(&check.stderr);
        assert!(check.status.success(), "{target:?}: {said}\n{failed}");
        assert!(said.contains(&format!("{} right", tasks.len())), "{said}");
    }
}
