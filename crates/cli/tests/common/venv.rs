//! Python environments with packages from `PyPI`, made once and kept in the cache folder.

use std::path::PathBuf;
use std::process::Command;

use warpsmith_machine::Caches;

/// The interpreter of an environment of that name, with what pip installs given these arguments.
pub(crate) fn python_with(name: &str, pip: &[&str]) -> PathBuf {
    let folder = Caches::locate().unwrap().root.join("tests").join(name);
    let python = folder.join("bin/python");
    let whole = folder.join("whole");
    fs_err::create_dir_all(&folder).unwrap();
    // Tests run side by side; one makes it, the others wait.
    let lock = fs_err::File::create(folder.join("lock")).unwrap();
    lock.file().lock().unwrap();
    if !whole.exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&folder));
        run(Command::new(&python)
            .args(["-m", "pip", "install", "--quiet"])
            .args(pip));
        fs_err::write(whole, "").unwrap();
    }
    python
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "this test needs python3 with venv, and packages from PyPI: {command:?} failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
