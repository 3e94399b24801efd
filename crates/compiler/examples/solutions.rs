//! Writes the solutions of tasks that have graphs, by every strategy, for `python/check_solutions.py`.
//!
//!     cargo run --release -p warpsmith-compiler --example solutions -- TASKS cpu|cuda FOLDER
//!
//! TASKS is a task set. `FOLDER/TASK/model.py` is the module, `FOLDER/TASK/STRATEGY/` a solution. Prints a line for each task that the
//! compiler does not cover: its id, the operator, the line of its module, and why.
#![allow(clippy::print_stdout, reason = "what it finds is its output")]

use std::error::Error;
use std::path::Path;

use warpsmith_compiler::solutions;
use warpsmith_schema::{Target, Task};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [tasks, target, folder] = arguments.as_slice() else {
        return Err("usage: solutions TASKS cpu|cuda FOLDER".into());
    };
    let target = match target.as_str() {
        "cpu" => Target::Cpu,
        "cuda" => Target::Cuda,
        other => return Err(format!("`{other}` is neither cpu nor cuda").into()),
    };
    let (mut covered, mut all) = (0, 0);
    for line in fs_err::read_to_string(tasks)?.lines() {
        let task: Task = serde_json::from_str(line)?;
        all += 1;
        match solutions(&task, target) {
            Err(reason) => println!(
                "{}  {}  {}  {reason}",
                task.id,
                reason.operator().unwrap_or("-"),
                reason
                    .line()
                    .map_or("-".to_owned(), |line| line.to_string()),
            ),
            Ok(found) => {
                covered += 1;
                let folder = Path::new(folder).join(task.id.replace('/', "-"));
                fs_err::create_dir_all(&folder)?;
                fs_err::write(folder.join("model.py"), &task.source)?;
                for (strategy, files) in found {
                    for (path, content) in files {
                        let path = folder.join(strategy).join(path);
                        if let Some(parent) = path.parent() {
                            fs_err::create_dir_all(parent)?;
                        }
                        fs_err::write(path, content)?;
                    }
                }
            }
        }
    }
    println!("{covered} of {all} covered");
    Ok(())
}
