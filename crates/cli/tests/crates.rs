//! The crate table in the documentation says what the workspace is, and what the workspace is built of is built once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const TABLE: &str = include_str!("../../../docs/concepts/crates.md");

/// Each crate's folder, and what the table lets it use; `None` is everything.
fn table() -> BTreeMap<String, Option<BTreeSet<String>>> {
    TABLE
        .lines()
        .filter_map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let name = cells.get(1)?.strip_prefix('`')?.strip_suffix('`')?;
            let uses = match *cells.get(3)? {
                "all" => None,
                "-" => Some(BTreeSet::new()),
                list => Some(list.split(',').map(|one| one.trim().to_owned()).collect()),
            };
            Some((name.to_owned(), uses))
        })
        .collect()
}

/// Each crate's folder, and the folders of the workspace's crates that it depends on.
fn workspace() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let folder = |path: &str| {
        let path = Path::new(path);
        path.file_name().unwrap().to_string_lossy().into_owned()
    };
    let packages = metadata["packages"].as_array().unwrap();
    packages
        .iter()
        .map(|package| {
            let manifest = Path::new(package["manifest_path"].as_str().unwrap());
            let uses = package["dependencies"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(|dependency| dependency["path"].as_str())
                .map(folder)
                .collect();
            (folder(&manifest.parent().unwrap().to_string_lossy()), uses)
        })
        .collect()
}

#[test]
fn the_table_names_every_crate_and_allows_every_edge() {
    let (table, workspace) = (table(), workspace());
    let names = |keys: Vec<&String>| keys.into_iter().cloned().collect::<Vec<_>>();
    assert_eq!(
        names(table.keys().collect()),
        names(workspace.keys().collect()),
        "docs/concepts/crates.md and crates/ disagree"
    );
    for (name, uses) in &workspace {
        if let Some(allowed) = &table[name] {
            let extra: Vec<&String> = uses.difference(allowed).collect();
            assert!(
                extra.is_empty(),
                "`{name}` uses {extra:?}, which docs/concepts/crates.md does not allow"
            );
        }
    }
}

#[test]
fn an_edge_points_at_a_crate_of_the_table() {
    let table = table();
    for (name, uses) in &table {
        for used in uses.iter().flatten() {
            assert!(
                table.contains_key(used),
                "`{name}` may use `{used}`, which is no crate"
            );
        }
    }
}

/// Packages with their features, as `cargo tree` has them.
fn built(more: &[&str]) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "--prefix", "none"])
        .args(["--format", "{p} {f}"])
        .args(more)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| line.trim_end_matches(" (*)").to_owned())
        .collect()
}

/// One more feature of one small crate, and nearly all is compiled a second time for the tests.
#[test]
fn a_build_and_the_tests_have_every_package_with_the_same_features() {
    let binary = built(&["--edges", "normal,build"]);
    let workspace = built(&["--workspace", "--edges", "normal,build,dev"]);
    let twice: Vec<&String> = binary.difference(&workspace).collect();
    assert!(
        twice.is_empty(),
        "built a second time, with other features, where the workspace is tested: {twice:#?}; \
         name the features that it has there in the root's Cargo.toml"
    );
}
