use std::collections::BTreeMap;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};
use warpsmith_schema::{MODEL_NEW as MODEL, Submission, SubmissionForm};

use crate::TaskError;
use crate::freeze::{Freezer, Kind, kind};
use crate::imports::names;

const KERNELS: &str = "kernels";
/// Examples carry both: `kernels/` for the CPU and this for CUDA.
const KERNELS_CUDA: &str = "kernels_cuda";
const SOURCE_ENDINGS: [&str; 5] = [".cu", ".cpp", ".cc", ".cxx", ".c"];

/// Freezes a solution, read once: one `.py` file, or a folder with `model_new.py` and `kernels/`. What happens to the
/// folder afterwards no longer matters.
///
/// The import in `model_new.py` decides the form, not what the kernels include: the import is what must work in the
/// end, there is one of it, and a header named in a kernel's comment or hidden behind a macro would mislead. A wrong
/// guess costs only the solution's author: it does not build or does not load. No check is weaker for one form than
/// for another.
pub fn load_solution(path: &Path, target_is_cuda: bool) -> Result<Submission, TaskError> {
    let Ok(found) = fs_err::symlink_metadata(path) else {
        return Err(TaskError::NoSolution {
            path: path.to_path_buf(),
        });
    };
    // A link the user names may lead to a folder, never to a file: whose file that is nobody knows.
    if found.is_dir() || (found.is_symlink() && path.is_dir()) {
        load_folder(path, target_is_cuda)
    } else {
        load_file(path)
    }
}

fn load_file(path: &Path) -> Result<Submission, TaskError> {
    let nothing = || TaskError::NoSolution {
        path: path.to_path_buf(),
    };
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .ok_or_else(nothing)?;
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let folder = openat(
        CWD,
        parent,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|source| TaskError::Read {
        path: path.to_path_buf(),
        source: source.into(),
    })?;
    let mut freezer = Freezer::new(path);
    kind(&folder, name, path)?.ok_or_else(nothing)?;
    if path.extension().is_none_or(|ending| ending != "py") {
        return Err(nothing());
    }
    freezer.take_file(&folder, name, path, MODEL.to_owned())?;
    Ok(Submission {
        form: form(freezer.files()).unwrap_or(SubmissionForm::Inline),
        files: freezer.into_files(),
    })
}

fn load_folder(path: &Path, target_is_cuda: bool) -> Result<Submission, TaskError> {
    let mut freezer = Freezer::new(path);
    let root = freezer.open_root()?;
    let model = path.join(MODEL);
    match kind(&root, MODEL, &model)? {
        Some(Kind::File) => freezer.take_file(&root, MODEL, &model, MODEL.to_owned())?,
        Some(Kind::Folder) => return Err(TaskError::Irregular { path: model }),
        None => {
            return Err(TaskError::NoModel {
                path: path.to_path_buf(),
            });
        }
    }
    let cuda = path.join(KERNELS_CUDA);
    let folder = if target_is_cuda && kind(&root, KERNELS_CUDA, &cuda)? == Some(Kind::Folder) {
        KERNELS_CUDA
    } else {
        KERNELS
    };
    let kernels = path.join(folder);
    match kind(&root, folder, &kernels)? {
        Some(Kind::Folder) => freezer.take_folder(&root, folder, &kernels, KERNELS)?,
        Some(Kind::File) => return Err(TaskError::Irregular { path: kernels }),
        None => {}
    }

    let form = form(freezer.files()).ok_or_else(|| TaskError::NoKernels {
        path: path.to_path_buf(),
        folder,
    })?;
    Ok(Submission {
        form,
        files: freezer.into_files(),
    })
}

/// The form that a solution's files have, by what `model_new.py` imports; `None` where there is nothing to compile.
fn form(files: &BTreeMap<String, Vec<u8>>) -> Option<SubmissionForm> {
    let source = files.get(MODEL).map(|bytes| String::from_utf8_lossy(bytes));
    let names = names(source.as_deref().unwrap_or_default());
    let has_sources = files
        .keys()
        .any(|name| name != MODEL && SOURCE_ENDINGS.iter().any(|ending| name.ends_with(ending)));
    if !has_sources {
        let inline = names.used.contains("load_inline");
        let triton = names.imported.contains("triton");
        return match (inline, triton) {
            (true, _) => Some(SubmissionForm::Inline),
            (false, true) => Some(SubmissionForm::Triton),
            (false, false) => None,
        };
    }
    let plain =
        names.imported.contains("warpsmith_kernels") && !names.imported.contains("cuda_extension");
    Some(if plain {
        SubmissionForm::Plain
    } else {
        SubmissionForm::CudaAgent
    })
}

/// Freezes text files that somebody wrote in a conversation. Where they hold nothing to compile, the judge says so, as of any
/// other submission.
pub fn submission_from_text(files: &BTreeMap<String, String>) -> Submission {
    let files = files
        .iter()
        .map(|(path, text)| (path.clone(), text.clone().into_bytes()))
        .collect();
    Submission {
        form: form(&files).unwrap_or(SubmissionForm::Plain),
        files,
    }
}
