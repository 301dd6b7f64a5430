//! Prompts: those of the command line, or the rows of a file; and the ids that the model reads.
//!
//! Defines [`RowOptions`], [`Row`] and [`Reader`], which makes ids of them. Called before weights are read.

use clap::Args;
use model_center::file::{printable, read_text};
use model_center::model::TextModel;
use model_center::tokenizer::{ChatMessage, ChatRequest, ChatTemplate, TemplateSlot, Tokenizer};
use model_center::{Error, Result};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// Rows of prompts are a few kilobytes each, and their texts are written behind them.
const MAX_BYTES: u64 = 256 << 20;
/// What stands for a prompt in a template.
const BLANK: &str = "{prompt}";
/// Names under which a row has its prompt as text, unless a column is named.
const TEXTS: [&str; 2] = ["prompt", "input"];
const IDS: &str = "input_ids";
const MESSAGES: &str = "messages";

/// What is read.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "What is read")]
pub struct RowOptions {
    /// A prompt; may be repeated.
    #[arg(long, value_name = "TEXT", conflicts_with = "input")]
    pub prompt: Vec<String>,
    /// File of rows in JSONL: "prompt" or "input" is a text, "input_ids" a list of ids, "messages" a conversation of
    /// "role" and "content". Whatever else they have is kept.
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Name of the text in the rows.
    #[arg(long, value_name = "NAME", requires = "input")]
    pub column: Option<String>,
    /// Text around each prompt, which stands in the place of the first {prompt}: "Q: {prompt} A:".
    #[arg(long, value_name = "TEXT")]
    pub template: Option<String>,
    /// Prompts are what a user says, put into the model's chat template; without --prompt and --input, talk.
    #[arg(long)]
    pub chat: bool,
    /// What the system says at the beginning of conversations.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Read names of special tokens in prompts, such as <extra_id_0>, as these tokens; never in conversations.
    #[arg(long, conflicts_with = "chat")]
    pub special_tokens: bool,
}

/// What a row says.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// A text.
    Text(String),
    /// Tokens.
    Ids(Vec<u32>),
    /// A conversation.
    Messages(Vec<ChatMessage>),
}

/// A prompt.
#[derive(Debug, Clone)]
pub struct Row {
    /// Where it stands.
    pub place: String,
    /// What is kept of it.
    pub object: Map<String, Value>,
    /// The prompt itself.
    pub said: Said,
}

impl RowOptions {
    /// Read all prompts.
    ///
    /// # Errors
    /// No prompt; a file that cannot be read; a line that is no row; options without effect.
    pub fn rows(&self) -> Result<Vec<Row>> {
        if let Some(template) = self.template.as_ref().filter(|template| !template.contains(BLANK)) {
            let reason = format!("{:?} has no {BLANK}", printable(template, 80));
            return Err(Error::argument("--template", reason, format!("write {BLANK} where prompts are to stand")));
        }
        let rows = match &self.input {
            Some(path) => self.rows_of(path)?,
            None => self.prompt.iter().enumerate().map(|(number, text)| row_of_prompt(number, text)).collect(),
        };
        let has = |is: fn(&Said) -> bool| rows.iter().any(|row| is(&row.said));
        let (texts, talks) = (has(|said| matches!(said, Said::Text(_))), has(|said| matches!(said, Said::Messages(_))));
        let unused = match () {
            () if self.template.is_some() && !texts => Some(("--template", "no prompt is a text")),
            () if self.special_tokens && !texts => Some(("--special-tokens", "no prompt is a text")),
            () if self.chat && !rows.is_empty() && !texts => Some(("--chat", "no prompt is a text")),
            () if self.system.is_some() && !self.chat && !talks => Some(("--system", "there is no conversation")),
            () => None,
        };
        match unused {
            Some((name, reason)) => Err(Error::argument(name, format!("it has no effect: {reason}"), "leave it out")),
            None => Ok(rows),
        }
    }

    fn rows_of(&self, path: &Path) -> Result<Vec<Row>> {
        let text = read_text(path, MAX_BYTES).map_err(|error| match error {
            // A file of rows is no model.
            Error::Model { place, reason, .. } => {
                Error::data(place, reason, "give a file of UTF-8 text, in parts if it is large")
            }
            other => other,
        })?;
        let lines = text.trim_start_matches('\u{FEFF}').lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let rows = lines.map(|(number, line)| self.row_of(format!("{}:{}", path.display(), number + 1), line));
        let rows = rows.collect::<Result<Vec<Row>>>()?;
        match rows.is_empty() {
            false => Ok(rows),
            true => Err(Error::data(path.display().to_string(), "there is no line", "write one row per line")),
        }
    }

    fn row_of(&self, place: String, line: &str) -> Result<Row> {
        let object = serde_json::from_str::<Map<String, Value>>(line).map_err(|error| {
            // Its own number of the line is 1, for a line is all that it sees.
            let text = error.to_string();
            let reason = printable(text.split(" at line ").next().unwrap_or_default(), 200);
            let place = format!("{place}:{}", error.column().max(1));
            Error::data(place, reason, "write one JSON object per line, such as {\"prompt\": \"...\"}")
        })?;
        let refuse = |reason: String, fix: &str| Err(Error::data(place.clone(), reason, fix));
        if let Some(name) = super::sink::WRITTEN.iter().find(|name| object.contains_key(**name)) {
            return refuse(format!("the row has a field {name:?}, which is written here"), "rename it");
        }
        let texts: Vec<&str> = self.column.as_deref().map_or(TEXTS.to_vec(), |column| vec![column]);
        // Somebody who names a column means that one.
        let others = [IDS, MESSAGES].into_iter().filter(|_| self.column.is_none());
        let known = texts.iter().copied().chain(others);
        let names: Vec<&str> = known.filter(|name| object.get(*name).is_some_and(|value| !value.is_null())).collect();
        let [name] = names[..] else {
            let reason = match (names.is_empty(), &self.column) {
                (true, Some(column)) => format!("there is no prompt: no {column:?}, which --column names"),
                (true, None) => format!("there is no prompt: none of {}, {IDS}, {MESSAGES}", texts.join(", ")),
                (false, _) => format!("there are several prompts: {}", names.join(", ")),
            };
            let fix = match &self.column {
                Some(_) => "correct the row, or --column",
                None => "give one of them, or name the text with --column",
            };
            return refuse(reason, fix);
        };
        let value = &object[name];
        let said = match (name, value) {
            _ if !texts.contains(&name) && name == IDS => ids_of(value).map(Said::Ids),
            _ if !texts.contains(&name) => serde_json::from_value(value.clone()).ok().map(Said::Messages),
            (_, Value::String(text)) => Some(Said::Text(text.clone())),
            _ => None,
        };
        match said {
            Some(said) => Ok(Row { place, object, said }),
            None => {
                let want = match name {
                    IDS => "a list of numbers of tokens",
                    MESSAGES => "a list of objects with \"role\" and \"content\"",
                    _ => "a text",
                };
                refuse(format!("{name:?} is not {want}"), "correct the row")
            }
        }
    }
}

fn row_of_prompt(number: usize, text: &str) -> Row {
    let object = Map::from_iter([(TEXTS[0].to_owned(), Value::from(text))]);
    Row { place: format!("--prompt, number {}", number + 1), object, said: Said::Text(text.to_owned()) }
}

fn ids_of(value: &Value) -> Option<Vec<u32>> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    value.as_array()?.iter().map(id).collect()
}

/// Makes ids of what rows say.
pub struct Reader<'a> {
    /// How prompts are read.
    pub options: &'a RowOptions,
    /// The model's tokenizer, which takes the names of special tokens for text.
    pub tokenizer: Option<&'a dyn Tokenizer>,
    /// The same with names of special tokens read as tokens.
    pub with_specials: Option<&'a dyn Tokenizer>,
    /// The model's chat template.
    pub chat: Option<&'a ChatTemplate>,
    /// The directory of all these.
    pub directory: &'a Path,
}

impl Reader<'_> {
    /// The ids of a row.
    ///
    /// # Errors
    /// A text without a tokenizer, a conversation without a template; what these refuse; a row that the model cannot
    /// read or go on from. All name the row.
    pub fn ids(&self, row: &Row, model: &dyn TextModel) -> Result<Vec<u32>> {
        let ids = match &row.said {
            Said::Ids(ids) => ids.clone(),
            Said::Text(text) => {
                let text = match &self.options.template {
                    Some(template) => template.replacen(BLANK, text, 1),
                    None => text.clone(),
                };
                match self.options.chat {
                    true => self.conversation(&[ChatMessage::new("user", text)]).map_err(|error| at(row, error))?,
                    false => self.text(&text, model.info().generates_targets)?,
                }
            }
            Said::Messages(messages) => self.conversation(messages).map_err(|error| at(row, error))?,
        };
        check(&ids, row, model)?;
        Ok(ids)
    }

    /// A text as the model's template has it; what a decoder goes on from has no end.
    fn text(&self, text: &str, generates_targets: bool) -> Result<Vec<u32>> {
        let tokenizer = self.with_specials.or(self.tokenizer).ok_or_else(|| no_tokenizer(self.directory))?;
        if generates_targets {
            return Ok(tokenizer.encode(text, None, None)?.input_ids);
        }
        let pieces = tokenizer.template(false).pieces.iter();
        let front =
            pieces.take_while(|piece| !matches!(piece, TemplateSlot::First { .. })).filter_map(|piece| match piece {
                TemplateSlot::Special { id, .. } => Some(*id),
                TemplateSlot::First { .. } | TemplateSlot::Second { .. } => None,
            });
        Ok(front.chain(tokenizer.tokenize(&[text])?.concat()).collect())
    }

    /// A conversation with what asks for an answer at its end.
    ///
    /// # Errors
    /// No tokenizer or template; what the template refuses; two messages of the system.
    pub fn conversation(&self, messages: &[ChatMessage]) -> Result<Vec<u32>> {
        let tokenizer = self.tokenizer.ok_or_else(|| no_tokenizer(self.directory))?;
        let chat = self.chat.ok_or_else(|| {
            let reason = "the model has no chat template, so that it is not known how it reads conversations";
            let fix = "use a model that was trained on conversations, or give plain prompts, perhaps with --template";
            Error::model(self.directory.display().to_string(), reason, fix)
        })?;
        let mut messages = messages.to_vec();
        if let Some(system) = &self.options.system {
            if messages.first().is_some_and(|first| first.role == "system") {
                let fix = "leave --system or the message out";
                return Err(Error::data("chat, message 1", "it is the system's, and there is --system", fix));
            }
            messages.insert(0, ChatMessage::new("system", system.clone()));
        }
        let request = ChatRequest { add_generation_prompt: true, ..ChatRequest::new(&messages) };
        chat.encode(tokenizer, &request)
    }
}

fn no_tokenizer(directory: &Path) -> Error {
    let reason = "prompts are texts, and the directory has no tokenizer";
    Error::model(
        directory.display().to_string(),
        reason,
        "copy the tokenizer's files into it, or give input_ids in rows of --input",
    )
}

/// What is wrong with a conversation is wrong in a row.
fn at(row: &Row, error: Error) -> Error {
    match error {
        Error::Data { place, reason, fix } => Error::data(format!("{}, {place}", row.place), reason, fix),
        other => other,
    }
}

/// Whether a model can read ids and go on from them.
fn check(ids: &[u32], row: &Row, model: &dyn TextModel) -> Result<()> {
    let refuse = |reason: String, fix: &str| Err(Error::data(row.place.clone(), reason, fix));
    if ids.is_empty() {
        let fix = "give at least one token, such as the one that begins texts";
        return refuse("the prompt has no token".into(), fix);
    }
    if let Some(id) = ids.iter().find(|id| **id as usize >= model.info().vocab_size) {
        return refuse(
            format!("token {id}, and the model has {}", model.info().vocab_size),
            "use the model's own tokens",
        );
    }
    // A decoder has to have room behind them.
    let most = if model.info().generates_targets {
        model.info().max_length
    } else {
        model.info().max_length.saturating_sub(1)
    };
    match ids.len() > most {
        true => refuse(format!("the prompt has {} tokens, the model takes {most} at most", ids.len()), "shorten it"),
        false => Ok(()),
    }
}
