//! Chat templates of a model directory.
//!
//! Defines [`read`], called by [`super::ChatTemplate::from_directory`], and [`further`], also called where a model's
//! directory is copied.

use std::path::Path;

use serde_json::{Map, Value};

use super::DEFAULT;
use crate::formats::gguf::is_gguf;
use crate::tokenizer::{
    files::{Settings, spelling},
    gguf::tokenizer_config,
};
use crate::{Error, Result};
use model_center_base::file::{printable, read_text, resolve_inside, unreadable};

const FILE: &str = "chat_template.jinja";
const FURTHER: &str = "additional_chat_templates";
const ENDING: &str = ".jinja";
const CONFIG: &str = "tokenizer_config.json";
/// The longest templates in use have some 20 kB.
const MAX_BYTES: usize = 1 << 20;
const MAX_TEMPLATES: usize = 32;
/// Names of special tokens that templates see.
const TOKENS: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

pub(super) struct Source {
    pub(super) name: String,
    /// File, and what in it.
    pub(super) place: String,
    pub(super) text: String,
}

pub(super) struct Found {
    pub(super) templates: Vec<Source>,
    pub(super) special_tokens: Map<String, Value>,
}

/// Read the templates of a directory and the tokens that they see.
pub(super) fn read(directory: &Path) -> Result<Found> {
    let (settings, mut templates) = match is_gguf(directory) {
        true => (Settings { config: tokenizer_config(directory)?, ..Settings::default() }, Vec::new()),
        false => (Settings::of_directory(directory)?, files(directory)?),
    };
    if templates.is_empty() {
        templates = of_config(&directory.join(CONFIG).display().to_string(), settings.config.get("chat_template"))?;
    }
    if templates.len() > MAX_TEMPLATES {
        let reason = format!("there are {} chat templates", templates.len());
        return Err(Error::model(directory.display().to_string(), reason, format!("leave at most {MAX_TEMPLATES}")));
    }
    let token = |key: &&str| Some(((*key).to_owned(), Value::String(settings.special(key)?.to_owned())));
    let mut special_tokens: Map<String, Value> = TOKENS.iter().filter_map(token).collect();
    // Templates see the tokens of one model by their names, too, such as `image_token`.
    let own = settings.config.iter().filter(|(name, _)| name.ends_with("_token"));
    let tables = ["extra_special_tokens", "model_specific_special_tokens"];
    let named = tables.iter().filter_map(|key| settings.config.get(*key)?.as_object()).flatten();
    for (name, value) in named.chain(own) {
        if let Some(spelled) = spelling(value) {
            special_tokens.entry(name.as_str()).or_insert_with(|| spelled.into());
        }
    }
    Ok(Found { templates, special_tokens })
}

/// Refuses a text that is too long to be a template.
pub(super) fn check_size(place: &str, text: &str) -> Result<()> {
    if text.len() <= MAX_BYTES {
        return Ok(());
    }
    let reason = format!("the chat template has {} bytes, the most that is read is {MAX_BYTES}", text.len());
    Err(Error::model(place, reason, "fetch the file again; templates have a few thousand bytes"))
}

/// `chat_template.jinja`, and the templates with names beside it.
fn files(directory: &Path) -> Result<Vec<Source>> {
    let mut paths = Vec::new();
    if directory.join(FILE).symlink_metadata().is_ok() {
        paths.push((DEFAULT.to_owned(), FILE.to_owned()));
    }
    paths.extend(further(directory)?);
    let read = |(name, path): (String, String)| {
        resolve_inside(directory, &path)?;
        let path = directory.join(path);
        Ok(Source { name, place: path.display().to_string(), text: read_text(&path, MAX_BYTES as u64)? })
    };
    paths.into_iter().map(read).collect()
}

/// The named templates of a directory: each name with its path in the directory, ordered by name.
pub(crate) fn further(directory: &Path) -> Result<Vec<(String, String)>> {
    let path = directory.join(FURTHER);
    let mut named = Vec::new();
    if !path.is_dir() {
        return Ok(named);
    }
    resolve_inside(directory, FURTHER)?;
    for entry in std::fs::read_dir(&path).map_err(|error| unreadable(&path, error))? {
        let name = entry.map_err(|error| unreadable(&path, error))?.file_name();
        let Some(stem) = name.to_str().and_then(|name| name.strip_suffix(ENDING)) else { continue };
        if named.len() == MAX_TEMPLATES {
            let reason = format!("there are more than {MAX_TEMPLATES} chat templates");
            return Err(Error::model(path.display().to_string(), reason, format!("leave at most {MAX_TEMPLATES}")));
        }
        let place = format!("{FURTHER}/{stem}{ENDING}");
        resolve_inside(directory, &place)?;
        named.push((stem.to_owned(), place));
    }
    named.sort();
    Ok(named)
}

/// `chat_template` of the configuration: one template, or a list of `{"name", "template"}`.
fn of_config(config: &str, value: Option<&Value>) -> Result<Vec<Source>> {
    let place = |name: &str| format!("{config}, chat_template {}", printable(name, 40));
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(text)) => {
            Ok(vec![Source { name: DEFAULT.into(), place: format!("{config}, chat_template"), text: text.clone() }])
        }
        Some(Value::Array(list)) => list
            .iter()
            .map(|entry| {
                let text = |key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
                match (text("name"), text("template")) {
                    (Some(name), Some(text)) => Ok(Source { place: place(&name), name, text }),
                    _ => Err(Error::model(
                        place(""),
                        "an entry of the list lacks its name or its template",
                        "write each as {\"name\": ..., \"template\": ...}",
                    )),
                }
            })
            .collect(),
        Some(_) => Err(Error::model(place(""), "it is neither a text nor a list", "fetch the file again")),
    }
}
