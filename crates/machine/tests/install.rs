//! A real installation: needs the network, 6 GB of disk and a minute or two.
//! `WARPSMITH_CACHE=/tmp/somewhere cargo test -p warpsmith-machine --test all install -- --ignored --nocapture`

use std::process::Command;

use warpsmith_machine::{
    Caches, NoProgress, ProgressBars, PythonChoice, ensure_python, find_python,
};

#[test]
#[ignore = "fetches several gigabytes"]
fn our_own_environment_is_made_once() {
    assert!(
        std::env::var_os("WARPSMITH_CACHE").is_some(),
        "set WARPSMITH_CACHE to a folder to throw away"
    );
    let caches = Caches::locate().unwrap();
    let found = find_python(&PythonChoice::Auto, &caches).unwrap();
    assert!(
        found.is_none(),
        "take the Python with torch off the PATH first: {found:?}"
    );
    let python = ensure_python(&PythonChoice::Auto, &caches, &ProgressBars::new(), false).unwrap();
    assert!(python.executable.starts_with(&caches.root) && python.torch.tested());
    let output = Command::new(&python.executable)
        .args([
            "-I",
            "-c",
            "import torch; print((torch.ones(3) + 1).sum().item(), torch.__version__)",
        ])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap().trim(),
        format!("6.0 {}", python.torch.version)
    );
    let again = ensure_python(&PythonChoice::Auto, &caches, &NoProgress, true).unwrap();
    assert_eq!(again, python);
    for entry in caches.entries().unwrap() {
        println!("{} {} bytes {} files", entry.name, entry.bytes, entry.files);
    }
}
