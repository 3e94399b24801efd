//! Runs as data that others load: one Parquet file and a card, in the layout of Hugging Face's `datasets`.

use std::path::Path;

use warpsmith_schema::Trajectory;
#[cfg(feature = "parquet")]
use warpsmith_schema::{Attempt, Message};

use crate::{ReportError, Run};

/// Where the rows lie, which is also what the card says.
const ROWS: &str = "data/train-00000-of-00001.parquet";
const CARD: &str = include_str!("export/card.md");

/// Writes the folder and says how many rows it has. The folder is new or empty.
pub fn write(runs: &[Run], folder: &Path) -> Result<usize, ReportError> {
    let rows: Vec<&Trajectory> = runs.iter().flat_map(|run| &run.trajectories).collect();
    let failed = |source: std::io::Error| ReportError::Export {
        folder: folder.to_path_buf(),
        source,
    };
    fs_err::create_dir_all(folder.join("data")).map_err(failed)?;
    parquet::write(&folder.join(ROWS), &rows).map_err(failed)?;
    let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    let card = CARD
        .replace("{runs}", &names.join(", "))
        .replace("{rows}", &rows.len().to_string());
    fs_err::write(folder.join("README.md"), card).map_err(failed)?;
    Ok(rows.len())
}

/// The attempt that counts, else the last.
#[cfg(feature = "parquet")]
fn counted(trajectory: &Trajectory) -> Option<&Attempt> {
    let best = trajectory.best.map(|best| best as usize);
    let best = best.and_then(|best| trajectory.attempts.get(best));
    best.or(trajectory.attempts.last())
}

#[cfg(feature = "parquet")]
fn role(message: &Message) -> &'static str {
    match message {
        Message::System { .. } => "system",
        Message::User { .. } => "user",
        Message::Assistant { .. } => "assistant",
        Message::Tool { .. } => "tool",
    }
}

#[cfg(not(feature = "parquet"))]
mod parquet {
    use std::io;
    use std::path::Path;

    use warpsmith_schema::Trajectory;

    pub(super) fn write(_path: &Path, _rows: &[&Trajectory]) -> io::Result<()> {
        let message = "this build cannot write Parquet: build it with the feature `parquet`";
        Err(io::Error::other(message))
    }
}

#[cfg(feature = "parquet")]
mod parquet {
    use std::io;
    use std::path::Path;
    use std::sync::Arc;

    use parquet::basic::Compression;
    use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
    use parquet::errors::ParquetError;
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
    use parquet::schema::parser::parse_message_type;
    use serde::Serialize;
    use warpsmith_schema::{Reward, Trajectory};

    use super::{counted, role};

    const SCHEMA: &str = "message trajectory {
        required binary id (UTF8);
        required binary task (UTF8);
        required binary source (UTF8);
        required binary policy (UTF8);
        required int64 sample;
        required binary ending (UTF8);
        required group messages (LIST) { repeated group list { required group element {
            required binary role (UTF8);
            required binary content (UTF8);
        } } }
        optional binary code (UTF8);
        optional binary status (UTF8);
        optional double robust;
        optional double raw;
        optional double composite;
        optional double ladder;
        optional binary verdict (UTF8);
        optional binary tokens (UTF8);
        required int64 prompt_tokens;
        required int64 completion_tokens;
    }";

    type Group<'a> = SerializedRowGroupWriter<'a, std::fs::File>;

    pub(super) fn write(path: &Path, rows: &[&Trajectory]) -> io::Result<()> {
        let file = fs_err::File::create(path)?.into_parts().0;
        write_to(file, rows).map_err(io::Error::other)
    }

    fn write_to(file: std::fs::File, rows: &[&Trajectory]) -> Result<(), ParquetError> {
        let schema = Arc::new(parse_message_type(SCHEMA)?);
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .build();
        let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties))?;
        let mut group = writer.next_row_group()?;
        let mut texts = |of: &dyn Fn(&Trajectory) -> String| {
            let values: Vec<ByteArray> = rows.iter().map(|row| text(&of(row))).collect();
            column::<ByteArrayType>(&mut group, &values, None, None)
        };
        texts(&|row| row.id.clone())?;
        texts(&|row| row.task.id.clone())?;
        texts(&|row| row.task.source.clone())?;
        texts(&|row| row.policy.name.clone())?;
        numbers(&mut group, rows, |row| i64::from(row.sample))?;
        let endings: Result<Vec<String>, _> = rows.iter().map(|row| kind(&row.ending)).collect();
        let endings: Vec<ByteArray> = endings?.iter().map(|ending| text(ending)).collect();
        column::<ByteArrayType>(&mut group, &endings, None, None)?;
        messages(&mut group, rows)?;
        documents(&mut group, rows, |row| counted(row).map(|one| &one.files))?;
        let status = |row: &&Trajectory| counted(row).map(|one| text(one.verdict.status.name()));
        optional::<ByteArrayType>(&mut group, rows.iter().map(status).collect())?;
        let rewards: [fn(&Reward) -> f64; 4] = [
            |one| one.robust,
            |one| one.raw.0,
            |one| one.composite.0,
            |one| one.ladder,
        ];
        for of in rewards {
            let all = rows.iter();
            let all = all.map(|row| counted(row).map(|one| of(&one.verdict.reward)));
            optional::<DoubleType>(&mut group, all.collect())?;
        }
        documents(&mut group, rows, |row| counted(row).map(|one| &one.verdict))?;
        documents(&mut group, rows, |row| row.tokens.as_ref())?;
        numbers(&mut group, rows, |row| row.usage.prompt_tokens as i64)?;
        numbers(&mut group, rows, |row| row.usage.completion_tokens as i64)?;
        group.close()?;
        writer.close()?;
        Ok(())
    }

    fn text(text: &str) -> ByteArray {
        ByteArray::from(text.as_bytes().to_vec())
    }

    fn json(value: &impl Serialize) -> Result<String, ParquetError> {
        serde_json::to_string(value).map_err(|error| ParquetError::General(error.to_string()))
    }

    /// What an ending calls itself.
    fn kind(ending: &impl Serialize) -> Result<String, ParquetError> {
        let found = serde_json::to_value(ending);
        let found = found.map_err(|error| ParquetError::General(error.to_string()))?;
        Ok(found["kind"].as_str().unwrap_or_default().to_owned())
    }

    fn column<T: DataType>(
        group: &mut Group<'_>,
        values: &[T::T],
        definitions: Option<&[i16]>,
        repetitions: Option<&[i16]>,
    ) -> Result<(), ParquetError> {
        let Some(mut column) = group.next_column()? else {
            return Err(ParquetError::General("more columns than the schema".into()));
        };
        column
            .typed::<T>()
            .write_batch(values, definitions, repetitions)?;
        column.close()
    }

    fn numbers(
        group: &mut Group<'_>,
        rows: &[&Trajectory],
        of: fn(&Trajectory) -> i64,
    ) -> Result<(), ParquetError> {
        let values: Vec<i64> = rows.iter().map(|row| of(row)).collect();
        column::<Int64Type>(group, &values, None, None)
    }

    fn optional<T: DataType>(
        group: &mut Group<'_>,
        values: Vec<Option<T::T>>,
    ) -> Result<(), ParquetError> {
        let there = values.iter().map(|value| i16::from(value.is_some()));
        let definitions: Vec<i16> = there.collect();
        let values: Vec<T::T> = values.into_iter().flatten().collect();
        column::<T>(group, &values, Some(&definitions), None)
    }

    /// What has a structure of its own, as JSON.
    fn documents<D: Serialize>(
        group: &mut Group<'_>,
        rows: &[&Trajectory],
        of: impl Fn(&Trajectory) -> Option<&D>,
    ) -> Result<(), ParquetError> {
        let values = rows.iter().map(|row| match of(row) {
            Some(found) => json(found).map(|found| Some(text(&found))),
            None => Ok(None),
        });
        optional::<ByteArrayType>(group, values.collect::<Result<_, _>>()?)
    }

    /// A conversation's first message begins a row (repetition 0); an empty one is one absent entry (definition 0).
    fn messages(group: &mut Group<'_>, rows: &[&Trajectory]) -> Result<(), ParquetError> {
        let (mut definitions, mut repetitions) = (Vec::new(), Vec::new());
        let (mut roles, mut contents) = (Vec::new(), Vec::new());
        for row in rows {
            if row.messages.is_empty() {
                definitions.push(0);
                repetitions.push(0);
            }
            for (place, message) in row.messages.iter().enumerate() {
                definitions.push(1);
                repetitions.push(i16::from(place > 0));
                roles.push(text(role(message)));
                contents.push(text(message.text()));
            }
        }
        for values in [roles, contents] {
            column::<ByteArrayType>(group, &values, Some(&definitions), Some(&repetitions))?;
        }
        Ok(())
    }
}
