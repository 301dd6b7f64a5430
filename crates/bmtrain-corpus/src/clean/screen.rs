//! Decisions about each document by itself.
//!
//! Defines [`Screen`], which threads share: the rules of its URL, repairs, its language, its length, and the hashes by
//! which later stages compare it with others.

use std::borrow::Cow;

use serde_json::{Map, Value};
use whatlang::Lang;

use super::CleanOptions;
use super::fates::{Fate, REPAIRED};
use super::minhash::{MinHash, shingles};
use super::repair::repair;
use super::store::{line_of, put_text, text_under};
use super::url::{UrlRules, UrlVerdict};
use crate::{Error, Result};
use model_center_data::corpus::text::TextRecord;
use model_center_formats::tokenizer::Tokenizer;

/// The first bytes of a text, which decide its language.
const LANGUAGE_BYTES: usize = 1 << 14;
/// A text with this number of characters for each token that is asked for is long enough without being tokenised.
const CHARACTERS_PER_TOKEN: usize = 8;

/// Decisions about a document.
#[derive(Debug)]
pub(super) struct Screened {
    pub(super) fate: Fate,
    pub(super) marks: u8,
    /// The record as it is kept.
    pub(super) line: Option<String>,
    /// The hash of its URL, if the rules keep that.
    pub(super) url: Option<[u64; 2]>,
    /// The hashes of its bands, if near-duplicates are sought; zeros for a text that has none.
    pub(super) bands: Vec<u64>,
}

/// The rules.
pub(super) struct Screen<'a> {
    options: &'a CleanOptions,
    key: &'a str,
    tokenizer: Option<&'a dyn Tokenizer>,
    urls: Option<UrlRules>,
    languages: Vec<Lang>,
    minhash: Option<MinHash>,
}

impl<'a> Screen<'a> {
    pub(super) fn new(
        options: &'a CleanOptions,
        key: &'a str,
        tokenizer: Option<&'a dyn Tokenizer>,
    ) -> Result<Screen<'a>> {
        if options.min_tokens > 0 && tokenizer.is_none() {
            let fix = "name a tokenizer, or set the least number of characters";
            return Err(Error::argument("min_tokens", "no tokenizer that counts tokens", fix));
        }
        let near = options.near.as_ref();
        Ok(Screen {
            options,
            key,
            tokenizer,
            urls: options.urls.as_ref().map(|urls| UrlRules::new(urls.sites.as_deref())),
            languages: options.languages.iter().map(|code| language(code)).collect::<Result<_>>()?,
            minhash: near.map(|near| MinHash::new(near.hashes, near.bands, near.seed)),
        })
    }

    pub(super) fn assess(&self, record: TextRecord) -> Result<Screened> {
        let mut screened = Screened { fate: Fate::Kept, marks: 0, line: None, url: None, bands: Vec::new() };
        if let Some(rules) = &self.urls
            && let Some(url) = text_under(&record.fields, &self.options.url_key).map(str::trim)
        {
            screened.fate = match rules.assess(url) {
                UrlVerdict::Kept => Fate::Kept,
                UrlVerdict::Site => Fate::Site,
                UrlVerdict::Ending => Fate::Ending,
                UrlVerdict::Short => Fate::Short,
                UrlVerdict::Malformed => Fate::Malformed,
            };
            if screened.fate != Fate::Kept {
                return Ok(screened);
            }
            let hash = blake3::hash(url.as_bytes());
            let (numbers, _) = hash.as_bytes().as_chunks::<8>();
            screened.url = Some([u64::from_le_bytes(numbers[0]), u64::from_le_bytes(numbers[1])]);
        }
        let TextRecord { mut text, mut fields } = record;
        let repaired = match self.options.repair.then(|| repair(&text)) {
            Some(Cow::Owned(repaired)) => Some(repaired),
            _ => None,
        };
        if let Some(repaired) = repaired {
            text = repaired;
            screened.marks |= REPAIRED;
        }
        if !self.is_in_languages(&text) {
            screened.fate = Fate::Language;
        } else if !self.is_long_enough(&text)? {
            screened.fate = Fate::Length;
        } else {
            if let (Some(minhash), Some(near)) = (&self.minhash, &self.options.near) {
                screened.bands = minhash.bands(&shingles(&text)).unwrap_or_else(|| vec![0; near.bands]);
            }
            put_text(&mut fields, self.key, text);
            screened.line = Some(line_of(&fields)?);
        }
        Ok(screened)
    }

    fn is_in_languages(&self, text: &str) -> bool {
        if self.languages.is_empty() {
            return true;
        }
        let start = &text[..text.floor_char_boundary(LANGUAGE_BYTES)];
        whatlang::detect_lang(start).is_some_and(|found| self.languages.contains(&found))
    }

    fn is_long_enough(&self, text: &str) -> Result<bool> {
        let CleanOptions { min_characters, min_tokens, .. } = *self.options;
        let has = |least: usize| least == 0 || text.chars().nth(least - 1).is_some();
        if !has(min_characters) {
            return Ok(false);
        }
        match self.tokenizer {
            Some(tokenizer) if min_tokens > 0 && !has(CHARACTERS_PER_TOKEN.saturating_mul(min_tokens)) => {
                let tokens = tokenizer.tokenize(&[text])?.iter().map(Vec::len).sum::<usize>();
                Ok(tokens >= min_tokens)
            }
            _ => Ok(true),
        }
    }
}

/// The language of an ISO 639-3 code, such as `eng`.
fn language(code: &str) -> Result<Lang> {
    Lang::from_code(code).ok_or_else(|| {
        let known: Vec<&str> = Lang::all().iter().map(|lang| lang.code()).collect();
        let reason = format!("unknown language {:?}", model_center_base::file::printable(code, 20));
        Error::argument("language", reason, format!("use codes of ISO 639-3: {}", known.join(", ")))
    })
}

/// The URL of a record, or its number in the input.
pub(super) fn name_of(fields: &Map<String, Value>, url_key: &str, number: u64) -> Value {
    text_under(fields, url_key).map_or_else(|| number.into(), Value::from)
}
