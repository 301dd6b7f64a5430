//! The keys of a record: every one is used, known to be without effect, reported as such, or refused.
//!
//! Defines [`account`]. The readers of records call it with the keys that they use.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::Value;

use crate::Result;
use model_center_base::file::printable;
use model_center_formats::io::record::{Record, SKIPPABLE};

/// Names that a report has room for.
const REPORTED: usize = 20;

/// Keys that change what other tools train on: what they ask for, and what to do.
const REFUSED: &[(&[&str], &str, &str)] = &[
    (
        &["images", "image", "videos", "video", "audios", "audio"],
        "it has images, videos or sounds, and models read texts alone",
        "remove the column, or leave such records out",
    ),
    (
        &["weight", "sample_weight", "loss_weight"],
        "it weighs the sample, and all samples weigh the same",
        "remove the column; data.sets with `proportion` takes more samples of one file than of another",
    ),
    (&["functions"], "it describes functions in OpenAI's earlier form", "write them as `tools`, or remove the column"),
    (
        &["mask"],
        "it selects turns that are not learned",
        "mark them in the messages (\"train\": false), or remove the column",
    ),
    (
        &["system", "system_prompt", "system_message"],
        "it has a system text, which is not used",
        "name the column with data.columns.system, or remove it",
    ),
    (
        &["history"],
        "it has earlier turns, which the form of the records has no place for",
        "write all turns as a list of messages, or remove the column",
    ),
    (
        &["tools"],
        "it describes tools, which the form of the records has no place for",
        "write the record as messages, or remove the column",
    ),
    (
        &["chat_template_kwargs"],
        "it has variables of the chat template, and the record has a prompt that is a text",
        "write the record as messages, or remove the column",
    ),
    (
        &["margin"],
        "it states how much better a completion is, which the loss does not use",
        "remove the column; preference.gamma of SimPO is one margin for all pairs",
    ),
];

/// Keys that no tool trains on, by the reason.
const WITHOUT_EFFECT: &[(&str, &[&str])] = &[
    (
        "it names the record",
        &["id", "idx", "index", "uuid", "prompt_id", "conversation_id", "question_id", "record_id", "hash"],
    ),
    (
        "it states where the record is from",
        &["source", "dataset", "data_source", "origin", "url", "license", "model", "model_name", "generator", "author"],
    ),
    (
        "it states what the record is about",
        &[
            "category",
            "topic",
            "task",
            "task_type",
            "type",
            "subset",
            "language",
            "lang",
            "tags",
            "title",
            "difficulty",
        ],
    ),
    ("it states when it was made", &["created", "created_at", "date", "time", "timestamp", "updated_at"]),
    (
        "it holds notes of the tool that made it",
        &["meta", "metadata", "info", "extra", "notes", "comment", "annotations"],
    ),
];

/// Names of columns that had no effect.
pub(super) type Unused = RefCell<BTreeSet<String>>;

/// Accounts for every key of a record but the `used` ones. With `is_strict`, keys that would change training are
/// refused; a whole text is what its column has, whatever it was made of.
///
/// # Errors
/// A value under such a key.
pub(super) fn account(record: &Record<'_>, used: &[&str], is_strict: bool, unused: &Unused) -> Result<()> {
    for name in record.names() {
        let is_part = |column: &&str| column.split_once('.').is_some_and(|(head, _)| head == name);
        let is_used = used.contains(&name) || used.iter().any(is_part);
        let is_known = WITHOUT_EFFECT.iter().any(|(_, names)| names.contains(&name));
        if is_used || is_known || is_neutral(record, name) {
            continue;
        }
        if let Some((_, reason, fix)) = REFUSED.iter().find(|(names, ..)| is_strict && names.contains(&name)) {
            return Err(record.error(name, format!("{name:?} changes what is learned: {reason}"), *fix));
        }
        note(unused, name);
    }
    Ok(())
}

/// Notes the name of something without effect, as long as a report has room for it.
pub(super) fn note(unused: &Unused, name: &str) {
    let mut unused = unused.borrow_mut();
    if unused.len() < REPORTED && !unused.contains(name) {
        unused.insert(printable(name, 60));
    }
}

/// Whether a column has no value, or the weight that every sample has.
fn is_neutral(record: &Record<'_>, name: &str) -> bool {
    let is_weight = name.ends_with("weight");
    match record.json(name) {
        Some(value) => is_nothing(value) || (is_weight && value.as_f64() == Some(1.0)),
        None => {
            let text = record.text(name).unwrap_or_default().trim();
            text.is_empty() || (is_weight && text.parse() == Ok(1.0))
        }
    }
}

/// Whether a value is null, false or empty.
pub(super) fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) | Value::Number(_) => false,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_nothing),
    }
}

/// The descriptions of tools under `tools`: a list, or a text that spells one.
pub(super) fn tools(record: &Record<'_>) -> Result<Option<Value>> {
    let wrong = |reason: String| Err(record.error("tools", reason, "write a list of JSON schemas"));
    let text = match record.json("tools") {
        None => record.optional_text("tools")?,
        Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.as_str()),
        Some(tools @ Value::Array(items)) => return Ok((!items.is_empty()).then(|| tools.clone())),
        Some(_) => return wrong("\"tools\" is not a list".to_owned()),
    };
    let Some(text) = text.filter(|text| !text.trim().is_empty()) else { return Ok(None) };
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Null) => Ok(None),
        Ok(tools @ Value::Array(_)) => Ok(Some(tools).filter(|tools| !is_nothing(tools))),
        Ok(_) => wrong("\"tools\" is not a list of JSON".to_owned()),
        Err(error) => wrong(format!("\"tools\" is not a list of JSON: {error}")),
    }
}

/// A text that is not empty.
pub(super) fn filled<'r>(record: &'r Record<'_>, column: &str) -> Result<&'r str> {
    let text = record.text(column)?;
    match text.is_empty() {
        false => Ok(text),
        true => Err(record.error(column, format!("{column:?} is empty"), SKIPPABLE)),
    }
}
