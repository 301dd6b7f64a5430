//! TensorBoard's event files: the scalars of `metrics.jsonl` in the form that TensorBoard reads.
//!
//! Defines [`EventLog`], [`scalars`] and [`tag_of`]. A file holds TensorFlow's records, each an `Event` message; the
//! few messages that are needed are written field by field. A resumed run begins a new file with `SessionLog.START`, at
//! which TensorBoard drops the steps that were overtaken. Called by the training programs and by the export of runs.

use crate::{Error, Result};
use model_center_base::file::{put_bytes, put_varint, write_framed};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};

/// The directory of event files in the output directory.
pub const TENSORBOARD_DIRECTORY: &str = "tensorboard";

/// Prefix of the names of event files; TensorBoard reads them in the order of their names.
const FILE_PREFIX: &str = "events.out.tfevents.";
/// Version at the beginning of an event file.
const FILE_VERSION: &str = "brain.Event:2";
/// `SessionLog.START`.
const START: u64 = 1;
/// `DataType`: f32 and text.
const DT_FLOAT: u64 = 1;
const DT_STRING: u64 = 7;

/// One value of a record.
#[derive(Debug, Clone, PartialEq)]
pub struct Scalar {
    /// Context and name, such as `train/loss`.
    pub tag: String,
    /// The value; NaN and infinities are values too.
    pub value: f64,
}

/// The numbers of a record of `metrics.jsonl`; none of records of a start, a resume or an end.
///
/// Members of a step are `train/NAME`, of an evaluation `validation/NAME`, of the test sets `test/NAME`; members of
/// `time` are `time/NAME`, but an evaluation's belong to it.
pub fn scalars(record: &Value) -> Vec<Scalar> {
    let Some((context, time)) = contexts(record) else { return Vec::new() };
    let mut found = Vec::new();
    for (name, value) in record.as_object().into_iter().flatten() {
        let (context, members) = match (name.as_str(), value) {
            ("step" | "kind" | "batch" | "best", _) => continue,
            ("time", Value::Object(members)) => (time, members),
            ("metrics", Value::Object(members)) => (context, members),
            _ => {
                found.extend(number(value).map(|value| Scalar { tag: tag_of(context, name), value }));
                continue;
            }
        };
        for (name, value) in members {
            found.extend(number(value).map(|value| Scalar { tag: tag_of(context, name), value }));
        }
    }
    found
}

/// The context of a record's members, and the one of its time.
fn contexts(record: &Value) -> Option<(&'static str, &'static str)> {
    match record.get("kind")?.as_str()? {
        "step" => Some(("train", "time")),
        "eval" => Some(("validation", "validation")),
        "test" => Some(("test", "test")),
        _ => None,
    }
}

/// The tag of a member.
pub fn tag_of(context: &str, name: &str) -> String {
    format!("{context}/{name}")
}

/// A number, as `metrics.jsonl` has it.
pub fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::Bool(flag) => Some(f64::from(u8::from(*flag))),
        Value::String(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

/// An event file in progress.
#[derive(Debug)]
pub struct EventLog {
    path: PathBuf,
    file: File,
}

impl EventLog {
    /// Begins a file in `directory`, which is made if it is not there. `settings` are the keys and values of the
    /// recipe, which TensorBoard shows as hyper-parameters, and `recipe` its text.
    ///
    /// # Errors
    /// [`Error::File`] if it cannot be written.
    pub fn create(
        directory: &Path,
        unix_seconds: f64,
        settings: &[(String, toml::Value)],
        recipe: &str,
    ) -> Result<Self> {
        let failed = |e| Error::file("write", directory, e, "make room on the disk, or set log.tensorboard = false");
        fs::create_dir_all(directory).map_err(failed)?;
        let number = next_number(directory, unix_seconds as u64).map_err(failed)?;
        let path = directory.join(format!("{FILE_PREFIX}{number:010}"));
        let file = OpenOptions::new().append(true).create_new(true).open(&path).map_err(failed)?;
        let mut log = EventLog { path, file };
        log.event(unix_seconds, 0, |event| put_bytes(3, FILE_VERSION.as_bytes(), event))?;
        log.summary(unix_seconds, 0, &[text_value("recipe", recipe), settings_value(unix_seconds, settings)])?;
        Ok(log)
    }

    /// Writes what a record of `metrics.jsonl` has for TensorBoard; `unix_seconds` is its time.
    ///
    /// # Errors
    /// [`Error::File`] if it cannot be written.
    pub fn record(&mut self, unix_seconds: f64, record: &Value) -> Result<()> {
        let step = record.get("step").and_then(Value::as_u64).unwrap_or(0);
        if record.get("kind").and_then(Value::as_str) == Some("resume") {
            // Steps from this one on are dropped; the step of the checkpoint itself stays.
            return self.event(unix_seconds, step + 1, |event| {
                let mut session = Vec::new();
                put_number(1, START, &mut session);
                put_bytes(7, &session, event);
            });
        }
        let values: Vec<Vec<u8>> = scalars(record).iter().map(scalar_value).collect();
        if values.is_empty() { Ok(()) } else { self.summary(unix_seconds, step, &values) }
    }

    fn summary(&mut self, unix_seconds: f64, step: u64, values: &[Vec<u8>]) -> Result<()> {
        self.event(unix_seconds, step, |event| {
            let mut summary = Vec::new();
            values.iter().for_each(|value| put_bytes(1, value, &mut summary));
            put_bytes(5, &summary, event);
        })
    }

    /// Appends an event, in one write, so that readers which follow the file see whole records.
    fn event(&mut self, unix_seconds: f64, step: u64, contents: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let mut event = Vec::new();
        put_double(1, unix_seconds, &mut event);
        put_number(2, step, &mut event);
        contents(&mut event);
        let mut framed = Vec::with_capacity(event.len() + 16);
        let written =
            write_framed(&mut framed, &event).and_then(|()| std::io::Write::write_all(&mut self.file, &framed));
        written
            .map_err(|e| Error::file("write", &self.path, e, "make room on the disk, or set log.tensorboard = false"))
    }
}

/// The number of the next file: the time, but larger than all numbers there, as a clock may have been set back.
fn next_number(directory: &Path, now: u64) -> std::io::Result<u64> {
    let mut next = now;
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if let Some(number) = name.strip_prefix(FILE_PREFIX).and_then(|rest| rest.parse::<u64>().ok()) {
            next = next.max(number + 1);
        }
    }
    Ok(next)
}

/// A `Summary.Value` of a scalar. TensorBoard's scalars are f32.
fn scalar_value(scalar: &Scalar) -> Vec<u8> {
    let mut value = Vec::new();
    put_bytes(1, scalar.tag.as_bytes(), &mut value);
    put_varint(2 << 3 | 5, &mut value);
    value.extend_from_slice(&(scalar.value as f32).to_le_bytes());
    value
}

/// A `Summary.Value` of the text plugin.
fn text_value(tag: &str, text: &str) -> Vec<u8> {
    let mut tensor = tensor(DT_STRING);
    // Four spaces before each line: the plugin reads Markdown, and shows this as it is.
    let code: String = text.lines().map(|line| format!("    {line}\n")).collect();
    put_bytes(8, code.as_bytes(), &mut tensor);
    plugin_value(tag, "text", &[], &tensor)
}

/// A `Summary.Value` of the plugin of hyper-parameters.
fn settings_value(unix_seconds: f64, settings: &[(String, toml::Value)]) -> Vec<u8> {
    let mut info = Vec::new();
    for (key, value) in settings {
        let (mut entry, mut given) = (Vec::new(), Vec::new());
        match value {
            toml::Value::Float(number) => put_double(2, *number, &mut given),
            toml::Value::Integer(number) => put_double(2, *number as f64, &mut given),
            toml::Value::Boolean(flag) => put_number(4, u64::from(*flag), &mut given),
            toml::Value::String(text) => put_bytes(3, text.as_bytes(), &mut given),
            other => put_bytes(3, other.to_string().as_bytes(), &mut given),
        }
        put_bytes(1, key.as_bytes(), &mut entry);
        put_bytes(2, &given, &mut entry);
        put_bytes(1, &entry, &mut info);
    }
    put_double(5, unix_seconds, &mut info);
    let mut content = Vec::new();
    put_bytes(3, &info, &mut content);
    let mut tensor = tensor(DT_FLOAT);
    put_bytes(5, &0f32.to_le_bytes(), &mut tensor);
    plugin_value("_hparams_/session_start_info", "hparams", &content, &tensor)
}

fn plugin_value(tag: &str, plugin: &str, content: &[u8], tensor: &[u8]) -> Vec<u8> {
    let (mut data, mut metadata, mut value) = (Vec::new(), Vec::new(), Vec::new());
    put_bytes(1, plugin.as_bytes(), &mut data);
    put_bytes(2, content, &mut data);
    put_bytes(1, &data, &mut metadata);
    put_bytes(1, tag.as_bytes(), &mut value);
    put_bytes(8, tensor, &mut value);
    put_bytes(9, &metadata, &mut value);
    value
}

/// A `TensorProto` of one element, without the element.
fn tensor(dtype: u64) -> Vec<u8> {
    let (mut dim, mut shape, mut tensor) = (Vec::new(), Vec::new(), Vec::new());
    put_number(1, 1, &mut dim);
    put_bytes(2, &dim, &mut shape);
    put_number(1, dtype, &mut tensor);
    put_bytes(2, &shape, &mut tensor);
    tensor
}

fn put_number(field: u64, value: u64, out: &mut Vec<u8>) {
    put_varint(field << 3, out);
    put_varint(value, out);
}

fn put_double(field: u64, value: f64, out: &mut Vec<u8>) {
    put_varint(field << 3 | 1, out);
    out.extend_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests;
