//! Sets as Parquet, the format of public sets.

#[cfg(not(feature = "parquet"))]
pub(crate) use absent::{read, write};
#[cfg(feature = "parquet")]
pub(crate) use present::{read, write};

#[cfg(not(feature = "parquet"))]
mod absent {
    use std::path::Path;

    use crate::TaskError;
    use crate::set::{SetRow, SetTask};

    pub(crate) fn read(path: &Path) -> Result<Vec<(usize, SetRow)>, TaskError> {
        Err(unknown(path))
    }

    pub(crate) fn write(
        path: &Path,
        _file: fs_err::File,
        _tasks: &[SetTask],
    ) -> Result<(), TaskError> {
        Err(unknown(path))
    }

    fn unknown(path: &Path) -> TaskError {
        TaskError::NoParquet {
            path: path.to_path_buf(),
        }
    }
}

#[cfg(feature = "parquet")]
mod present {
    use std::path::Path;
    use std::sync::Arc;

    use parquet::basic::Compression;
    use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int32Type};
    use parquet::errors::ParquetError;
    use parquet::file::properties::WriterProperties;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
    use parquet::record::Field;
    use parquet::schema::parser::parse_message_type;

    use crate::TaskError;
    use crate::set::{GraphColumn, OpsColumn, SetRow, SetTask, broken_line};

    const SCHEMA: &str = "message task {
        required binary id (UTF8);
        required group ops (LIST) { repeated group list { required binary element (UTF8); } }
        required binary data_source (UTF8);
        required binary code (UTF8);
        optional binary graph (UTF8);
        optional double eager_us;
        optional binary split (UTF8);
        optional binary name (UTF8);
        optional int32 level;
        optional int32 problem_id;
    }";

    /// Rows with their numbers, which count from one.
    pub(crate) fn read(path: &Path) -> Result<Vec<(usize, SetRow)>, TaskError> {
        let file = fs_err::File::open(path).map_err(|source| TaskError::Read {
            path: path.to_path_buf(),
            source,
        })?;
        let failed = |error: ParquetError| TaskError::BrokenParquet {
            path: path.to_path_buf(),
            reason: error.to_string(),
        };
        let reader = SerializedFileReader::new(file.into_parts().0).map_err(failed)?;
        let mut rows = Vec::new();
        for (index, found) in reader.get_row_iter(None).map_err(failed)?.enumerate() {
            let found = found.map_err(failed)?;
            let mut row = SetRow::default();
            for (name, field) in found.get_column_iter() {
                take(&mut row, name, field)
                    .map_err(|reason| broken_line(path, index + 1, reason))?;
            }
            rows.push((index + 1, row));
        }
        Ok(rows)
    }

    fn take(row: &mut SetRow, column: &str, field: &Field) -> Result<(), String> {
        let text = || match field {
            Field::Null => Ok(None),
            Field::Str(text) => Ok(Some(text.clone())),
            Field::Bytes(bytes) => match std::str::from_utf8(bytes.data()) {
                Ok(text) => Ok(Some(text.to_owned())),
                Err(_) => Err(format!("`{column}` is no text")),
            },
            other => Err(format!("`{column}` is no text but {other}")),
        };
        let number = || match *field {
            Field::Null => Ok(None),
            Field::Int(number) => Ok(u32::try_from(number).ok()),
            Field::Long(number) => Ok(u32::try_from(number).ok()),
            Field::UInt(number) => Ok(Some(number)),
            Field::ULong(number) => Ok(u32::try_from(number).ok()),
            _ => Err(format!("`{column}` is no whole number")),
        };
        match column {
            "id" => row.id = text()?,
            "name" => row.name = text()?,
            "code" => row.code = text()?.unwrap_or_default(),
            "graph" => row.graph = text()?.map(GraphColumn::Text),
            "data_source" => row.data_source = text()?,
            "split" => row.split = text()?,
            "eager_us" => {
                row.eager_us = match field {
                    Field::Double(time) => Some(*time),
                    _ => None,
                }
            }
            "level" => row.level = number()?,
            "problem_id" => row.problem_id = number()?,
            "ops" => {
                row.ops = match field {
                    Field::ListInternal(list) => {
                        let names = list.elements().iter().filter_map(|element| match element {
                            Field::Str(name) => Some(name.clone()),
                            _ => None,
                        });
                        Some(OpsColumn::Several(names.collect()))
                    }
                    _ => text()?.map(OpsColumn::One),
                }
            }
            // Other columns are ignored.
            _ => {}
        }
        Ok(())
    }

    /// Writes to `file`, which still has a temporary name; `path` is for messages.
    pub(crate) fn write(
        path: &Path,
        file: fs_err::File,
        tasks: &[SetTask],
    ) -> Result<(), TaskError> {
        write_to(file.into_parts().0, tasks).map_err(|error| TaskError::Write {
            path: path.to_path_buf(),
            source: std::io::Error::other(error),
        })
    }

    fn write_to(file: std::fs::File, tasks: &[SetTask]) -> Result<(), ParquetError> {
        let schema = Arc::new(parse_message_type(SCHEMA)?);
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .build();
        let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties))?;
        let mut group = writer.next_row_group()?;
        let text = |text: &str| ByteArray::from(text.as_bytes().to_vec());
        let all = |of: fn(&SetTask) -> &str| -> Vec<ByteArray> {
            tasks.iter().map(|task| text(of(task))).collect()
        };

        required(&mut group, &all(|task| &task.id))?;
        operators(&mut group, tasks)?;
        required(&mut group, &all(|task| &task.data_source))?;
        required(&mut group, &all(|task| &task.code))?;
        let graphs = tasks.iter().map(|task| match &task.graph {
            Some(graph) => serde_json::to_string(graph)
                .map(|graph| Some(text(&graph)))
                .map_err(|error| ParquetError::General(error.to_string())),
            None => Ok(None),
        });
        let graphs: Vec<_> = graphs.collect::<Result<_, _>>()?;
        optional::<ByteArrayType>(&mut group, graphs)?;
        optional::<DoubleType>(&mut group, tasks.iter().map(|task| task.eager_us).collect())?;
        let portions = tasks
            .iter()
            .map(|task| task.split.map(|split| text(split.name())));
        optional::<ByteArrayType>(&mut group, portions.collect())?;
        let names = tasks.iter().map(|task| task.name.as_deref().map(text));
        optional::<ByteArrayType>(&mut group, names.collect())?;
        let numbers: [fn(&SetTask) -> Option<u32>; 2] = [|task| task.level, |task| task.problem_id];
        for number in numbers {
            let all = tasks.iter().map(|task| i32::try_from(number(task)?).ok());
            optional::<Int32Type>(&mut group, all.collect())?;
        }
        group.close()?;
        writer.close()?;
        Ok(())
    }

    type Group<'a> = SerializedRowGroupWriter<'a, std::fs::File>;

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

    fn required(group: &mut Group<'_>, values: &[ByteArray]) -> Result<(), ParquetError> {
        column::<ByteArrayType>(group, values, None, None)
    }

    fn optional<T: DataType>(
        group: &mut Group<'_>,
        values: Vec<Option<T::T>>,
    ) -> Result<(), ParquetError> {
        let definitions: Vec<i16> = values
            .iter()
            .map(|value| i16::from(value.is_some()))
            .collect();
        let values: Vec<T::T> = values.into_iter().flatten().collect();
        column::<T>(group, &values, Some(&definitions), None)
    }

    /// A list's first element begins a row (repetition 0); an empty list is one absent entry (definition 0).
    fn operators(group: &mut Group<'_>, tasks: &[SetTask]) -> Result<(), ParquetError> {
        let mut values = Vec::new();
        let mut definitions = Vec::new();
        let mut repetitions = Vec::new();
        for task in tasks {
            if task.ops.is_empty() {
                definitions.push(0);
                repetitions.push(0);
            }
            for (position, name) in task.ops.iter().enumerate() {
                values.push(ByteArray::from(name.as_bytes().to_vec()));
                definitions.push(1);
                repetitions.push(i16::from(position > 0));
            }
        }
        column::<ByteArrayType>(group, &values, Some(&definitions), Some(&repetitions))
    }
}
