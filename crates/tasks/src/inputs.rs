//! Inputs of a user's own, and several shapes of them.

use std::process::Command;

use warpsmith_machine::Python;
use warpsmith_schema::Task;

use crate::TaskError;

const VARIANTS: &str = "get_inputs_variants";

/// The task with the definitions of another file behind its own: a later `get_inputs` counts.
pub fn with_inputs(task: &Task, path: &std::path::Path) -> Result<Task, TaskError> {
    let text = crate::kernelbench::read_source(path)?;
    if !defines(&text, "get_inputs") && !defines(&text, VARIANTS) {
        return Err(TaskError::NoInputs {
            path: path.to_path_buf(),
        });
    }
    Ok(Task {
        source: format!("{}\n\n\n{text}", task.source.trim_end()),
        // It describes other shapes.
        graph: None,
        ..task.clone()
    })
}

/// What a module's text calls the inputs of further shapes, in a task of one of them.
const FURTHER: &str = "further_inputs";

/// The task with `get_inputs()` alone, and one for each of the inputs that `get_inputs_variants()` returns.
pub fn variants(task: Task, python: &Python) -> Result<Vec<Task>, TaskError> {
    if !defines(&task.source, VARIANTS) {
        return Ok(vec![task]);
    }
    let further = count(&task, python)?;
    let source = format!(
        "{}\n\n\n{FURTHER} = {VARIANTS}\ndel {VARIANTS}\n",
        task.source.trim_end()
    );
    let mut all = vec![Task {
        source: source.clone(),
        graph: None,
        ..task
    }];
    for number in 0..further {
        let task = &all[0];
        all.push(Task {
            id: format!("{}-shape{}", task.id, number + 2),
            source: format!("{source}\n\ndef get_inputs():\n    return {FURTHER}()[{number}]\n"),
            ..task.clone()
        });
    }
    Ok(all)
}

fn defines(source: &str, name: &str) -> bool {
    let start = format!("def {name}(");
    source.lines().any(|line| line.starts_with(&start))
}

/// Tasks are trusted: their own code says how many there are.
fn count(task: &Task, python: &Python) -> Result<usize, TaskError> {
    const SCRIPT: &str = "import sys\nspace = {'__name__': 'model'}\nexec(sys.stdin.read(), space)\nprint('\\n', len(space['get_inputs_variants']()))";
    let unusable = |why: String| TaskError::NoVariants { why };
    let mut process = Command::new(&python.executable)
        .args(["-B", "-c", SCRIPT])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .map_err(|error| unusable(error.to_string()))?;
    if let Some(mut stdin) = process.stdin.take() {
        let written = std::io::Write::write_all(&mut stdin, task.source.as_bytes());
        written.map_err(|error| unusable(error.to_string()))?;
    }
    let output = process.wait_with_output();
    let output = output.map_err(|error| unusable(error.to_string()))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let last = printed.lines().next_back().unwrap_or_default().trim();
    match last.parse() {
        Ok(count) if output.status.success() => Ok(count),
        _ => {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.trim().lines().next_back().unwrap_or_default();
            Err(unusable(last.to_owned()))
        }
    }
}
