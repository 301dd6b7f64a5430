//! Prompts, instructions and completions that are texts.
//!
//! Defines [`pair`]. As turns of a chat template, the user's is the instruction, a line break and its input, as
//! LLaMA-Factory's converter has it; a system text and earlier turns precede it. Otherwise the prompt is a text, for an
//! instruction with an input Alpaca's own.

use serde_json::Value;

use super::keys::tools;
use super::record::{RecordForm, RecordReading, SftColumns};
use super::sample::Sample;
use crate::Result;
use model_center_formats::io::record::Record;
use model_center_formats::tokenizer::ChatMessage;

/// Alpaca's prompt for an instruction, and for one with an input.
const ALPACA: &str = "Below is an instruction that describes a task. Write a response that appropriately completes the \
                      request.\n\n### Instruction:\n{instruction}\n\n### Response:";
const ALPACA_WITH_INPUT: &str = "Below is an instruction that describes a task, paired with an input that provides \
                                 further context. Write a response that appropriately completes the request.\n\n\
                                 ### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:";
/// The column of earlier turns.
pub(super) const HISTORY: &str = "history";

/// The prompt in a column with its completion.
pub(super) fn pair(
    record: &Record<'_>,
    (form, prompt): (RecordForm, &str),
    completion: &str,
    reading: &RecordReading<'_>,
) -> Result<Sample> {
    let instruction = record.text(prompt)?;
    with_prompt(record, (form, prompt), (instruction, completion), reading)
}

/// The same of a prompt without a column.
pub(super) fn with_prompt(
    record: &Record<'_>,
    (form, column): (RecordForm, &str),
    (prompt, completion): (&str, &str),
    reading: &RecordReading<'_>,
) -> Result<Sample> {
    let input = match input_column(form, column, reading.columns) {
        Some((name, true)) if record.has_value(name) => record.text(name)?,
        Some((name, true)) if !record.has(name) => record.text(name)?,
        Some((name, _)) => record.optional_text(name)?.unwrap_or_default(),
        None => "",
    };
    let (before, tools) = context(record, reading)?;
    let prompt = match (reading.as_chat, form) {
        (true, _) => [prompt, input].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n"),
        (false, RecordForm::Alpaca) => alpaca(prompt, input),
        (false, _) if input.is_empty() => prompt.to_owned(),
        (false, _) => {
            let name = input_column(form, column, reading.columns).map_or("input", |(name, _)| name);
            let reason = format!("the record has a text in {name:?} beside its prompt");
            let fix = "set data.as_chat = true, which joins the two, or write both into the prompt";
            return Err(record.error(name, reason, fix));
        }
    };
    Ok(Sample::Pair { input: prompt, output: completion.to_owned(), before, tools })
}

/// The column of an instruction's input, and whether the recipe names it.
pub(super) fn input_column<'n>(form: RecordForm, prompt: &str, names: &'n SftColumns) -> Option<(&'n str, bool)> {
    match (&names.input, form) {
        (Some(name), _) => Some((name, true)),
        (None, RecordForm::Alpaca) => Some(("input", false)),
        (None, RecordForm::InputOutput) => None,
        // Pairs and judged completions of Alpaca's records.
        (None, _) => (prompt == "instruction").then_some(("input", false)),
    }
}

fn alpaca(instruction: &str, input: &str) -> String {
    let format = if input.is_empty() { ALPACA } else { ALPACA_WITH_INPUT };
    // In one pass: an instruction may spell `{input}`.
    let parts = format.split('{').map(|part| match part.split_once('}') {
        Some(("instruction", rest)) => format!("{instruction}{rest}"),
        Some(("input", rest)) => format!("{input}{rest}"),
        _ => part.to_owned(),
    });
    parts.collect()
}

/// The messages before the prompt, and the tools. Both are for turns.
fn context(record: &Record<'_>, reading: &RecordReading<'_>) -> Result<(Vec<ChatMessage>, Option<Value>)> {
    let system = system(record, reading.columns)?;
    let history = history(record)?;
    let tools = tools(record)?;
    let column = [
        (system.is_some(), reading.columns.system.as_deref().unwrap_or("system")),
        (!history.is_empty(), HISTORY),
        (tools.is_some(), "tools"),
    ];
    if let Some((_, name)) = column.into_iter().find(|(is_there, _)| *is_there && !reading.as_chat) {
        let reason = format!("{name:?} has a value, and a prompt that is a text has no place for it");
        let fix = "set data.as_chat = true, or write it into the prompt and remove the column";
        return Err(record.error(name, reason, fix));
    }
    let system = system.map(|text| ChatMessage::new("system", text));
    let turns = history
        .into_iter()
        .flat_map(|[user, assistant]| [ChatMessage::new("user", user), ChatMessage::new("assistant", assistant)]);
    Ok((system.into_iter().chain(turns).collect(), tools))
}

/// The record's system text, if it has one.
pub(super) fn system<'r>(record: &'r Record<'_>, names: &SftColumns) -> Result<Option<&'r str>> {
    match &names.system {
        None => record.optional_text("system"),
        // Named and not there: the error states which columns there are.
        Some(name) if !record.has(name) => record.text(name).map(Some),
        Some(name) => record.optional_text(name),
    }
}

/// Earlier turns: a list of pairs of a prompt and its answer, or a text that spells one.
fn history(record: &Record<'_>) -> Result<Vec<[String; 2]>> {
    let wrong = || {
        let reason = format!("{HISTORY:?} is not a list of earlier turns");
        record.error(HISTORY, reason, "write [[\"a prompt\", \"its answer\"], …]")
    };
    let spelled = |text: &str| match text.trim().is_empty() {
        true => Ok(Value::Null),
        false => serde_json::from_str(text).map_err(|_| wrong()),
    };
    let value = match record.json(HISTORY) {
        Some(Value::String(text)) => spelled(text)?,
        Some(value) => value.clone(),
        None => spelled(record.optional_text(HISTORY)?.unwrap_or_default())?,
    };
    let turns = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Array(turns) => turns,
        _ => return Err(wrong()),
    };
    let turn = |turn: Value| match turn {
        Value::Array(mut texts) => match (texts.pop(), texts.pop(), texts.is_empty()) {
            (Some(Value::String(answer)), Some(Value::String(prompt)), true) => Ok([prompt, answer]),
            _ => Err(wrong()),
        },
        _ => Err(wrong()),
    };
    turns.into_iter().map(turn).collect()
}
