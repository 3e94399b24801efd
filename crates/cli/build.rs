//! Embeds `examples/` of the workspace, so that an installed binary works from any folder.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Only sources: what an editor or Python leaves behind is not part of an example.
const ENDINGS: [&str; 6] = ["py", "cpp", "cu", "h", "cuh", "md"];

fn main() -> io::Result<()> {
    let manifest = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let root = fs::canonicalize(manifest.join("../../examples"))?;
    let mut files = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        // A folder's time changes when a file is added or removed.
        say_input(&folder)?;
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let source = path.extension().and_then(|ending| ending.to_str());
            if path.is_dir() {
                folders.push(path);
            } else if source.is_some_and(|ending| ENDINGS.contains(&ending)) {
                files.push(path);
            }
        }
    }
    files.sort();
    let mut list = "static FILES: &[(&str, &[u8])] = &[\n".to_owned();
    for file in files {
        say_input(&file)?;
        let name = file
            .strip_prefix(&root)
            .map_err(io::Error::other)?
            .to_string_lossy()
            .into_owned();
        let content = file.to_string_lossy();
        writeln!(list, "    ({name:?}, include_bytes!({content:?})),").map_err(io::Error::other)?;
    }
    list.push_str("];\n");
    fs::write(
        PathBuf::from(variable("OUT_DIR")?).join("examples.rs"),
        list,
    )
}

fn variable(name: &str) -> io::Result<String> {
    env::var(name).map_err(io::Error::other)
}

/// Cargo reads build scripts' stdout.
fn say_input(path: &Path) -> io::Result<()> {
    io::Write::write_all(
        &mut io::stdout(),
        format!("cargo::rerun-if-changed={}\n", path.display()).as_bytes(),
    )
}
