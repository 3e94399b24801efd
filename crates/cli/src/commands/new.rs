//! `warpsmith new`

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use warpsmith_schema::FORMAT;

use crate::examples;
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;

/// Make a task folder to start from
#[derive(Debug, Args)]
pub(crate) struct NewArgs {
    /// Name of the folder and of its kernel: letters, digits and `_`
    name: PathBuf,
}

/// What the new task is made from.
const TEMPLATE: &str = "pointwise_chain";

const MODEL_HEADER: &str = "# The task: what is to be computed. `Model` is the reference, `get_inputs` draws its arguments and\n\
    # `get_init_inputs` gives those of its constructor. Outputs must be deterministic and depend on the inputs.\n";

const SOLUTION_HEADER: &str = "# The solution: the same parameters as `Model`, and a `forward` that only allocates and calls kernels.\n\
    # `kernels.NAME(...)` calls the `extern \"C\"` function NAME from the sources: tensors arrive as pointers, integers\n\
    # as int64_t, floats as double, and last of all comes the stream.\n";

pub(crate) fn run(args: &NewArgs, printer: &Printer) -> Result<Exit, Stop> {
    let folder = &args.name;
    let name = folder
        .file_name()
        .and_then(|name| name.to_str())
        .filter(|name| is_identifier(name))
        .ok_or_else(|| {
            Stop::config(
                "bad_name",
                format!("`{}` cannot be the name of a kernel", folder.display()),
                Some("use letters, digits and `_`, with a letter first".to_owned()),
            )
        })?;
    if folder.symlink_metadata().is_ok() {
        return Err(Stop::config(
            "exists",
            format!("`{}` already exists", folder.display()),
            Some("choose another name, or remove it".to_owned()),
        ));
    }
    let files = files(name)?;
    for (path, content) in &files {
        write(&folder.join(path), content)?;
    }
    let command = format!("warpsmith judge {}", folder.display());
    if printer.json() {
        let names: Vec<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
        printer.object(
            &json!({ "format": FORMAT, "folder": folder, "files": names, "next": command }),
        )?;
    } else {
        let lines: Vec<String> = files
            .iter()
            .map(|(path, _)| folder.join(path).display().to_string())
            .collect();
        printer.lines(&lines)?;
        printer.note(&format!(
            "hint: `{command}` judges it as it is; then change it"
        ));
    }
    Ok(Exit::DONE)
}

fn files(name: &str) -> Result<Vec<(String, String)>, Stop> {
    let template = |path: &str| -> Result<String, Stop> {
        let file = format!("{TEMPLATE}/{path}");
        let content = examples::file(&file).ok_or_else(|| {
            Stop::config(
                "no_example",
                format!("this binary was built without `{file}`"),
                None,
            )
        })?;
        Ok(String::from_utf8_lossy(content).replace(TEMPLATE, name))
    };
    Ok(vec![
        (
            "model.py".to_owned(),
            format!("{MODEL_HEADER}{}", template("model.py")?),
        ),
        (
            "model_new.py".to_owned(),
            format!("{SOLUTION_HEADER}{}", template("model_new.py")?),
        ),
        (
            format!("kernels/{name}.cpp"),
            template(&format!("kernels/{TEMPLATE}.cpp"))?,
        ),
        (
            format!("kernels_cuda/{name}.cu"),
            template(&format!("kernels_cuda/{TEMPLATE}.cu"))?,
        ),
        ("README.md".to_owned(), readme(name)),
    ])
}

fn readme(name: &str) -> String {
    format!(
        "# {name}\n\n\
         | file | what it is |\n|---|---|\n\
         | `model.py` | the task, in KernelBench form |\n\
         | `model_new.py` | the solution: calls the kernels |\n\
         | `kernels/{name}.cpp` | the kernel for the CPU |\n\
         | `kernels_cuda/{name}.cu` | the kernel for a GPU; used instead of `kernels/` where the target is cuda |\n\n\
         Judge it, from the folder above this one:\n\n    warpsmith judge {name}\n\n\
         A kernel is an `extern \"C\"` function that returns 0, or an error code. Its arguments are those of the call in\n\
         `model_new.py`, then the stream (null on the CPU).\n"
    )
}

fn is_identifier(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn write(path: &Path, content: &str) -> Result<(), Stop> {
    if let Some(folder) = path.parent() {
        fs_err::create_dir_all(folder)?;
    }
    Ok(fs_err::write(path, content)?)
}
