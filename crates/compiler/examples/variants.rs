//! Writes every variant of the tuned solutions of tasks that differs in one decision, to be compiled or compared elsewhere.
//!
//!     cargo run --release -p warpsmith-compiler --example variants -- TASKS cpu|cuda FOLDER
//!
//! `FOLDER/TASK/NUMBER/` is a solution, and `FOLDER/TASK/changes.txt` says what each decides. The usual one is 0.
#![allow(clippy::print_stdout, reason = "what it finds is its output")]

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;

use warpsmith_compiler::{CompileOptions, SolutionFiles, Strategy, compile_with};
use warpsmith_schema::{Target, Task};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [tasks, target, folder] = arguments.as_slice() else {
        return Err("usage: variants TASKS cpu|cuda FOLDER".into());
    };
    let target = match target.as_str() {
        "cpu" => Target::Cpu,
        "cuda" => Target::Cuda,
        other => return Err(format!("`{other}` is neither cpu nor cuda").into()),
    };
    let (mut count, mut all) = (0, 0);
    for line in fs_err::read_to_string(tasks)?.lines() {
        let task: Task = serde_json::from_str(line)?;
        let usual = CompileOptions::from(Strategy::Tuned);
        let Ok(solution) = compile_with(&task, target, &usual) else {
            continue;
        };
        all += 1;
        let mut variants = vec![("usual".to_owned(), solution.files)];
        for knob in &solution.knobs {
            for choice in &knob.choices {
                let mut options = usual.clone();
                options.config.insert(knob.name.clone(), choice.clone());
                let changed = compile_with(&task, target, &options)?.files;
                if variants.iter().all(|(_, known)| *known != changed) {
                    let change = format!("{} {} -> {choice}", knob.name, knob.value);
                    variants.push((change, changed));
                }
            }
        }
        count += variants.len();
        write(
            &Path::new(folder).join(task.id.replace('/', "-")),
            &variants,
        )?;
    }
    println!("{count} solutions of {all} tasks");
    Ok(())
}

fn write(folder: &Path, variants: &[(String, SolutionFiles)]) -> Result<(), Box<dyn Error>> {
    let mut changes = String::new();
    for (number, (change, files)) in variants.iter().enumerate() {
        let _ = writeln!(changes, "{number}  {change}");
        for (path, content) in files {
            let path = folder.join(number.to_string()).join(path);
            if let Some(parent) = path.parent() {
                fs_err::create_dir_all(parent)?;
            }
            fs_err::write(path, content)?;
        }
    }
    Ok(fs_err::write(folder.join("changes.txt"), changes)?)
}
