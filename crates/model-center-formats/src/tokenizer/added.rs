//! Tokens that a directory adds to a vocabulary, and which of all tokens are special.
//!
//! Defines [`AddedToken`], read by [`super::files::Settings`], and the `added_tokens` entries it becomes. A token is
//! special if any of these files declares it special: otherwise user text could spell it.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::document::added_token;
use super::files::{Settings, read_object, spelling};
use crate::{Error, Result};

/// The flags of an entry that determine how a text is searched for it.
const FLAGS: [&str; 4] = ["single_word", "lstrip", "rstrip", "normalized"];

/// A token declared outside the vocabulary file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AddedToken {
    pub(super) text: String,
    pub(super) id: u32,
    /// `special` and [`FLAGS`] from the tokenizer's configuration.
    flags: Map<String, Value>,
}

impl AddedToken {
    fn is_special(&self) -> bool {
        self.flags.get("special") == Some(&Value::Bool(true))
    }
}

/// The tokens of `added_tokens.json` and of the configuration's `added_tokens_decoder`, in the order of ids.
pub(super) fn read(directory: &Path, config: &Map<String, Value>) -> Result<Vec<AddedToken>> {
    const NAME: &str = "added_tokens.json";
    let mut words = Vec::new();
    for (text, id) in read_object(directory, NAME)?.unwrap_or_default() {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| {
            let place = directory.join(NAME).display().to_string();
            Error::model(place, format!("{text:?} has the id {id}"), "ids are whole numbers")
        })?;
        words.push(AddedToken { text, id, flags: Map::new() });
    }
    // Newer directories list their added tokens in the configuration alone, and only there is what they are for.
    let mut known: HashMap<String, usize> =
        words.iter().enumerate().map(|(at, word)| (word.text.clone(), at)).collect();
    for (id, token) in config.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flatten() {
        let Some((id, text)) = id.parse().ok().zip(token.get("content").and_then(Value::as_str)) else { continue };
        let flags = FLAGS.iter().chain(&["special"]);
        let flags = flags.filter_map(|flag| Some(((*flag).to_owned(), token.get(*flag)?.as_bool()?.into()))).collect();
        match known.get(text) {
            Some(at) => words[*at].flags = flags,
            None => {
                known.insert(text.to_owned(), words.len());
                words.push(AddedToken { text: text.to_owned(), id, flags });
            }
        }
    }
    words.sort_by_key(|word| word.id);
    Ok(words)
}

impl Settings {
    /// The tokens that files outside the vocabulary make special: declared so, used as one of the named special tokens,
    /// or listed among the additional ones.
    pub(super) fn special_names(&self) -> HashSet<&str> {
        let mut names: HashSet<&str> = HashSet::new();
        for (key, value) in self.config.iter().chain(&self.names) {
            match key.as_str() {
                "additional_special_tokens" | "extra_special_tokens" | "model_specific_special_tokens" => {
                    let items = value.as_array().into_iter().flatten();
                    // Newer directories give each additional token, such as an image token, its own name.
                    let named = value.as_object().into_iter().flat_map(Map::values);
                    names.extend(items.chain(named).filter_map(spelling));
                }
                key if key.ends_with("_token") => names.extend(spelling(value)),
                _ => {}
            }
        }
        names.extend(self.added.iter().filter(|word| word.is_special()).map(|word| word.text.as_str()));
        names.remove("");
        names
    }

    /// Calls entries of `added_tokens` special that are.
    pub(super) fn mark_special(&self, entries: &mut [Value]) {
        let names = self.special_names();
        let is_named = |entry: &Value| entry.get("content").and_then(Value::as_str).is_some_and(|c| names.contains(c));
        for entry in entries.iter_mut().filter(|entry| is_named(entry)) {
            entry["special"] = json!(true);
        }
    }

    /// The entries of `added_tokens` by id: `own` ones with the directory's flags, tokens that the directory adds, and
    /// special tokens of the vocabulary, whose ids `find` looks up.
    pub(super) fn added_entries(&self, own: Vec<Value>, find: impl Fn(&str) -> Option<usize>) -> Vec<Value> {
        let names = self.special_names();
        let mut entries = own;
        let place = |entry: (usize, &Value)| Some((entry.1.get("content")?.as_str()?.to_owned(), entry.0));
        let mut known: HashMap<String, usize> = entries.iter().enumerate().filter_map(place).collect();
        for word in &self.added {
            let at = *known.entry(word.text.clone()).or_insert_with(|| {
                entries.push(added_token(&word.text, word.id as usize, false));
                entries.len() - 1
            });
            for flag in FLAGS {
                if let Some(value) = word.flags.get(flag) {
                    entries[at][flag] = value.clone();
                }
            }
        }
        for name in names.iter().filter(|name| !known.contains_key(**name)) {
            entries.extend(find(name).map(|id| added_token(name, id, true)));
        }
        self.mark_special(&mut entries);
        // The library gives ids in the order of this list.
        entries.sort_by_key(|entry| entry["id"].as_u64());
        entries
    }
}
