//! The pages as a book: every page is listed, every link and every file that a page names is there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs_err::canonicalize(root).unwrap()
}

fn markdown_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs_err::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            markdown_below(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

fn pages() -> Vec<PathBuf> {
    let root = root();
    let mut found = Vec::new();
    for folder in ["docs", "examples", "exploits"] {
        markdown_below(&root.join(folder), &mut found);
    }
    for page in [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
    ] {
        found.push(root.join(page));
    }
    found.sort();
    found
}

/// The text without fenced blocks, whose brackets are no links and whose hashes are no headings.
fn prose(page: &Path) -> String {
    let text = fs_err::read_to_string(page).unwrap();
    let mut fenced = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            prose.push_str(line);
        }
        prose.push('\n');
    }
    prose
}

/// Targets of `[text](target)`.
fn links(prose: &str) -> Vec<&str> {
    let behind = prose.split("](").skip(1);
    behind.filter_map(|rest| rest.split(')').next()).collect()
}

/// What a heading is called in an address: as GitHub and mdBook do.
fn anchor(heading: &str) -> String {
    let lower = heading.trim().to_lowercase();
    let kept = lower.chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        other => other.is_alphanumeric().then_some(other),
    });
    kept.collect()
}

/// A heading that stands twice gets a number behind it.
fn anchors(prose: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let anchor = anchor(line.trim_start_matches('#'));
            let times = seen.entry(anchor.clone()).or_default();
            *times += 1;
            match *times {
                1 => anchor,
                more => format!("{anchor}-{}", more - 1),
            }
        })
        .collect()
}

fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

#[test]
fn every_link_and_anchor_resolves() {
    let mut broken = Vec::new();
    for page in pages() {
        let prose = prose(&page);
        for link in links(&prose) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.clone(),
                file => normal(&page.parent().unwrap().join(file)),
            };
            let there = target.exists()
                && (anchor.is_empty() || anchors(&self::prose(&target)).contains(anchor));
            if !there {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(
        broken.is_empty(),
        "links that lead nowhere:\n{}",
        broken.join("\n")
    );
}

#[test]
fn every_page_is_in_the_summary_once() {
    let docs = root().join("docs");
    let summary = prose(&docs.join("SUMMARY.md"));
    let mut listed: Vec<PathBuf> = links(&summary).iter().map(|link| docs.join(link)).collect();
    listed.sort();
    let mut there = Vec::new();
    markdown_below(&docs, &mut there);
    there.retain(|page| !page.ends_with("SUMMARY.md"));
    there.sort();
    assert_eq!(
        listed, there,
        "docs/SUMMARY.md and the pages below docs/ differ"
    );
}

/// Code spans that begin with a folder of this repository are paths.
#[test]
fn every_file_that_a_page_names_is_there() {
    let root = root();
    let mut missing = Vec::new();
    for page in pages() {
        if page.ends_with("CHANGELOG.md") {
            continue;
        }
        let prose = prose(&page);
        for span in prose.split('`').skip(1).step_by(2) {
            let ours = [
                "crates/",
                "scripts/",
                "configs/",
                "docs/",
                "exploits/",
                "sets/",
            ];
            let plain = !span.contains(|letter: char| " *{<$…".contains(letter))
                && !span.chars().any(char::is_uppercase);
            if plain && ours.iter().any(|folder| span.starts_with(folder)) {
                let path = span.split([':', '#']).next().unwrap();
                if !root.join(path).exists() {
                    missing.push(format!("{}: {span}", page.display()));
                }
            }
        }
    }
    assert!(
        missing.is_empty(),
        "named but not there:\n{}",
        missing.join("\n")
    );
}

/// Its paths are relative to `crates/`; a name without a folder is in the folder of the name before it.
#[test]
fn every_file_of_the_architecture_page_is_there() {
    let crates = root().join("crates");
    let page = prose(&root().join("docs/concepts/architecture.md"));
    let (mut missing, mut named) = (Vec::new(), 0);
    for section in page.split("\n## ") {
        let mut folders = vec![
            crates.join("kernels/src/training/gpu"),
            crates.join("kernels/cuda"),
        ];
        for span in section.split('`').skip(1).step_by(2) {
            let file = [".rs", ".cu", ".py", ".cpp"]
                .iter()
                .any(|end| span.ends_with(end));
            if !file || span.contains(' ') {
                if span.ends_with('/') {
                    folders.push(crates.join(span));
                }
                continue;
            }
            named += 1;
            if let Some((folder, _)) = span.rsplit_once('/') {
                folders.push(crates.join(folder));
                if !crates.join(span).exists() {
                    missing.push(span);
                }
            } else if !folders.iter().any(|folder| folder.join(span).exists()) {
                missing.push(span);
            }
        }
    }
    assert!(named > 100, "only {named} files were found on the page");
    assert_eq!(missing, Vec::<&str>::new(), "named but not there");
}

#[test]
fn anchors_are_made_as_github_makes_them() {
    assert_eq!(
        anchor(" `--scale` and what it's for"),
        "--scale-and-what-its-for"
    );
    let found = anchors("# A b\n## A b\n");
    assert_eq!(found, BTreeSet::from(["a-b".into(), "a-b-1".into()]));
}
