//! The messages of a record: who wrote each, what, and whether it is learned.
//!
//! Defines [`Turn`] and [`messages`]. A list of messages is a value of JSON, or a text that spells one, as CSV and the
//! JSON columns of some writers have it.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::keys::is_nothing;
use crate::Result;
use model_center_base::file::printable;
use model_center_formats::io::record::{Record, is_conversation};
use model_center_formats::tokenizer::ChatMessage;

pub(super) const ASSISTANT: &str = "assistant";
const LIKE: &str = "write a list of {\"role\": …, \"content\": …}, or of {\"from\": …, \"value\": …}";

/// Fields that state whether a turn is learned: OpenAI's and ShareGPT's weight, axolotl's and ms-swift's flags.
pub const TURN_MARKS: [&str; 4] = ["weight", "train", "training", "loss"];
/// Fields that learn a part of a turn, or weigh it.
const PARTIAL: [&str; 3] = ["train_detail", "training_detail", "loss_scale"];
/// Other names under which data state whether a turn is learned.
const OTHER_MARKS: [&str; 7] = ["mask", "masked", "loss_mask", "trainable", "learn", "train_on_turn", "train_on_input"];
/// Fields that are a message's content where it has no text.
const CONTENT: [&str; 5] = ["tool_calls", "function_call", "reasoning_content", "thinking", "reasoning"];
/// Roles of ShareGPT that stand for a message of another form, which no template has.
const OTHER_ROLES: [(&str, &str); 2] = [
    ("function_call", "write a message of the assistant with `tool_calls`"),
    ("tool_call", "write a message of the assistant with `tool_calls`"),
];
/// Types of parts that no model here reads.
const MEDIA: [&str; 7] = ["image", "image_url", "video", "audio", "audio_url", "input_audio", "file"];

/// A message, and whether it is learned where its role is.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Turn {
    pub(super) message: ChatMessage,
    pub(super) is_learned: bool,
}

impl Turn {
    pub(super) fn new(role: &str, text: &str) -> Turn {
        Turn { message: ChatMessage::new(role, text), is_learned: true }
    }
}

/// Reason and fix of a refused message.
type Wrong = (String, String);

/// Whether a column is a list of messages.
pub(super) fn is_list(record: &Record<'_>, column: &str) -> bool {
    list_of(record, column).is_some()
}

/// The messages of a column.
pub(super) fn messages(record: &Record<'_>, column: &str) -> Result<Vec<Turn>> {
    let Some(items) = list_of(record, column) else {
        if !record.has(column) {
            record.scalar(column)?;
        }
        return Err(record.error(column, format!("{column:?} is not a list of messages"), LIKE));
    };
    let turn = |(at, item): (usize, &Value)| {
        turn_of(item)
            .map_err(|(reason, fix)| record.error(column, format!("message {} of {column:?} {reason}", at + 1), fix))
    };
    let turns = items.iter().enumerate().map(turn).collect::<Result<Vec<_>>>()?;
    match turns.is_empty() {
        false => Ok(turns),
        true => Err(record.error(column, format!("{column:?} has no message"), "leave the record out")),
    }
}

fn list_of<'r>(record: &'r Record<'_>, column: &str) -> Option<Cow<'r, [Value]>> {
    let spelled = match record.json(column) {
        Some(Value::Array(items)) => return Some(Cow::Borrowed(items)),
        Some(Value::String(text)) => text.as_str(),
        Some(_) => return None,
        // Of CSV.
        None if record.has(column) => record.text(column).ok()?,
        None => return None,
    };
    // Prompts may begin with a bracket, too.
    let spelled = Some(spelled.trim_start()).filter(|text| text.starts_with('['))?;
    match serde_json::from_str::<Value>(spelled).ok().filter(is_conversation)? {
        Value::Array(items) => Some(Cow::Owned(items)),
        _ => None,
    }
}

fn turn_of(item: &Value) -> Result<Turn, Wrong> {
    let Value::Object(fields) = item else { return Err(("is not an object".into(), LIKE.into())) };
    let mut fields = fields.clone();
    // A template may ask whether a field is there; transformers removes those without a value.
    fields.retain(|_, value| !value.is_null());
    let role = one_of(&mut fields, ["role", "from"], &|value| value.as_str().map(role).unwrap_or(value.clone()))?;
    let content = one_of(&mut fields, ["content", "value"], &Value::clone)?;
    let Some(Value::String(role)) = role else {
        return Err(("does not state who wrote it".into(), LIKE.into()));
    };
    let is_text = matches!(content, Some(Value::String(_) | Value::Array(_)));
    let has = |name: &str| fields.get(name).is_some_and(|value| !is_nothing(value));
    if !is_text && (content.is_some() || !CONTENT.into_iter().any(has)) {
        return Err(("has no text".into(), LIKE.into()));
    }
    refuse_marks(&fields)?;
    refuse_media(content.as_ref())?;
    let is_learned = learned(&mut fields, &role)?;
    if let Some((_, fix)) = OTHER_ROLES.iter().find(|(name, _)| *name == role) {
        return Err((format!("is of the role {role:?}, which stands for another form of a message"), (*fix).into()));
    }
    let message = ChatMessage { role, content: content.unwrap_or(Value::Null), more: fields };
    Ok(Turn { message, is_learned })
}

/// A role by the name that templates have for it.
fn role(name: &str) -> Value {
    match name {
        "human" | "Human" | "User" => "user",
        "gpt" | "bot" | "chatgpt" | "model" | "Assistant" => ASSISTANT,
        "observation" | "function_response" => "tool",
        other => other,
    }
    .into()
}

/// The value of one of two names of a field, which are removed.
fn one_of(
    fields: &mut Map<String, Value>,
    names: [&str; 2],
    meaning: &dyn Fn(&Value) -> Value,
) -> Result<Option<Value>, Wrong> {
    let [first, second] = names.map(|name| fields.remove(name).map(|value| meaning(&value)));
    match (first, second) {
        (Some(first), Some(second)) if first != second => {
            let reason = format!("has a field {:?} and another one, {:?}, with another value", names[0], names[1]);
            Err((reason, "keep one of the two".into()))
        }
        (first, second) => Ok(first.or(second)),
    }
}

/// Whether a turn is learned, by the fields that state it, which are removed.
fn learned(fields: &mut Map<String, Value>, role: &str) -> Result<bool, Wrong> {
    if let Some(name) = PARTIAL.iter().find(|name| fields.get(**name).is_some_and(|value| !is_nothing(value))) {
        let fix = "divide the turn, or mark it as a whole: \"train\": true or false";
        return Err((format!("has {name:?}, and a turn is learned as a whole or not at all"), fix.into()));
    }
    PARTIAL.iter().for_each(|name| drop(fields.remove(*name)));
    let mut found: Option<(&str, bool)> = None;
    for name in TURN_MARKS {
        let Some(value) = fields.remove(name) else { continue };
        let flag = match (&value, value.as_f64()) {
            (Value::Bool(flag), _) => *flag,
            (_, Some(weight)) if weight == 0.0 || weight == 1.0 => weight == 1.0,
            _ => {
                let value = printable(&value.to_string(), 40);
                let reason = format!("has {name:?} {value}, and a turn is learned as a whole or not at all");
                return Err((reason, "write 0 or 1, or false or true".into()));
            }
        };
        if let Some((other, _)) = found.filter(|(_, before)| *before != flag) {
            let reason = format!("states by {other:?} and by {name:?} the opposite of whether it is learned");
            return Err((reason, "keep one of the two".into()));
        }
        found = Some((name, flag));
    }
    if let Some((name, true)) = found.filter(|_| role != ASSISTANT) {
        let reason = format!(
            "is of the role {:?} and is to be learned ({name:?}), and turns of the assistant alone are",
            printable(role, 40)
        );
        return Err((reason, "remove the field; data.loss_on = \"all\" learns every token".into()));
    }
    Ok(found.is_none_or(|(_, flag)| flag))
}

/// Refuses other names of marks: a turn would be learned that is not to be, or the other way round.
fn refuse_marks(fields: &Map<String, Value>) -> Result<(), Wrong> {
    match OTHER_MARKS.iter().find(|name| fields.contains_key(**name)) {
        None => Ok(()),
        Some(name) => {
            let fix = "mark the turn with \"train\": true or false, or remove the field";
            Err((format!("has {name:?}, which seems to state whether it is learned"), fix.into()))
        }
    }
}

/// The names of a message's fields that a chat template may read or not.
pub(super) fn further_fields(message: &ChatMessage) -> impl Iterator<Item = &str> {
    let is_further = |(name, value): &(&String, &Value)| *name != "name" && !is_nothing(value);
    message.more.iter().filter(is_further).map(|(name, _)| name.as_str())
}

fn refuse_media(content: Option<&Value>) -> Result<(), Wrong> {
    let parts = content.and_then(Value::as_array).into_iter().flatten();
    let marks = || TURN_MARKS.iter().chain(&PARTIAL).chain(&OTHER_MARKS);
    for part in parts.clone().filter_map(Value::as_object) {
        if let Some(name) = marks().find(|name| part.get(**name).is_some_and(|value| !value.is_null())) {
            let fix = "divide the turn, or mark it as a whole: \"train\": true or false";
            return Err((
                format!("has {name:?} in a part, and a turn is learned as a whole or not at all"),
                fix.into(),
            ));
        }
    }
    let mut kinds = parts.filter_map(|part| part.get("type").and_then(Value::as_str));
    match kinds.find(|kind| MEDIA.contains(kind)) {
        None => Ok(()),
        Some(kind) => {
            let fix = "remove the part, or leave the record out: models read texts alone";
            Err((format!("has a part of the type {kind:?}"), fix.into()))
        }
    }
}
