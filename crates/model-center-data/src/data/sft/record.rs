//! Records of any form as samples.
//!
//! Defines [`RecordForm`], [`SftColumns`] and [`read`], which reads files of records: JSON lines, CSV, TSV, Parquet,
//! and JSON files that are one list of objects.

use std::path::Path;

use serde_json::{Map, Value};

use super::class::{ClassSource, SampleSink};
use super::files::record_files;
use super::keys::{Unused, account, filled, note, tools};
use super::messages::{ASSISTANT, Turn, further_fields, is_list, messages};
use super::sample::Sample;
use super::{preference, texts, unpaired};
use crate::data::Format;
use crate::{Error, Result};
use model_center_base::file::{printable, read_text};
use model_center_formats::io::{
    input::of_data,
    record::{Fields, Record, SKIPPABLE},
    record_reader::RecordReader,
};

/// A file that is one list is read whole.
const MAX_LIST_BYTES: u64 = 1 << 30;
/// Prefix of the name of a message's field among the columns without effect.
pub(super) const OF_MESSAGES: &str = "messages: ";
/// Variables of the chat template, in the column that TRL reads.
const TEMPLATE_VARIABLES: &str = "chat_template_kwargs";

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
    Unpaired,
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
            RecordForm::Preference | RecordForm::Unpaired => {
                (or(&names.chosen, "chosen"), Some(or(&names.rejected, "rejected")))
            }
        }
    }

    /// The form of a record.
    pub(super) fn of(record: &Record<'_>, names: &SftColumns) -> Result<RecordForm> {
        let has = |form: &RecordForm| {
            let (first, second) = form.columns(names);
            record.has_value(&first) && second.is_none_or(|second| record.has_value(&second))
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
            let columns: Vec<String> = record.names().take(20).map(|name| printable(name, 60)).collect();
            let fix = "name the columns (data.columns.messages, or data.columns.prompt and data.columns.completion), \
                       or the form with data.records";
            record.error("", format!("the columns {} are of no known form", columns.join(", ")), fix)
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

/// How the records of files are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecordReading<'a> {
    /// `None` for the one that the first record of a file has.
    pub(super) form: Option<RecordForm>,
    pub(super) columns: &'a SftColumns,
    /// `None` derives it from the names of the files.
    pub(super) format: Option<Format>,
    /// Whether prompts and completions become messages.
    pub(super) as_chat: bool,
    /// Whether a head rates completions.
    pub(super) has_rewards: bool,
    /// Takes the names of columns without effect.
    pub(super) unused: &'a Unused,
}

/// Reads the records of a split. The first one of a file decides the form of all of them unless it is given.
pub(super) fn read(source: &ClassSource<'_>, reading: &RecordReading<'_>, samples: &mut SampleSink<'_>) -> Result<()> {
    if let Some(key) = source.config.keys().next() {
        let reason = format!("records of {} have no setting config.{}", source.path.display(), printable(key, 60));
        return Err(Error::argument("data.sets", reason, "remove it, or name the class that has it"));
    }
    for file in record_files(source.path, source.split)? {
        let mut found = reading.form;
        let mut take = |record: Result<Record<'_>>| {
            let record = match record {
                Ok(record) => record,
                Err(flaw) => return samples.push(String::new(), Err(flaw)),
            };
            let place = record.place();
            let form = match found {
                Some(form) => Ok(form),
                None => RecordForm::of(&record, reading.columns),
            };
            found = form.as_ref().ok().copied();
            samples.push(place, form.and_then(|form| sample(&record, form, reading)))
        };
        if !each_record(&file, reading.format, source.max_line_bytes, &mut take)? {
            break;
        }
    }
    Ok(())
}

/// Calls `take` with each record of a file until it wants no more; whether it wants more.
pub fn each_record(
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
    while let Some(record) = records.read_next()? {
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
    let file = model_center_formats::io::input::open_text(path)?;
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
        if !take(Ok(Record { path, line: at as u64 + 1, fields: Fields::Columns { object, unread: &[] } }))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A record of a form as a sample.
pub(super) fn sample(record: &Record<'_>, form: RecordForm, reading: &RecordReading<'_>) -> Result<Sample> {
    let (first, second) = form.columns(reading.columns);
    let second = second.unwrap_or_default();
    let used = used(record, form, [&first, &second], reading);
    account(record, &used, form != RecordForm::Text, reading.unused)?;
    let sample = of_form(record, form, (&first, &second), reading)?;
    sample.each_message(&mut |message| {
        further_fields(message).for_each(|name| note(reading.unused, &format!("{OF_MESSAGES}{name}")));
    });
    Ok(sample)
}

fn of_form(
    record: &Record<'_>,
    form: RecordForm,
    (first, second): (&str, &str),
    reading: &RecordReading<'_>,
) -> Result<Sample> {
    match form {
        RecordForm::Messages | RecordForm::ShareGpt => {
            let turns = with_system(messages(record, first)?, record, reading.columns)?;
            chat(record, first, turns, 0)
        }
        RecordForm::Text => Ok(Sample::Text(filled(record, first)?.to_owned())),
        RecordForm::Preference => preference::sample(record, (first, second), reading),
        RecordForm::Unpaired => unpaired::sample(record, (first, second), reading),
        RecordForm::Alpaca | RecordForm::PromptCompletion | RecordForm::InputOutput => {
            completed(record, form, (first, second), reading)
        }
    }
}

/// A prompt with its completion, texts or messages.
pub(super) fn completed(
    record: &Record<'_>,
    form: RecordForm,
    (first, second): (&str, &str),
    reading: &RecordReading<'_>,
) -> Result<Sample> {
    if form == RecordForm::PromptCompletion && is_list(record, first) {
        let prompt = with_system(messages(record, first)?, record, reading.columns)?;
        let from = prompt.len();
        return chat(record, second, [prompt, messages(record, second)?].concat(), from);
    }
    texts::pair(record, (form, first), filled(record, second)?, reading)
}

/// The names of a form's columns, which records of it have by default.
pub(super) fn columns_of(form: RecordForm, names: &SftColumns) -> (String, String) {
    let (first, second) = form.columns(names);
    (first, second.unwrap_or_default())
}

/// The keys that a record's reader uses.
fn used<'n>(record: &Record<'_>, form: RecordForm, columns: [&'n str; 2], reading: &RecordReading<'n>) -> Vec<&'n str> {
    let names = reading.columns;
    let or = |name: &'n Option<String>, usual: &'n str| name.as_deref().unwrap_or(usual);
    let mut used: Vec<&str> = columns.into_iter().filter(|name| !name.is_empty()).collect();
    if form == RecordForm::Text {
        return used;
    }
    let (prompt, completion) = (or(&names.prompt, "prompt"), or(&names.completion, "completion"));
    match form {
        RecordForm::Unpaired => used.extend([prompt, completion, or(&names.label, "label")]),
        RecordForm::Preference => used.push(prompt),
        _ => {}
    }
    used.extend([or(&names.system, "system"), "tools"]);
    let has_messages = used.iter().any(|column| is_list(record, column) && *column != "tools");
    match has_messages {
        true => used.push(TEMPLATE_VARIABLES),
        false => {
            used.push(texts::HISTORY);
            let of_prompt = if form == RecordForm::Alpaca { columns[0] } else { prompt };
            used.extend(texts::input_column(form, of_prompt, names).map(|(name, _)| name));
        }
    }
    if !reading.has_rewards {
        // Of rewards alone other tools' losses have it.
        used.push("margin");
    }
    used
}

pub(super) fn chat(record: &Record<'_>, column: &str, turns: Vec<Turn>, learned_from: usize) -> Result<Sample> {
    let of_assistant = |turn: &&Turn| turn.message.role == ASSISTANT;
    let mut learned = turns.iter().skip(learned_from).filter(of_assistant).peekable();
    if learned.peek().is_none() {
        let reason = format!("{column:?} has no message of the assistant");
        return Err(record.error(column, reason, "leave the record out: there is nothing to learn"));
    }
    if !learned.any(|turn| turn.is_learned) {
        let reason = format!("{column:?} has no turn that is learned: weight or train excludes all of the assistant's");
        return Err(record.error(column, reason, SKIPPABLE));
    }
    let is_excluded = |(_, turn): &(usize, &Turn)| !turn.is_learned && turn.message.role == ASSISTANT;
    let excluded = turns.iter().enumerate().filter(is_excluded).map(|(number, _)| number).collect();
    let messages = turns.into_iter().map(|turn| turn.message).collect();
    let (tools, more) = (tools(record)?, template_variables(record)?);
    Ok(Sample::Chat { messages, tools, more, learned_from, excluded })
}

/// Variables of the chat template: a mapping, or a text that spells one.
fn template_variables(record: &Record<'_>) -> Result<Map<String, Value>> {
    let wrong = || {
        let reason = format!("{TEMPLATE_VARIABLES:?} is not a mapping");
        record.error(TEMPLATE_VARIABLES, reason, "write {\"name\": value, …}")
    };
    let spelled = |text: &str| match text.trim().is_empty() {
        true => Ok(Value::Null),
        false => serde_json::from_str(text).map_err(|_| wrong()),
    };
    let value = match record.json(TEMPLATE_VARIABLES) {
        Some(Value::String(text)) => spelled(text)?,
        Some(value) => value.clone(),
        None => spelled(record.optional_text(TEMPLATE_VARIABLES)?.unwrap_or_default())?,
    };
    match value {
        Value::Null => Ok(Map::new()),
        Value::Object(mut variables) => {
            variables.retain(|_, value| !value.is_null());
            Ok(variables)
        }
        _ => Err(wrong()),
    }
}

/// The messages with the record's system text before them, if it has one.
pub(super) fn with_system(mut turns: Vec<Turn>, record: &Record<'_>, names: &SftColumns) -> Result<Vec<Turn>> {
    let Some(text) = texts::system(record, names)? else { return Ok(turns) };
    match turns.first().filter(|turn| turn.message.role == "system") {
        None => turns.insert(0, Turn::new("system", text)),
        Some(first) if first.message.content == text => {}
        Some(_) => {
            let column = names.system.as_deref().unwrap_or("system");
            let reason = format!("{column:?} has a system text, and the first message is another one");
            return Err(record.error(column, reason, "keep one of the two"));
        }
    }
    Ok(turns)
}
