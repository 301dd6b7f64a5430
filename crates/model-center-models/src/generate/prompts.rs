//! Prompts and the rows of a JSONL file that has them.

use super::options::Generated;
use crate::{Error, Result};
use model_center_base::file::is_output_name;
use model_center_formats::io::json_lines::read_json_lines;
use model_center_formats::tokenizer::ChatMessage;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Rows of prompts are a few kilobytes each.
const MAX_BYTES: u64 = 256 << 20;
/// Fields with the text of a prompt, unless a column is named.
const TEXTS: [&str; 2] = ["prompt", "input"];
const IDS: &str = "input_ids";
const MESSAGES: &str = "messages";
/// Fields that [`PromptRow::result`] adds to a row.
pub const RESULT_FIELDS: [&str; 3] = ["generated_text", "generated_ids", "generated"];

/// A prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// A text.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
    /// A conversation.
    Messages(Vec<ChatMessage>),
}

/// A prompt with the row that it is in.
#[derive(Debug, Clone)]
pub struct PromptRow {
    /// File and line, or another place for errors.
    pub place: String,
    /// All fields of the row.
    pub fields: Map<String, Value>,
    /// The prompt.
    pub prompt: Prompt,
}

impl PromptRow {
    /// A row of a text only.
    pub fn from_text(place: String, text: &str) -> Self {
        let fields = Map::from_iter([(TEXTS[0].to_owned(), Value::from(text))]);
        PromptRow { place, fields, prompt: Prompt::Text(text.to_owned()) }
    }

    /// The row with its generated sequences: the text of the best, its ids if there is no text or the prompt has ids,
    /// and all sequences if there are several.
    pub fn result(&self, texts: &[Generated], has_text: bool) -> Map<String, Value> {
        let [text_name, ids_name, all_name] = RESULT_FIELDS;
        let mut fields = self.fields.clone();
        if let Some(best) = texts.first() {
            if has_text {
                fields.insert(text_name.to_owned(), best.text.as_str().into());
            }
            if !has_text || matches!(self.prompt, Prompt::Tokens(_)) {
                fields.insert(ids_name.to_owned(), best.tokens.clone().into());
            }
        }
        if texts.len() > 1 {
            let all = texts.iter().map(|text| {
                let mut one = json!({"ids": text.tokens, "ended_by": text.finish_reason.name()});
                if has_text {
                    one["text"] = text.text.as_str().into();
                }
                if let Some(score) = text.score {
                    // The shortest decimal of the f32.
                    one["score"] = score.to_string().parse::<f64>().unwrap_or(f64::from(score)).into();
                }
                one
            });
            fields.insert(all_name.to_owned(), all.collect());
        }
        fields
    }

    fn of_fields(place: String, fields: Map<String, Value>, column: Option<&str>) -> Result<Self> {
        let refuse = |reason: String, fix: &str| Err(Error::data(place.clone(), reason, fix));
        if let Some(name) = RESULT_FIELDS.iter().find(|name| fields.contains_key(**name)) {
            return refuse(format!("the row has a field {name:?}, which is an output"), "rename it");
        }
        let texts: Vec<&str> = column.map_or(TEXTS.to_vec(), |column| vec![column]);
        // A named column excludes the other fields.
        let others = [IDS, MESSAGES].into_iter().filter(|_| column.is_none());
        let known = texts.iter().copied().chain(others);
        let names: Vec<&str> = known.filter(|name| fields.get(*name).is_some_and(|value| !value.is_null())).collect();
        let [name] = names[..] else {
            let reason = match (names.is_empty(), column) {
                (true, Some(column)) => format!("there is no prompt: no {column:?}, which `column` names"),
                (true, None) => format!("there is no prompt: none of {}, {IDS}, {MESSAGES}", texts.join(", ")),
                (false, _) => format!("there are several prompts: {}", names.join(", ")),
            };
            let fix = match column {
                Some(_) => "correct the row, or `column`",
                None => "give one of them, or name the text with `column`",
            };
            return refuse(reason, fix);
        };
        let is_column = texts.contains(&name);
        let (prompt, want) = match (name, &fields[name]) {
            (IDS, value) if !is_column => (ids_of(value).map(Prompt::Tokens), "a list of numbers of tokens"),
            (MESSAGES, value) if !is_column => {
                let messages = serde_json::from_value(value.clone()).ok();
                (messages.map(Prompt::Messages), "a list of objects with \"role\" and \"content\"")
            }
            (_, value) => (value.as_str().map(|text| Prompt::Text(text.to_owned())), "a text"),
        };
        match prompt {
            Some(prompt) => Ok(PromptRow { place, fields, prompt }),
            None => refuse(format!("{name:?} is not {want}"), "correct the row"),
        }
    }
}

/// Read the rows of a JSONL file: `prompt` or `input` is a text, `input_ids` a list of ids, `messages` a conversation.
/// With `column`, the text is in this field.
///
/// # Errors
/// [`Error::Data`] with the line for a row without a prompt, [`Error::File`] for an unreadable file.
pub fn read_prompts(path: &Path, column: Option<&str>) -> Result<Vec<PromptRow>> {
    let lines = read_json_lines(path, MAX_BYTES, "{\"prompt\": \"...\"}")?;
    lines.into_iter().map(|(place, fields)| PromptRow::of_fields(place, fields, column)).collect()
}

/// Read the rows of a split of a data set, in the form of [`read_prompts`]: of all files `*.jsonl` in the directory
/// `data/split`, in the order of their names, or of the file `data/split.jsonl`.
///
/// # Errors
/// As [`read_prompts`]; a split that is not there, or has no files.
pub fn read_split(data: &Path, split: &str, column: Option<&str>) -> Result<Vec<PromptRow>> {
    if !is_output_name(split) {
        return Err(Error::argument("split", format!("{split:?} is not a name"), "give the name of a directory"));
    }
    let (directory, file) = (data.join(split), data.join(format!("{split}.jsonl")));
    if !directory.is_dir() {
        if !file.is_file() {
            let reason = format!("there is neither a directory {} nor a file {}", directory.display(), file.display());
            return Err(Error::argument("data", reason, "give the data set's directory, and its `split`"));
        }
        return read_prompts(&file, column);
    }
    let unreadable = |error| Error::file("read", &directory, error, "check the directory");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            files.push(path);
        }
    }
    if files.is_empty() {
        let reason = "the directory has no file *.jsonl";
        return Err(Error::data(directory.display().to_string(), reason, "write one row per line there"));
    }
    files.sort();
    let rows = files.iter().map(|file| read_prompts(file, column)).collect::<Result<Vec<_>>>()?;
    Ok(rows.concat())
}

fn ids_of(value: &Value) -> Option<Vec<u32>> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    value.as_array()?.iter().map(id).collect()
}
