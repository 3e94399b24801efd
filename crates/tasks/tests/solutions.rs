//! Freezing solutions, honest and hostile.

use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;
use warpsmith_schema::{Submission, SubmissionForm};
use warpsmith_tasks::{TaskError, load_solution};

const AGENT: &str =
    "import torch\nimport cuda_extension as ext\n\nclass ModelNew(torch.nn.Module):\n    pass\n";
const PLAIN: &str = "\"\"\"Not cuda_extension.\"\"\"\nfrom warpsmith_kernels import launch\n";
const INLINE: &str =
    "from torch.utils.cpp_extension import load_inline\nm = load_inline('m', '')\n";

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = folder.path().join(name);
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        fs_err::write(path, content).unwrap();
    }
    folder
}

fn names(solution: &Submission) -> Vec<&str> {
    solution.files.keys().map(String::as_str).collect()
}

fn refused(path: &Path) -> TaskError {
    let error = load_solution(path, false).unwrap_err();
    assert!(error.hint().is_some(), "{error} has no hint");
    error
}

#[test]
fn only_the_model_and_the_kernels_are_taken() {
    let folder = folder(&[
        ("model_new.py", AGENT),
        ("model.py", "the task"),
        ("sitecustomize.py", "evil"),
        ("kernels/a.cu", "A"),
        ("kernels/include/deep/b.h", "B"),
        ("kernels_cuda/c.cu", "C"),
        ("build/x.so", "X"),
    ]);
    let solution = load_solution(folder.path(), false).unwrap();
    assert_eq!(
        names(&solution),
        ["kernels/a.cu", "kernels/include/deep/b.h", "model_new.py"]
    );
    assert_eq!(
        (solution.form, &solution.files["kernels/a.cu"][..]),
        (SubmissionForm::CudaAgent, &b"A"[..])
    );

    let cuda = load_solution(folder.path(), true).unwrap();
    assert_eq!(names(&cuda), ["kernels/c.cu", "model_new.py"]);
    assert_ne!(solution.content_hash(), cuda.content_hash());
    assert_eq!(
        solution.content_hash(),
        load_solution(folder.path(), false).unwrap().content_hash()
    );
}

#[test]
fn the_import_decides_the_form() {
    let form = |model: &str, kernel: &str| {
        let folder = folder(&[("model_new.py", model), ("kernels/k.cpp", kernel)]);
        load_solution(folder.path(), false).unwrap().form
    };
    assert_eq!(
        form(PLAIN, "extern \"C\" void f() {}"),
        SubmissionForm::Plain
    );
    assert_eq!(
        form(PLAIN, "// #include <torch/extension.h>"),
        SubmissionForm::Plain
    );
    assert_eq!(form(AGENT, ""), SubmissionForm::CudaAgent);
    assert_eq!(
        form(&format!("# import warpsmith_kernels\n{AGENT}"), ""),
        SubmissionForm::CudaAgent
    );
    assert_eq!(form("import torch", ""), SubmissionForm::CudaAgent);

    let alone = folder(&[("model_new.py", INLINE), ("other.py", INLINE)]);
    assert_eq!(
        load_solution(alone.path(), false).unwrap().form,
        SubmissionForm::Inline
    );
    let file = load_solution(&alone.path().join("other.py"), true).unwrap();
    assert_eq!(
        (file.form, names(&file)),
        (SubmissionForm::Inline, vec!["model_new.py"])
    );
}

#[test]
fn triton_kernels_are_a_form_of_their_own_without_other_sources() {
    let triton =
        "import triton\nimport triton.language as tl\n\n@triton.jit\ndef k(x):\n    return\n";
    let form = |files: &[(&str, &str)]| load_solution(folder(files).path(), true).unwrap().form;
    assert_eq!(form(&[("model_new.py", triton)]), SubmissionForm::Triton);
    let alone = folder(&[("solution.py", triton)]);
    let file = load_solution(&alone.path().join("solution.py"), true).unwrap();
    assert_eq!(file.form, SubmissionForm::Triton);
    // Who wants something built says so.
    let both = format!("{triton}{INLINE}");
    assert_eq!(form(&[("model_new.py", &both)]), SubmissionForm::Inline);
    let beside = [("model_new.py", triton), ("kernels/k.cu", "")];
    assert_eq!(form(&beside), SubmissionForm::CudaAgent);
    let mentioned = folder(&[("model_new.py", "s = 'import triton'")]);
    assert!(matches!(
        refused(mentioned.path()),
        TaskError::NoKernels { .. }
    ));
}

#[test]
fn what_is_missing_is_said() {
    let empty = folder(&[("kernels/a.cu", "A")]);
    assert!(matches!(refused(empty.path()), TaskError::NoModel { .. }));
    assert!(matches!(
        refused(&empty.path().join("nowhere")),
        TaskError::NoSolution { .. }
    ));
    assert!(matches!(
        refused(&empty.path().join("kernels/a.cu")),
        TaskError::NoSolution { .. }
    ));
    for files in [
        &[("model_new.py", AGENT)][..],
        &[("model_new.py", AGENT), ("kernels/only.h", "")],
    ] {
        assert!(matches!(
            refused(folder(files).path()),
            TaskError::NoKernels { .. }
        ));
    }
    let mentioned = folder(&[("model_new.py", "s = 'load_inline'")]);
    assert!(matches!(
        refused(mentioned.path()),
        TaskError::NoKernels { .. }
    ));
}

#[test]
fn links_are_refused_wherever_they_lead() {
    let secret = folder(&[
        ("secret.txt", "secret"),
        ("kernels/a.cu", "A"),
        ("model_new.py", AGENT),
    ]);
    let make = |link: &str, target: &str| {
        let folder = folder(&[("model_new.py", AGENT), ("kernels/a.cu", "A")]);
        let place = folder.path().join(link);
        let _ = fs_err::remove_file(&place);
        let _ = fs_err::remove_dir_all(&place);
        symlink(secret.path().join(target), &place).unwrap();
        folder
    };
    for (link, target) in [
        ("kernels/b.cu", "secret.txt"),
        ("kernels/sub", "kernels"),
        ("kernels", "kernels"),
        ("model_new.py", "model_new.py"),
        ("kernels/dangling.cu", "nowhere"),
    ] {
        let folder = make(link, target);
        let error = refused(folder.path());
        assert!(
            matches!(&error, TaskError::Link { path } if path.ends_with(link)),
            "{link}: {error}"
        );
    }
    let inline = make("inline.py", "model_new.py");
    assert!(matches!(
        refused(&inline.path().join("inline.py")),
        TaskError::Link { .. }
    ));

    // The folder itself the user named, as in `runs/latest`.
    symlink(secret.path(), inline.path().join("latest")).unwrap();
    assert_eq!(
        load_solution(&inline.path().join("latest"), false)
            .unwrap()
            .form,
        SubmissionForm::CudaAgent
    );
}

#[test]
fn a_pipe_neither_blocks_nor_passes() {
    for place in ["kernels/pipe.cu", "model_new.py", "inline.py"] {
        let folder = folder(&[("kernels/a.cu", "A"), ("model_new.py", AGENT)]);
        let path = folder.path().join(place);
        let _ = fs_err::remove_file(&path);
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
        let loaded = if place == "inline.py" {
            path
        } else {
            folder.path().to_path_buf()
        };
        assert!(
            matches!(refused(&loaded), TaskError::Irregular { .. }),
            "{place}"
        );
    }
}

#[test]
fn names_that_could_be_taken_for_something_else_are_refused() {
    for name in [
        "-fplugin=x.cpp",
        "a b.cu",
        "a;id.cu",
        "naïve.cu",
        "line\nbreak.cu",
    ] {
        let folder = folder(&[("model_new.py", AGENT), ("kernels/a.cu", "A")]);
        fs_err::write(folder.path().join("kernels").join(name), "").unwrap();
        assert!(
            matches!(refused(folder.path()), TaskError::Name { .. }),
            "{name}"
        );
    }
}

#[test]
fn limits_hold() {
    let full = "x".repeat(2 << 20);
    let big = folder(&[
        ("model_new.py", AGENT),
        ("kernels/a.cu", &format!("{full}x")),
    ]);
    assert!(matches!(
        refused(big.path()),
        TaskError::FileTooLarge { .. }
    ));

    let most = folder(&[("model_new.py", AGENT), ("kernels/a.cu", &full)]);
    assert!(load_solution(most.path(), false).is_ok());
    for index in 0..8 {
        fs_err::write(most.path().join(format!("kernels/b{index}.cu")), &full).unwrap();
    }
    assert!(refused(most.path()).to_string().contains("bytes in all"));

    let many = folder(&[("model_new.py", AGENT), ("kernels/a.cu", "A")]);
    for index in 0..255 {
        fs_err::write(many.path().join(format!("kernels/n{index}.h")), "").unwrap();
    }
    assert!(
        refused(many.path())
            .to_string()
            .contains("more than 256 files")
    );

    let deep = folder(&[("model_new.py", AGENT), ("kernels/1/2/3/4/5/6/7/a.cu", "A")]);
    assert!(load_solution(deep.path(), false).is_ok());
    fs_err::create_dir_all(deep.path().join("kernels/1/2/3/4/5/6/7/8")).unwrap();
    assert!(refused(deep.path()).to_string().contains("deep"));
}
