//! Task sets as data that others load: Parquet files and a card, in the layout of Hugging Face's `datasets`.

use std::fmt::Write;
use std::path::Path;

use crate::TaskError;
use crate::set::{SetSplit, SetTask, write_set};

const CARD: &str = include_str!("dataset/card.md");

/// Writes the folder, which is new or empty, with a file for each side of the set. Tasks without a side are to train on.
pub fn write_dataset(tasks: &[SetTask], names: &[String], folder: &Path) -> Result<(), TaskError> {
    let failed = |source| TaskError::Write {
        path: folder.to_path_buf(),
        source,
    };
    fs_err::create_dir_all(folder.join("data")).map_err(failed)?;
    let mut splits = String::new();
    for split in [SetSplit::Train, SetSplit::Validation] {
        let on_side = |task: &&SetTask| task.split.unwrap_or(SetSplit::Train) == split;
        let side: Vec<SetTask> = tasks.iter().filter(on_side).cloned().collect();
        if side.is_empty() {
            continue;
        }
        let name = split.name();
        let file = format!("data/{name}-00000-of-00001.parquet");
        write_set(&folder.join(file), &side)?;
        let _ = writeln!(splits, "  - split: {name}\n    path: data/{name}-*.parquet");
    }
    let card = CARD
        .replace("{splits}", &splits)
        .replace("{names}", &names.join(", "))
        .replace("{rows}", &tasks.len().to_string());
    fs_err::write(folder.join("README.md"), card).map_err(failed)
}
