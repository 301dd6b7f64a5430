//! Records of any form as samples.
//!
//! Defines [`RecordForm`], [`SftColumns`] and [`read`], which reads files of records: JSON lines, CSV, TSV, Parquet,
//! and JSON files that are one list of objects.

use std::path::Path;

use serde_json::{Map, Value};

use super::class::{ClassSource, SampleSink};
use super::files::record_files;
use super::sample::Sample;
use super::{judged, preference};
use crate::data::Format;
use crate::data::io::input::of_data;
use crate::data::io::record::{Fields, Record};
use crate::data::io::record_reader::RecordReader;
use crate::file::{printable, read_text};
use crate::tokenizer::ChatMessage;
use crate::{Error, Result};

/// A file that is one list is read whole.
const MAX_LIST_BYTES: u64 = 1 << 30;

/// Alpaca's prompt for an instruction, and for one with an input.
const ALPACA: &str = "Below is an instruction that describes a task. Write a response that appropriately completes the \
                      request.\n\n### Instruction:\n{instruction}\n\n### Response:";
const ALPACA_WITH_INPUT: &str = "Below is an instruction that describes a task, paired with an input that provides \
                                 further context. Write a response that appropriately completes the request.\n\n\
                                 ### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:";

/// How a record states what is learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecordForm {
    /// `messages`, a list of objects with `role` and `content`.
    Messages,
    /// `conversations`, a list of objects with `from` and `value`.
    ShareGpt,
    /// `instruction`, `input` if there is one, and `output`.
    Alpaca,
    /// `prompt` and `completion`, both texts or both lists of messages.
    PromptCompletion,
    /// `input` and `output`.
    InputOutput,
    /// `text`.
    Text,
    /// `chosen` and `rejected`, both texts or both lists of messages, and `prompt` if there is one.
    Preference,
    /// `prompt` and `completion`, both texts or both lists of messages, and `label`, whether the completion is good; or
    /// a pair as above.
    Judged,
}

impl RecordForm {
    /// Every form of single samples with its name in recipes, in the order in which they are looked for.
    pub const ALL: [(&'static str, RecordForm); 6] = [
        ("messages", RecordForm::Messages),
        ("sharegpt", RecordForm::ShareGpt),
        ("alpaca", RecordForm::Alpaca),
        ("prompt-completion", RecordForm::PromptCompletion),
        ("input-output", RecordForm::InputOutput),
        ("text", RecordForm::Text),
    ];

    /// The columns of the form: messages, or what is read, and what is written.
    fn columns(self, names: &SftColumns) -> (String, Option<String>) {
        let or = |name: &Option<String>, usual: &str| name.clone().unwrap_or_else(|| usual.to_owned());
        match self {
            RecordForm::Messages => (or(&names.messages, "messages"), None),
            RecordForm::ShareGpt => (or(&names.messages, "conversations"), None),
            RecordForm::Alpaca => (or(&names.prompt, "instruction"), Some(or(&names.completion, "output"))),
            RecordForm::PromptCompletion => (or(&names.prompt, "prompt"), Some(or(&names.completion, "completion"))),
            RecordForm::InputOutput => (or(&names.prompt, "input"), Some(or(&names.completion, "output"))),
            RecordForm::Text => (or(&names.text, "text"), None),
            RecordForm::Preference | RecordForm::Judged => {
                (or(&names.chosen, "chosen"), Some(or(&names.rejected, "rejected")))
            }
        }
    }

    /// The form of a record.
    fn of(record: &Record<'_>, names: &SftColumns) -> Result<RecordForm> {
        let has = |form: &RecordForm| {
            let (first, second) = form.columns(names);
            record.has(&first) && second.is_none_or(|second| record.has(&second))
        };
        // Columns that are named are meant.
        let named = [
            (names.messages.is_some(), RecordForm::Messages),
            (names.prompt.is_some() || names.completion.is_some(), RecordForm::PromptCompletion),
            (names.text.is_some(), RecordForm::Text),
        ];
        let named = named.into_iter().filter(|(is_named, _)| *is_named).map(|(_, form)| form);
        let mut forms = named.chain(RecordForm::ALL.map(|(_, form)| form));
        forms.find(has).ok_or_else(|| {
            let object = record.object();
            let columns: Vec<String> = object.keys().take(20).map(|name| printable(name, 60)).collect();
            record.error(
                "",
                format!("the columns {} are of no known form", columns.join(", ")),
                "name the columns (data.columns.messages, or data.columns.prompt and data.columns.completion), or the \
                 form with data.records",
            )
        })
    }
}

/// Names of columns where they are not the usual ones of a form.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SftColumns {
    /// The list of messages.
    pub messages: Option<String>,
    /// The prompt, instruction or input.
    pub prompt: Option<String>,
    /// The completion or output.
    pub completion: Option<String>,
    /// Alpaca's input beside an instruction; by default `input`.
    pub input: Option<String>,
    /// A text that becomes a system message before the others; by default `system`, where a record has it.
    pub system: Option<String>,
    /// The text.
    pub text: Option<String>,
    /// The better completion of a pair.
    pub chosen: Option<String>,
    /// The worse one.
    pub rejected: Option<String>,
    /// Whether a completion is good.
    pub label: Option<String>,
}

/// Reads the records of a split. The first one of a file decides the form of all of them unless it is given.
pub(super) fn read(
    source: &ClassSource<'_>,
    (form, columns, format): (Option<RecordForm>, &SftColumns, Option<Format>),
    samples: &mut SampleSink<'_>,
) -> Result<()> {
    if let Some(key) = source.config.keys().next() {
        let reason = format!("records of {} have no setting config.{}", source.path.display(), printable(key, 60));
        return Err(Error::argument("data.sets", reason, "remove it, or name the class that has it"));
    }
    for file in record_files(source.path, source.split)? {
        let mut found = form;
        let mut take = |record: Result<Record<'_>>| {
            let record = match record {
                Ok(record) => record,
                Err(flaw) => return samples.push(String::new(), Err(flaw)),
            };
            let place = record.place();
            let form = match found {
                Some(form) => Ok(form),
                None => RecordForm::of(&record, columns),
            };
            found = form.as_ref().ok().copied();
            samples.push(place, form.and_then(|form| sample(&record, form, columns)))
        };
        if !each_record(&file, format, source.max_line_bytes, &mut take)? {
            break;
        }
    }
    Ok(())
}

/// Calls `take` with each record of a file until it wants no more; whether it wants more.
pub(crate) fn each_record(
    path: &Path,
    format: Option<Format>,
    max_line_bytes: usize,
    take: &mut dyn FnMut(Result<Record<'_>>) -> Result<bool>,
) -> Result<bool> {
    let format = format.map_or_else(|| Format::of(path), Ok)?;
    if format == Format::Jsonl && begins_with_list(path)? {
        return each_of_list(path, take);
    }
    let mut records = RecordReader::open(path, format, max_line_bytes)?;
    while let Some(record) = records.next()? {
        if !take(record)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a JSON file is one list rather than an object on each line.
fn begins_with_list(path: &Path) -> Result<bool> {
    use std::io::Read;
    let mut start = Vec::new();
    let file = crate::data::io::input::open_text(path)?;
    file.take(64).read_to_end(&mut start).map_err(|error| Error::file("read", path, error, "check the file"))?;
    Ok(start.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'['))
}

fn each_of_list(path: &Path, take: &mut dyn FnMut(Result<Record<'_>>) -> Result<bool>) -> Result<bool> {
    let text = read_text(path, MAX_LIST_BYTES).map_err(of_data)?;
    let objects: Vec<Map<String, Value>> =
        serde_json::from_str(text.trim_start_matches('\u{FEFF}')).map_err(|error| {
            let place = format!("{}:{}:{}", path.display(), error.line(), error.column());
            let text = error.to_string();
            let reason = format!("broken JSON: {}", text.split(" at line ").next().unwrap_or_default());
            Error::data(place, reason, "write a list of objects, [{…}, …], or one object per line")
        })?;
    for (at, object) in objects.into_iter().enumerate() {
        if !take(Ok(Record { path, line: at as u64 + 1, fields: Fields::Columns { object } }))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A record of a form as a sample.
pub(super) fn sample(record: &Record<'_>, form: RecordForm, names: &SftColumns) -> Result<Sample> {
    let (first, second) = form.columns(names);
    let second = second.unwrap_or_default();
    match form {
        RecordForm::Messages | RecordForm::ShareGpt => {
            let messages = with_system(messages(record, &first)?, record, names)?;
            chat(record, &first, messages, 0)
        }
        RecordForm::PromptCompletion if is_list(record, &first) => {
            let prompt = with_system(messages(record, &first)?, record, names)?;
            let from = prompt.len();
            chat(record, &second, [prompt, messages(record, &second)?].concat(), from)
        }
        RecordForm::PromptCompletion | RecordForm::InputOutput => {
            Ok(Sample::pair(record.text(&first)?, filled(record, &second)?))
        }
        RecordForm::Alpaca => {
            let input = names.input.as_deref().unwrap_or("input");
            let input = if record.has(input) { record.text(input)? } else { "" };
            let instruction = record.text(&first)?;
            let format = if input.is_empty() { ALPACA } else { ALPACA_WITH_INPUT };
            // In one pass: an instruction may spell `{input}`.
            let parts = format.split('{').map(|part| match part.split_once('}') {
                Some(("instruction", rest)) => format!("{instruction}{rest}"),
                Some(("input", rest)) => format!("{input}{rest}"),
                _ => part.to_owned(),
            });
            Ok(Sample::pair(parts.collect::<String>(), filled(record, &second)?))
        }
        RecordForm::Text => Ok(Sample::Text(filled(record, &first)?.to_owned())),
        RecordForm::Preference => preference::sample(record, (&first, &second), names),
        RecordForm::Judged => judged::sample(record, (&first, &second), names),
    }
}

pub(super) fn is_list(record: &Record<'_>, column: &str) -> bool {
    record.json(column).is_some_and(Value::is_array)
}

/// A text that is not empty.
pub(super) fn filled<'r>(record: &'r Record<'_>, column: &str) -> Result<&'r str> {
    let text = record.text(column)?;
    match text.is_empty() {
        false => Ok(text),
        true => Err(record.error(column, format!("{column:?} is empty"), "give a text, or leave the record out")),
    }
}

pub(super) fn chat(
    record: &Record<'_>,
    column: &str,
    messages: Vec<ChatMessage>,
    learned_from: usize,
) -> Result<Sample> {
    if !messages.iter().skip(learned_from).any(|message| message.role == "assistant") {
        let reason = format!("{column:?} has no message of the assistant");
        return Err(record.error(column, reason, "leave the record out: there is nothing to learn"));
    }
    let tools = record.json("tools").filter(|tools| tools.as_array().is_some_and(|tools| !tools.is_empty()));
    // Parquet and some JSON files have the list as a text.
    let spelled = record.json("tools").and_then(Value::as_str).filter(|text| text.trim_start().starts_with('['));
    let spelled = spelled.map(serde_json::from_str::<Value>).transpose().map_err(|error| {
        record.error("tools", format!("\"tools\" is not a list of JSON: {error}"), "write a list of JSON schemas")
    })?;
    Ok(Sample::Chat { messages, tools: tools.cloned().or(spelled), learned_from })
}

/// The messages with the record's system text before them, if it has one.
pub(super) fn with_system(
    mut messages: Vec<ChatMessage>,
    record: &Record<'_>,
    names: &SftColumns,
) -> Result<Vec<ChatMessage>> {
    let column = names.system.as_deref().unwrap_or("system");
    let system = match record.json(column) {
        Some(Value::String(text)) => Some(text.as_str()),
        None | Some(Value::Null) if names.system.is_none() => None,
        // Named and not there, or not a text: the error states which.
        _ => Some(record.text(column)?),
    };
    if let Some(system) = system.filter(|text| !text.is_empty()) {
        messages.insert(0, ChatMessage::new("system", system));
    }
    Ok(messages)
}

/// A list of messages, in either spelling.
pub(super) fn messages(record: &Record<'_>, column: &str) -> Result<Vec<ChatMessage>> {
    let wrong = |reason: String, fix: &str| Err(record.error(column, reason, fix));
    const FIX: &str = "write a list of {\"role\": …, \"content\": …}, or of {\"from\": …, \"value\": …}";
    let Some(Value::Array(items)) = record.json(column) else {
        if !record.has(column) {
            record.scalar(column)?;
        }
        return wrong(format!("{column:?} is not a list of messages"), FIX);
    };
    let mut messages = Vec::with_capacity(items.len());
    for (at, item) in items.iter().enumerate() {
        let Value::Object(fields) = item else {
            return wrong(format!("message {} of {column:?} is not an object", at + 1), FIX);
        };
        let mut fields = fields.clone();
        let mut take = |names: [&str; 2]| names.iter().find_map(|name| fields.remove(*name));
        let (role, content) = (take(["role", "from"]), take(["content", "value"]));
        let Some(role) = role.as_ref().and_then(Value::as_str) else {
            return wrong(format!("message {} of {column:?} does not state who wrote it", at + 1), FIX);
        };
        let role = match role {
            "human" | "Human" | "User" => "user",
            "gpt" | "bot" | "chatgpt" | "model" | "Assistant" => "assistant",
            "observation" | "function_response" => "tool",
            other => other,
        };
        let is_text = matches!(content, Some(Value::String(_) | Value::Array(_)));
        if !is_text && !fields.contains_key("tool_calls") {
            return wrong(format!("message {} of {column:?} has no text", at + 1), FIX);
        }
        // A template may ask whether a field is there.
        fields.retain(|_, value| !value.is_null());
        messages.push(ChatMessage { role: role.to_owned(), content: content.unwrap_or(Value::Null), more: fields });
    }
    if messages.is_empty() {
        return wrong(format!("{column:?} has no message"), "leave the record out");
    }
    Ok(messages)
}
