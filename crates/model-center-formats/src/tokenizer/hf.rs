//! Tokenizers that the `tokenizers` crate can express: all but those that segment words with a dictionary.
//!
//! Defines [`HfTokenizer`], a guarded wrapper of that crate: a panic inside it becomes an error, stored padding and
//! truncation are dropped, text never becomes control tokens unless requested, and long texts take bounded memory
//! ([`super::chunked`]). Made by [`super::AutoTokenizer`] from a `tokenizer.json` or from another format converted to
//! such a document.

use std::fmt;

use bmtrain_core::heap::release_unused;
use serde_json::{Map, Value};
use tokenizers::{Encoding as RawEncoding, Token};

use super::catch::catch_errors;
use super::chunked::Engine;
use super::files::Settings;
use super::limits;
use super::overrides;
use super::pieces::is_charsmap;
use super::{ControlToken, SPAN_BYTES, SpecialIds, Template, TemplateSlot, TokenBytes, TokenSpan, Tokenizer};
use crate::{Error, Result};
use model_center_base::file::printable;

/// WordPiece work grows with the square of this number, so a hostile file must not choose it freely. BERT uses 100.
const MAX_WORD_CHARACTERS: u64 = 256;
/// Maximum number of added tokens: several times more than vocabularies with a token for each sound or image patch
/// have.
const MAX_ADDED_TOKENS: usize = 1 << 18;
/// The longest added token that is read, in bytes. Every text is searched for them.
const MAX_ADDED_BYTES: usize = 1024;
/// Placeholders for the texts when the template is read from the post-processor; no vocabulary is this large.
const FIRST: u32 = u32::MAX - 1;
const SECOND: u32 = u32::MAX - 2;

/// Treatment of `[SEP]` or `[MASK]` written inside a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextSpecials {
    /// It is text like any other: records from outside cannot inject control tokens.
    #[default]
    AsText,
    /// It becomes the special token, as in transformers. Needed to fill in blanks.
    AsTokens,
}

/// A tokenizer of a model directory or a file; [`super::AutoTokenizer`] lists what is read.
///
/// Settings in `tokenizer_config.json` (`do_lower_case`, `strip_accents`, `tokenize_chinese_chars`) win over those
/// stored in `tokenizer.json`, as in transformers. Stored padding and truncation are ignored.
pub struct HfTokenizer {
    engine: Engine,
    single: Template,
    pair: Template,
    special: SpecialIds,
    vocab_size: usize,
    place: String,
}

impl HfTokenizer {
    /// Chooses what special tokens written inside a text mean; the default is [`TextSpecials::AsText`].
    #[must_use]
    pub fn with_text_specials(mut self, choice: TextSpecials) -> HfTokenizer {
        self.engine.set_specials_as_text(choice == TextSpecials::AsText);
        self
    }

    /// Takes tokens, by id, out of those that texts become.
    pub(super) fn without(mut self, unused: &[u32]) -> HfTokenizer {
        self.engine.set_unused(unused);
        self
    }

    /// Reference of [`Tokenizer::tokenize`]: the library's ids of a text taken at once, in memory of more than a
    /// hundred times the text's.
    pub fn tokenize_whole(&self, text: &str) -> Result<Vec<u32>> {
        self.engine.tokenize_whole(text)
    }

    /// Builds it from a `tokenizer.json` document, the settings beside it, and default names of special tokens.
    pub(super) fn from_document(
        place: String,
        mut document: Value,
        settings: &Settings,
        usual: &Map<String, Value>,
    ) -> Result<HfTokenizer> {
        overrides::apply(&place, &mut document, settings)?;
        if let Some(table) = broken_charsmap(&document) {
            let reason = format!("its precompiled_charsmap, \"{}\", is damaged", printable(table, 20));
            return Err(Error::model(&place, reason, "fetch the file again"));
        }
        limits::check(&place, &document)?;
        let root = document.as_object_mut().ok_or_else(|| {
            Error::model(&place, "the file is not a JSON object", "fetch the file again; tokenizer.json starts with {")
        })?;
        root.insert("truncation".into(), Value::Null);
        root.insert("padding".into(), Value::Null);
        if let Some(limit) = root.get("model").and_then(|model| model.get("max_input_chars_per_word"))
            && limit.as_u64().is_none_or(|limit| limit > MAX_WORD_CHARACTERS)
        {
            let fix = format!("use a whole number up to {MAX_WORD_CHARACTERS}; BERT uses 100");
            return Err(Error::model(&place, format!("model.max_input_chars_per_word is {limit}"), fix));
        }
        if let Some(entries) = root.get_mut("added_tokens").and_then(Value::as_array_mut) {
            settings.mark_special(entries);
        }
        let declared = declared_tokens(root);
        check_added(&place, &declared)?;
        let bytes = serde_json::to_vec(&document)
            .map_err(|error| Error::model(&place, error.to_string(), "fetch the file again"))?;
        // As values a vocabulary takes many times its bytes, which what the library makes of it can have.
        if let Some(root) = document.as_object_mut() {
            root.remove("model");
        }
        let mut inner = catch_errors(&place, "load", || tokenizers::Tokenizer::from_bytes(&bytes))?;
        drop(bytes);
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
        let special = special_ids(&inner, settings, usual);
        let engine = Engine::new(&place, inner, &document)?;
        drop(document);
        release_unused();
        Ok(HfTokenizer { engine, single, pair, special, vocab_size, place })
    }
}

impl Tokenizer for HfTokenizer {
    fn tokenize(&self, texts: &[&str]) -> Result<Vec<Vec<u32>>> {
        self.engine.tokenize(texts)
    }

    fn tokenize_up_to(&self, text: &str, most: usize) -> Result<Option<Vec<u32>>> {
        self.engine.tokenize_up_to(text, most)
    }

    fn tokenize_with_spans(&self, text: &str) -> Result<Vec<TokenSpan>> {
        if text.len() > SPAN_BYTES {
            let reason = format!("a text of {} bytes, and the places of tokens are found in {SPAN_BYTES}", text.len());
            return Err(Error::data("text", reason, "divide it"));
        }
        self.engine.tokenize_with_spans(text)
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
        catch_errors(&self.place, "decode ids", || self.engine.inner.decode(ids, skip_special))
    }

    fn token_bytes(&self) -> Option<TokenBytes> {
        let inner = &self.engine.inner;
        let decoder = serde_json::to_value(inner.get_decoder()?).ok()?;
        let added = inner.get_added_tokens_decoder();
        let is_text = |id: &u32| !added.get(id).is_some_and(|token| token.special);
        let unknown = self.engine.unknown;
        let ids = 0..u32::try_from(self.vocab_size).ok()?;
        TokenBytes::of(&decoder, ids.map(|id| inner.id_to_token(id).filter(|_| is_text(&id) && Some(id) != unknown)))
    }

    fn place(&self) -> &str {
        &self.place
    }

    fn control_tokens(&self) -> Vec<ControlToken> {
        let added = self.engine.inner.get_added_tokens_decoder().into_iter();
        let mut tokens: Vec<ControlToken> = added
            .filter(|(_, token)| token.special && !token.content.is_empty())
            .map(|(id, token)| ControlToken {
                text: token.content,
                id,
                takes_space_before: token.lstrip,
                takes_space_after: token.rstrip,
            })
            .collect();
        tokens.sort_by_key(|token| token.id);
        tokens
    }

    fn token(&self, id: u32) -> Option<String> {
        self.engine.inner.id_to_token(id)
    }

    fn id(&self, token: &str) -> Option<u32> {
        self.engine.inner.token_to_id(token)
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

/// Reads the template by running the post-processor on one-token placeholders for the texts.
fn read_template(place: &str, inner: &tokenizers::Tokenizer, pair: bool) -> Result<Template> {
    let stand_in = |id, type_id| RawEncoding::from_tokens(vec![Token::new(id, "a".into(), (0, 1))], type_id);
    let encoding = catch_errors(place, "place special tokens", || {
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
                TemplateSlot::First { type_id }
            }
            SECOND => {
                seconds += 1;
                TemplateSlot::Second { type_id }
            }
            id if inner.id_to_token(id).is_some() => TemplateSlot::Special { id, type_id },
            id => {
                let reason = format!("its post-processor adds id {id}, which the vocabulary does not have");
                return Err(Error::model(place, reason, "fetch the file again"));
            }
        });
    }
    if firsts != 1 || seconds != usize::from(pair) {
        let reason = "its post-processor does not use each text exactly once";
        return Err(Error::model(place, reason, "use a tokenizer.json whose template has one A and, for pairs, one B"));
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

/// Refuses more and longer added tokens than any vocabulary has.
fn check_added(place: &str, declared: &[(String, u32)]) -> Result<()> {
    const FIX: &str = "this is not a model's tokenizer; download its files again";
    if declared.len() > MAX_ADDED_TOKENS {
        let reason =
            format!("there are {} added tokens, more than the {MAX_ADDED_TOKENS} that are read", declared.len());
        return Err(Error::model(place, reason, FIX));
    }
    match declared.iter().find(|(token, _)| token.len() > MAX_ADDED_BYTES) {
        None => Ok(()),
        Some((token, id)) => {
            let (begin, length) = (printable(token, 40), token.len());
            let reason = format!(
                "added token {id}, \"{begin}\", has {length} bytes, more than the {MAX_ADDED_BYTES} that are read"
            );
            Err(Error::model(place, reason, FIX))
        }
    }
}

/// A malformed table of replacements: the crate allocates as much memory as it declares.
fn broken_charsmap(document: &Value) -> Option<&str> {
    let normalizer = document.get("normalizer")?;
    let steps = normalizer.get("normalizers").and_then(Value::as_array);
    let mut tables = steps.into_iter().flatten().chain([normalizer]);
    tables.find_map(|step| step.get("precompiled_charsmap")?.as_str().filter(|table| !is_charsmap(table)))
}

fn special_ids(inner: &tokenizers::Tokenizer, settings: &Settings, own: &Map<String, Value>) -> SpecialIds {
    let find = |key: &str, usual: &[&str]| match settings.special(key).or_else(|| own.get(key)?.as_str()) {
        Some(name) => inner.token_to_id(name),
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
