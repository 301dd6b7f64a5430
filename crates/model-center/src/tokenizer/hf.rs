//! The tokenizer of a Hugging Face folder.
//!
//! Defines [`HfTokenizer`], a guarded front of the `tokenizers` crate: sizes are checked before reading, a
//! panic inside the crate becomes an error, stored padding and truncation are dropped, and text can never turn
//! into control tokens unless asked for. Built by the finetune program from the model folder.

use std::fmt;
use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};
use tokenizers::{Encoding as RawEncoding, Token};

use super::guard::guard;
use super::{ControlToken, Piece, SpecialIds, Template, Tokenizer, VocabOptions, vocab};
use crate::file::{open_regular, resolve_inside, unreadable};
use crate::{Error, Result};

/// The largest vocabularies in use (256 thousand tokens) take about 35 MB as `tokenizer.json`.
const MAX_FILE_BYTES: u64 = 128 << 20;
/// WordPiece work grows with the square of this number, so a hostile file must not choose it freely. BERT uses 100.
const MAX_WORD_CHARACTERS: u64 = 256;
/// Stand-ins for the texts when the template is read off the post-processor; no vocabulary is this large.
const FIRST: u32 = u32::MAX - 1;
const SECOND: u32 = u32::MAX - 2;

/// What happens to `[SEP]` or `[MASK]` written inside a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextSpecials {
    /// It is text like any other: records from outside cannot inject control tokens.
    #[default]
    AsText,
    /// It becomes the special token, as in transformers. Needed to fill in blanks.
    AsTokens,
}

/// A tokenizer read from `tokenizer.json`, or from a BERT `vocab.txt`.
///
/// Settings in `tokenizer_config.json` (`do_lower_case`, `strip_accents`, `tokenize_chinese_chars`) win over those stored in
/// `tokenizer.json`, as in transformers. Stored padding and truncation are ignored.
pub struct HfTokenizer {
    inner: tokenizers::Tokenizer,
    single: Template,
    pair: Template,
    special: SpecialIds,
    vocab_size: usize,
    place: String,
}

impl HfTokenizer {
    /// Reads the tokenizer of a model folder: `tokenizer.json` if it is there, otherwise `vocab.txt`.
    ///
    /// Errors: neither file present, a file too large, broken or inconsistent, no regular file, or a link that leaves the
    /// folder.
    pub fn from_folder(folder: impl AsRef<Path>) -> Result<HfTokenizer> {
        let folder = folder.as_ref();
        let config = read_object(folder, "tokenizer_config.json")?.unwrap_or_default();
        let names = read_object(folder, "special_tokens_map.json")?.unwrap_or_default();
        let json = folder.join("tokenizer.json");
        let text = folder.join("vocab.txt");
        let (place, mut document) = if let Some(bytes) = read_bounded(folder, "tokenizer.json")? {
            let document = serde_json::from_slice::<Value>(&bytes).map_err(|error| broken_json(&json, &error))?;
            (json.display().to_string(), document)
        } else if let Some(bytes) = read_bounded(folder, "vocab.txt")? {
            let place = text.display().to_string();
            let added = added_tokens(folder)?;
            let document = vocab::document(&place, &bytes, &vocab_options(&config, &names), &added)?;
            (place, document)
        } else {
            return Err(Error::model(
                folder.display().to_string(),
                "the folder has neither tokenizer.json nor vocab.txt",
                "point to a Hugging Face model folder, or copy one of the two files into it",
            ));
        };
        apply_config(&mut document, &config);
        HfTokenizer::from_document(place, document, &config, &names)
    }

    /// Chooses what special tokens written inside a text mean; the default is [`TextSpecials::AsText`].
    #[must_use]
    pub fn with_text_specials(mut self, choice: TextSpecials) -> HfTokenizer {
        self.inner.set_encode_special_tokens(choice == TextSpecials::AsText);
        self
    }

    /// Whether a word embedding of so many rows has one for each word.
    ///
    /// # Errors
    /// [`Error::Model`] if it has fewer.
    pub fn require_rows(&self, rows: usize) -> Result<()> {
        let words = self.vocab_size;
        if words <= rows {
            return Ok(());
        }
        let reason = format!("the vocabulary has {words} entries, the word embedding {rows} rows");
        Err(Error::model(&self.place, reason, "use the tokenizer files that belong to these weights"))
    }

    fn from_document(
        place: String,
        mut document: Value,
        config: &Map<String, Value>,
        names: &Map<String, Value>,
    ) -> Result<HfTokenizer> {
        let root = document.as_object_mut().ok_or_else(|| {
            Error::model(&place, "the file is not a JSON object", "fetch the file again; tokenizer.json starts with {")
        })?;
        root.insert("truncation".into(), Value::Null);
        root.insert("padding".into(), Value::Null);
        if let Some(limit) = root.get("model").and_then(|model| model.get("max_input_chars_per_word"))
            && limit.as_u64().is_none_or(|limit| limit > MAX_WORD_CHARACTERS)
        {
            return Err(Error::model(
                &place,
                format!("model.max_input_chars_per_word is {limit}"),
                format!("use a whole number up to {MAX_WORD_CHARACTERS}; BERT uses 100"),
            ));
        }
        let declared = declared_tokens(root);
        let bytes = serde_json::to_vec(&document)
            .map_err(|error| Error::model(&place, error.to_string(), "fetch the file again"))?;
        let mut inner = guard(&place, "load", || tokenizers::Tokenizer::from_bytes(&bytes))?;
        inner.set_encode_special_tokens(true);
        for (token, id) in declared {
            if inner.token_to_id(&token) != Some(id) {
                return Err(Error::model(
                    &place,
                    format!(
                        "added token {token:?} is declared with id {id}, which its place in the vocabulary contradicts"
                    ),
                    "fetch the file again; added tokens continue the ids of the vocabulary without gaps",
                ));
            }
        }
        let single = read_template(&place, &inner, false)?;
        let pair = read_template(&place, &inner, true)?;
        let largest = inner.get_vocab(true).into_values().max();
        let vocab_size = largest.map_or(0, |id| id as usize + 1);
        let special = special_ids(&inner, config, names);
        Ok(HfTokenizer { inner, single, pair, special, vocab_size, place })
    }
}

impl Tokenizer for HfTokenizer {
    fn tokenize(&self, texts: &[&str]) -> Result<Vec<Vec<u32>>> {
        let encodings = guard(&self.place, "tokenize a text", || match texts {
            // The crate's batch call hands work to a thread pool, which costs more than one or two texts do.
            [] | [_] | [_, _] => texts.iter().map(|text| self.inner.encode_fast(*text, false)).collect(),
            _ => self.inner.encode_batch_fast(texts.to_vec(), false),
        })?;
        Ok(encodings.iter().map(|encoding| encoding.get_ids().to_vec()).collect())
    }

    fn template(&self, pair: bool) -> &Template {
        if pair { &self.pair } else { &self.single }
    }

    fn special_ids(&self) -> SpecialIds {
        self.special
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        guard(&self.place, "decode ids", || self.inner.decode(ids, skip_special))
    }

    fn control_tokens(&self) -> Vec<ControlToken> {
        let added = self.inner.get_added_tokens_decoder().into_iter();
        let mut tokens: Vec<ControlToken> = added
            .filter(|(_, token)| token.special && !token.content.is_empty())
            .map(|(id, token)| ControlToken {
                text: token.content,
                id,
                takes_space_before: token.lstrip,
                takes_space_behind: token.rstrip,
            })
            .collect();
        tokens.sort_by_key(|token| token.id);
        tokens
    }

    fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }
}

impl fmt::Debug for HfTokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HfTokenizer")
            .field("place", &self.place)
            .field("vocab_size", &self.vocab_size)
            .field("special", &self.special)
            .finish_non_exhaustive()
    }
}

/// Reads the template by letting the post-processor surround one-token stand-ins for the texts.
fn read_template(place: &str, inner: &tokenizers::Tokenizer, pair: bool) -> Result<Template> {
    let stand_in = |id, type_id| RawEncoding::from_tokens(vec![Token::new(id, "a".into(), (0, 1))], type_id);
    let encoding = guard(place, "place special tokens", || {
        inner.post_process(stand_in(FIRST, 0), pair.then(|| stand_in(SECOND, 1)), true)
    })?;
    let mut template = Template::default();
    let (mut firsts, mut seconds) = (0, 0);
    for (&id, &type_id) in encoding.get_ids().iter().zip(encoding.get_type_ids()) {
        let type_id = u8::try_from(type_id).map_err(|_| {
            Error::model(place, format!("its post-processor uses segment {type_id}"), "use segments below 256")
        })?;
        template.pieces.push(match id {
            FIRST => {
                firsts += 1;
                Piece::First { type_id }
            }
            SECOND => {
                seconds += 1;
                Piece::Second { type_id }
            }
            id if inner.id_to_token(id).is_some() => Piece::Special { id, type_id },
            id => {
                return Err(Error::model(
                    place,
                    format!("its post-processor adds id {id}, which the vocabulary does not have"),
                    "fetch the file again",
                ));
            }
        });
    }
    if firsts != 1 || seconds != usize::from(pair) {
        return Err(Error::model(
            place,
            "its post-processor does not use each text exactly once",
            "use a tokenizer.json whose template has one A and, for pairs, one B",
        ));
    }
    Ok(template)
}

/// The `(content, id)` of every added token in the document.
fn declared_tokens(root: &Map<String, Value>) -> Vec<(String, u32)> {
    let tokens = root.get("added_tokens").and_then(Value::as_array);
    tokens
        .into_iter()
        .flatten()
        .filter_map(|token| {
            let id = u32::try_from(token.get("id")?.as_u64()?).ok()?;
            Some((token.get("content")?.as_str()?.to_owned(), id))
        })
        .collect()
}

/// Lets explicit settings of `tokenizer_config.json` replace those of a stored BERT normalizer.
fn apply_config(document: &mut Value, config: &Map<String, Value>) {
    let Some(normalizer) = document.get_mut("normalizer").and_then(Value::as_object_mut) else { return };
    if normalizer.get("type").and_then(Value::as_str) != Some("BertNormalizer") {
        return;
    }
    for (from, to) in [
        ("do_lower_case", "lowercase"),
        ("strip_accents", "strip_accents"),
        ("tokenize_chinese_chars", "handle_chinese_chars"),
    ] {
        if let Some(value @ Value::Bool(_)) = config.get(from) {
            normalizer.insert(to.into(), value.clone());
        }
    }
}

fn vocab_options(config: &Map<String, Value>, names: &Map<String, Value>) -> VocabOptions {
    let flag = |key: &str| config.get(key).and_then(Value::as_bool);
    let name = |key: &str, default: String| special_name(key, config, names).unwrap_or(default);
    let default = VocabOptions::default();
    VocabOptions {
        lowercase: flag("do_lower_case").unwrap_or(default.lowercase),
        strip_accents: flag("strip_accents"),
        split_chinese: flag("tokenize_chinese_chars").unwrap_or(default.split_chinese),
        unk: name("unk_token", default.unk),
        cls: name("cls_token", default.cls),
        sep: name("sep_token", default.sep),
        pad: name("pad_token", default.pad),
        mask: name("mask_token", default.mask),
    }
}

/// The spelling of a special token: a plain string or an object with `content`; the config file wins over the map.
pub(super) fn special_name(key: &str, config: &Map<String, Value>, names: &Map<String, Value>) -> Option<String> {
    let value = config.get(key).filter(|value| !value.is_null()).or_else(|| names.get(key))?;
    Some(value.as_str().or_else(|| value.get("content")?.as_str())?.to_owned())
}

fn special_ids(inner: &tokenizers::Tokenizer, config: &Map<String, Value>, names: &Map<String, Value>) -> SpecialIds {
    let find = |key: &str, usual: &[&str]| match special_name(key, config, names) {
        Some(name) => inner.token_to_id(&name),
        None => usual.iter().find_map(|name| inner.token_to_id(name)),
    };
    SpecialIds {
        pad: find("pad_token", &["[PAD]", "<pad>"]),
        unk: find("unk_token", &["[UNK]", "<unk>"]),
        cls: find("cls_token", &["[CLS]", "<s>"]),
        sep: find("sep_token", &["[SEP]", "</s>"]),
        mask: find("mask_token", &["[MASK]", "<mask>"]),
        bos: find("bos_token", &["<s>", "<|begin_of_text|>"]),
        eos: find("eos_token", &["</s>", "<|endoftext|>", "<|end_of_text|>"]),
    }
}

/// The tokens of `added_tokens.json` in id order, empty without the file.
fn added_tokens(folder: &Path) -> Result<Vec<(String, u32)>> {
    const NAME: &str = "added_tokens.json";
    let mut tokens = Vec::new();
    for (token, id) in read_object(folder, NAME)?.unwrap_or_default() {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| {
            let place = folder.join(NAME).display().to_string();
            Error::model(place, format!("{token:?} has the id {id}"), "ids are whole numbers")
        })?;
        tokens.push((token, id));
    }
    tokens.sort_by_key(|(_, id)| *id);
    Ok(tokens)
}

pub(super) fn read_object(folder: &Path, name: &str) -> Result<Option<Map<String, Value>>> {
    let Some(bytes) = read_bounded(folder, name)? else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| broken_json(&folder.join(name), &error))
}

fn broken_json(path: &Path, error: &serde_json::Error) -> Error {
    let place = format!("{}:{}:{}", path.display(), error.line(), error.column());
    Error::model(place, format!("the file is not the expected JSON: {error}"), "fetch the file again")
}

/// The bytes of a folder's file of at most [`MAX_FILE_BYTES`], `None` if there is no such file.
pub(super) fn read_bounded(folder: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let path = folder.join(name);
    if path.symlink_metadata().is_err() {
        return Ok(None);
    }
    resolve_inside(folder, name)?;
    let (file, _) = open_regular(&path)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(|error| unreadable(&path, error))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(Error::model(
            path.display().to_string(),
            format!("the file is larger than {} MiB", MAX_FILE_BYTES >> 20),
            "this is no tokenizer file; check the folder",
        ));
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_above_the_bound_are_not_read() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = std::fs::File::create(folder.path().join("tokenizer.json")).unwrap();
        file.set_len(MAX_FILE_BYTES + 1).unwrap();
        let error = HfTokenizer::from_folder(folder.path()).unwrap_err().to_string();
        assert!(error.contains("larger than 128 MiB"), "{error}");
    }
}
