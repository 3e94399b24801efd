//! Writes what the teacher has for the tasks of a JSONL: `teach TASKS cpu|cuda FOLDER`, a folder for each task with one for
//! each strategy in it, and `not_covered.jsonl` with the others and why.

use std::io::Write;
use std::path::Path;

use serde_json::json;
use warpsmith_compiler::solutions;
use warpsmith_schema::Target;
use warpsmith_tasks::load_all;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [tasks, target, folder] = arguments.as_slice() else {
        return Err("usage: teach TASKS cpu|cuda FOLDER".into());
    };
    let target = match target.as_str() {
        "cpu" => Target::Cpu,
        "cuda" => Target::Cuda,
        other => return Err(format!("there is no target `{other}`").into()),
    };
    let folder = Path::new(folder);
    fs_err::create_dir_all(folder)?;
    let mut left_out = fs_err::File::create(folder.join("not_covered.jsonl"))?;
    for task in load_all(Path::new(tasks))? {
        let place = folder.join(task.id.replace('/', "-"));
        match solutions(&task, target) {
            Ok(written) => {
                for (strategy, files) in written {
                    for (path, text) in files {
                        let path = place.join(strategy).join(path);
                        if let Some(parent) = path.parent() {
                            fs_err::create_dir_all(parent)?;
                        }
                        fs_err::write(path, text)?;
                    }
                }
                fs_err::write(place.join("model.py"), &task.source)?;
            }
            Err(why) => writeln!(
                left_out,
                "{}",
                json!({ "task": task.id, "why": why.to_string() })
            )?,
        }
    }
    Ok(())
}
