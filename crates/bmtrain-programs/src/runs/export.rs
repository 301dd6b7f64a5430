//! The scalars of a run for other programs.
//!
//! Defines [`export`] and [`ExportFormat`]. All formats have every record, without those that a resume overtook.

use super::directory::RunDirectory;
use crate::{Error, Result};
use model_center_base::file::AtomicFile;
use model_center_formats::io::delimited::csv_field;
use model_center_recipe::run::LineReader;
use model_center_recipe::run::{
    RECIPE_FILE, TENSORBOARD_DIRECTORY,
    tensorboard::{EventLog, scalars},
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;

/// A format of exported runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportFormat {
    /// A row for each record, a column for each tag.
    Csv,
    /// A directory of TensorBoard's event files.
    Tensorboard,
    /// The table of CSV in Apache Parquet, with the feature `parquet`.
    Parquet,
}

/// Writes the scalars of a run to `output`: a file, or for TensorBoard a directory. Nothing is overwritten.
///
/// # Errors
/// [`Error::Argument`] if the output exists, or if the format is not part of this build; [`Error::File`] if something
/// cannot be read or written.
pub fn export(run: &RunDirectory, format: ExportFormat, output: &Path) -> Result<()> {
    if output.symlink_metadata().is_ok() {
        let reason = format!("{} exists, and nothing is overwritten", output.display());
        return Err(Error::argument("--output", reason, "name another file"));
    }
    match format {
        ExportFormat::Csv => {
            let file = AtomicFile::create(output)?;
            let mut out = BufWriter::new(file.file());
            let written = write_csv(run, &mut out)?.and_then(|()| out.flush());
            drop(out);
            written.map_err(|e| file.refused(e))?;
            file.commit()
        }
        ExportFormat::Tensorboard => write_events(run, output),
        ExportFormat::Parquet => write_parquet(run, output),
    }
}

/// Writes a run as CSV. The outer error is of reading, the inner one of writing.
///
/// # Errors
/// As [`LineReader::open`].
pub fn write_csv(run: &RunDirectory, out: &mut dyn Write) -> Result<std::io::Result<()>> {
    let tags = tags(run)?;
    let header = ["kind", "step"].into_iter().chain(tags.iter().map(String::as_str)).map(csv_field);
    let mut line = header.collect::<Vec<_>>().join(",");
    let mut reader = LineReader::open(&run.metrics)?;
    loop {
        line.push('\n');
        if let Err(error) = out.write_all(line.as_bytes()) {
            return Ok(Err(error));
        }
        let Some(row) = next_row(&mut reader)? else { return Ok(Ok(())) };
        let values = tags.iter().map(|tag| row.values.get(tag).map(|value| format!("{value:?}")).unwrap_or_default());
        line = [row.kind.clone(), row.step.to_string()].into_iter().chain(values).collect::<Vec<_>>().join(",");
    }
}

/// A record with scalars.
struct Row {
    kind: String,
    step: u64,
    values: BTreeMap<String, f64>,
}

fn next_row(reader: &mut LineReader) -> Result<Option<Row>> {
    while let Some(record) = reader.advance()? {
        let values: BTreeMap<String, f64> = scalars(&record).into_iter().map(|each| (each.tag, each.value)).collect();
        if !values.is_empty() {
            let kind = record.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
            return Ok(Some(Row { kind, step: record.get("step").and_then(Value::as_u64).unwrap_or(0), values }));
        }
    }
    Ok(None)
}

/// Every tag of the run, in order.
fn tags(run: &RunDirectory) -> Result<Vec<String>> {
    let mut reader = LineReader::open(&run.metrics)?;
    let mut tags = std::collections::BTreeSet::new();
    while let Some(row) = next_row(&mut reader)? {
        for tag in row.values.into_keys() {
            tags.insert(tag);
        }
    }
    Ok(tags.into_iter().collect())
}

fn write_events(run: &RunDirectory, output: &Path) -> Result<()> {
    let mut reader = LineReader::open(&run.metrics)?;
    let text = model_center_base::file::read_text(&run.path.join(RECIPE_FILE), 1 << 20).unwrap_or_default();
    let table: toml::Table = toml::from_str(&text).unwrap_or_default();
    let settings: Vec<(String, toml::Value)> = model_center_recipe::flat(&table).into_iter().collect();
    let directory = output.join(TENSORBOARD_DIRECTORY);
    let (mut log, mut begun) = (None, 0.0);
    while let Some(record) = reader.advance()? {
        let time = |name: &str| record.get("time").and_then(|time| time.get(name)).and_then(Value::as_f64);
        begun = time("unix_seconds").unwrap_or(begun);
        let log = match &mut log {
            Some(log) => log,
            none => none.insert(EventLog::create(&directory, begun, &settings, &text)?),
        };
        // What a resume overtook is left out: there is nothing for TensorBoard to drop.
        if !scalars(&record).is_empty() {
            log.record(begun + time("seconds").unwrap_or(0.0), &record)?;
        }
    }
    if log.is_none() {
        EventLog::create(&directory, 0.0, &settings, &text)?;
    }
    Ok(())
}

#[cfg(not(feature = "parquet"))]
fn write_parquet(_: &RunDirectory, _: &Path) -> Result<()> {
    let reason = "this build cannot write Parquet: it was built without the feature `parquet`";
    let fix = "build it with the feature, a default of the programs, or export csv";
    Err(Error::argument("--format parquet", reason, fix))
}

#[cfg(feature = "parquet")]
fn write_parquet(run: &RunDirectory, output: &Path) -> Result<()> {
    use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;
    use std::sync::Arc;

    let tags = tags(run)?;
    let mut reader = LineReader::open(&run.metrics)?;
    let mut rows = Vec::new();
    while let Some(row) = next_row(&mut reader)? {
        rows.push(row);
    }
    let wrong =
        |e: parquet::errors::ParquetError| Error::file("write", output, std::io::Error::other(e), "report this");
    // A name of a column in the language of schemas has no separators.
    let name = |tag: &str| tag.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    let columns: String = tags.iter().map(|tag| format!("optional double {}; ", name(tag))).collect();
    let schema = format!("message run {{ required binary kind (UTF8); required int64 step; {columns}}}");
    let schema = Arc::new(parse_message_type(&schema).map_err(wrong)?);
    let file = AtomicFile::create(output)?;
    let out = file.file().try_clone().map_err(|e| file.refused(e))?;
    let mut writer =
        SerializedFileWriter::new(out, schema, Arc::new(WriterProperties::builder().build())).map_err(wrong)?;
    let mut group = writer.next_row_group().map_err(wrong)?;
    let mut at: usize = 0;
    while let Some(mut column) = group.next_column().map_err(wrong)? {
        match (at, at.checked_sub(2).and_then(|at| tags.get(at))) {
            (0, _) => {
                let kinds: Vec<ByteArray> = rows.iter().map(|row| row.kind.as_str().into()).collect();
                column.typed::<ByteArrayType>().write_batch(&kinds, None, None).map_err(wrong)?;
            }
            (_, Some(tag)) => {
                let values: Vec<f64> = rows.iter().filter_map(|row| row.values.get(tag).copied()).collect();
                let levels: Vec<i16> = rows.iter().map(|row| i16::from(row.values.contains_key(tag))).collect();
                column.typed::<DoubleType>().write_batch(&values, Some(&levels), None).map_err(wrong)?;
            }
            (_, None) => {
                let steps: Vec<i64> = rows.iter().map(|row| row.step.cast_signed()).collect();
                column.typed::<Int64Type>().write_batch(&steps, None, None).map_err(wrong)?;
            }
        }
        column.close().map_err(wrong)?;
        at += 1;
    }
    group.close().map_err(wrong)?;
    writer.close().map_err(wrong)?;
    file.commit()
}
