//! Finding a Python, with stand-ins that answer as one would.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use warpsmith_machine::{
    Caches, MachineError, NoProgress, PythonChoice, ensure_python, find_python,
};

/// A program that answers the inspection like a Python with that torch.
fn stand_in(folder: &Path, torch_version: Option<&str>) -> PathBuf {
    let prefix = folder.join("prefix");
    let torch = prefix.join("lib/site-packages/torch");
    fs_err::create_dir_all(torch.join("lib")).unwrap();
    if let Some(version) = torch_version {
        fs_err::write(
            torch.join("version.py"),
            format!("__version__ = '{version}'\ncuda = '13.0'\n"),
        )
        .unwrap();
    }
    let outside = folder.join("outside");
    fs_err::create_dir_all(&outside).unwrap();
    let bin = folder.join("bin");
    fs_err::create_dir_all(&bin).unwrap();
    let program = bin.join("python3");
    let answer = serde_json::json!({
        "executable": program, "version": "3.12.1", "prefixes": [prefix, prefix],
        "path": [prefix.join("lib"), outside], "include": null, "torch": torch,
    });
    fs_err::write(&program, format!("#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")).unwrap();
    fs_err::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    program
}

fn no_caches(folder: &Path) -> Caches {
    Caches {
        root: folder.join("cache"),
    }
}

#[test]
fn the_given_python_is_taken_whatever_its_torch() {
    let folder = tempfile::tempdir().unwrap();
    let program = stand_in(folder.path(), Some("2.5.0+cu121"));
    let python = find_python(
        &PythonChoice::Given(program.clone()),
        &no_caches(folder.path()),
    )
    .unwrap()
    .unwrap();
    assert_eq!(
        (&python.executable, python.version.as_str()),
        (&program, "3.12.1")
    );
    assert!(!python.torch.tested());
    // Folders inside others are not repeated; those outside are there.
    assert!(python.prefixes.contains(&folder.path().join("prefix")));
    assert!(python.prefixes.contains(&folder.path().join("outside")));
    assert!(!python.prefixes.contains(&folder.path().join("prefix/lib")));
}

#[test]
fn a_given_python_that_will_not_do_is_an_error_with_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    let caches = no_caches(folder.path());
    let without = stand_in(folder.path(), None);
    let error = find_python(&PythonChoice::Given(without), &caches).unwrap_err();
    assert!(matches!(error, MachineError::NoTorch { .. }) && error.hint().is_some());

    let error = find_python(&PythonChoice::Given("/bin/echo".into()), &caches).unwrap_err();
    assert!(matches!(error, MachineError::BadPython { .. }), "{error}");
    let error = find_python(&PythonChoice::Given("/no/such/python".into()), &caches).unwrap_err();
    assert!(matches!(error, MachineError::Start { .. }), "{error}");
}

/// The variables of a process cannot be set safely, so the search of the PATH runs in one of its own.
fn search(path: &Path, given: Option<&Path>) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "python::searches_in_its_own_process",
        "--ignored",
        "--nocapture",
    ]);
    command
        .env("PATH", path)
        .env_remove("WARPSMITH_PYTHON")
        .env("WARPSMITH_CACHE", path.join("cache"));
    if let Some(given) = given {
        command.env("WARPSMITH_PYTHON", given);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .find_map(|line| line.split_once("found ").map(|(_, found)| found.to_owned()))
        .unwrap()
}

#[test]
#[ignore = "started by other tests with variables of their own"]
fn searches_in_its_own_process() {
    let caches = Caches::locate().unwrap();
    let found = find_python(&PythonChoice::Auto, &caches);
    println!(
        "found {:?}",
        found.map(|python| python.map(|python| python.torch.version))
    );
    let ensured = ensure_python(&PythonChoice::Auto, &caches, &NoProgress, true);
    println!("ensured {:?}", ensured.map(|python| python.torch.version));
}

#[test]
fn the_path_gives_only_a_tested_torch_and_the_variable_any() {
    let old = tempfile::tempdir().unwrap();
    let new = tempfile::tempdir().unwrap();
    let old_python = stand_in(old.path(), Some("2.5.0"));
    stand_in(new.path(), Some("2.10.1+cpu"));
    // `cat` is what the stand-ins need of a PATH.
    for folder in [old.path(), new.path()] {
        std::os::unix::fs::symlink("/bin/cat", folder.join("bin/cat")).unwrap();
    }
    let (old_bin, new_bin) = (old.path().join("bin"), new.path().join("bin"));
    assert_eq!(search(&old_bin, None), "Ok(None)");
    let both = PathBuf::from(format!("{}:{}", old_bin.display(), new_bin.display()));
    assert_eq!(search(&both, None), "Ok(Some(\"2.10.1+cpu\"))");
    assert_eq!(search(&new_bin, Some(&old_python)), "Ok(Some(\"2.5.0\"))");
}

#[test]
fn offline_fetches_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "python::searches_in_its_own_process",
            "--ignored",
            "--nocapture",
        ])
        .env("PATH", folder.path())
        .env_remove("WARPSMITH_PYTHON")
        .env("WARPSMITH_CACHE", folder.path().join("cache"))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("ensured Err(Offline)"), "{text}");
    assert!(!folder.path().join("cache").exists());
}
