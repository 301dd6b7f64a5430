//! How a model is to generate where nobody says otherwise: what its directory states.
//!
//! Defines [`GenerationDefaults`], read from `generation_config.json`, or from `config.json` in a directory without
//! that file. Called by the generate program, which says of each setting where it comes from.

use super::beam::Patience;
use crate::config::{Fields, directory_fields, fields_of};
use crate::file::{is_inside, printable};
use crate::{Error, Result};
use serde_json::Value;
use std::path::Path;

const GENERATION_FILE: &str = "generation_config.json";
const CONFIG_FILE: &str = "config.json";
/// Words that a file may forbid, and words and texts that it may let end a text: the longest lists in use have some
/// hundred.
const MOST_WORDS: usize = 100_000;

/// A value, and the file that states it.
#[derive(Debug, Clone, PartialEq)]
pub struct Stated<T> {
    /// The value.
    pub value: T,
    /// `generation_config.json` or `config.json`.
    pub file: &'static str,
}

/// What a directory states. What it does not state, or states as what changes nothing, is `None`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GenerationDefaults {
    /// Whether words are drawn.
    pub do_sample: Option<Stated<bool>>,
    /// See [`Sampling`](super::Sampling).
    pub temperature: Option<Stated<f32>>,
    /// See [`Sampling`](super::Sampling).
    pub top_k: Option<Stated<usize>>,
    /// See [`Sampling`](super::Sampling).
    pub top_p: Option<Stated<f32>>,
    /// See [`Sampling`](super::Sampling).
    pub min_p: Option<Stated<f32>>,
    /// Texts that a search has side by side; above 1.
    pub num_beams: Option<Stated<usize>>,
    /// See [`BeamOptions`](super::BeamOptions).
    pub length_penalty: Option<Stated<f32>>,
    /// `early_stopping`.
    pub patience: Option<Stated<Patience>>,
    /// `renormalize_logits`; see [`BeamOptions`](super::BeamOptions).
    pub renormalizes: Option<Stated<bool>>,
    /// See [`Penalty`](super::Penalty).
    pub repetition_penalty: Option<Stated<f32>>,
    /// `no_repeat_ngram_size`.
    pub no_repeat: Option<Stated<usize>>,
    /// The most words of a text.
    pub max_new_tokens: Option<Stated<usize>>,
    /// The fewest words in front of one that ends a text.
    pub min_new_tokens: Option<Stated<usize>>,
    /// The most words of a row: of a decoder with the prompt, of a model with two stacks with what its decoder begins
    /// with.
    pub max_length: Option<Stated<usize>>,
    /// The fewest words of such a row.
    pub min_length: Option<Stated<usize>>,
    /// `eos_token_id`: words that end a text.
    pub ends: Option<Stated<Vec<u32>>>,
    /// `stop_strings`: texts that end a text.
    pub stops: Option<Stated<Vec<String>>>,
    /// `suppress_tokens`, and those of `bad_words_ids` that are one word: words that never come.
    pub forbidden: Option<Stated<Vec<u32>>>,
    /// `decoder_start_token_id`.
    pub first_word: Option<Stated<u32>>,
    /// `forced_bos_token_id`.
    pub forced_first: Option<Stated<u32>>,
    /// `forced_eos_token_id`.
    pub forced_last: Option<Stated<u32>>,
    /// Fields that would change what is generated, and that are not followed.
    pub left_aside: Vec<String>,
}

/// Fields that are not followed, with the number that changes nothing.
const NOT_FOLLOWED: [(&str, f64); 22] = [
    ("begin_suppress_tokens", 0.0),
    ("constraints", 0.0),
    ("diversity_penalty", 0.0),
    ("dola_layers", 0.0),
    ("encoder_no_repeat_ngram_size", 0.0),
    ("encoder_repetition_penalty", 1.0),
    ("epsilon_cutoff", 0.0),
    ("eta_cutoff", 0.0),
    ("exponential_decay_length_penalty", 0.0),
    ("force_words_ids", 0.0),
    ("forced_decoder_ids", 0.0),
    ("guidance_scale", 1.0),
    ("max_time", 0.0),
    ("num_beam_groups", 1.0),
    ("num_return_sequences", 1.0),
    ("penalty_alpha", 0.0),
    ("remove_invalid_values", 0.0),
    ("sequence_bias", 0.0),
    ("token_healing", 0.0),
    ("top_h", 0.0),
    ("typical_p", 1.0),
    ("watermarking_config", 0.0),
];

impl GenerationDefaults {
    /// Read a directory of a model that has so many words. Settings come from `generation_config.json` if it is there,
    /// else from `config.json`, as older directories have them; words that begin and end texts are also looked for in
    /// `config.json` where the other file does not name them.
    ///
    /// # Errors
    /// [`Error::Model`] for no or unreadable files, a value of another type, a word that the model does not have.
    pub fn from_directory(directory: &Path, words: usize) -> Result<Self> {
        let config = File { fields: directory_fields(directory)?, name: CONFIG_FILE, words };
        let own = match is_inside(directory, GENERATION_FILE)? {
            true => Some(File { fields: fields_of(directory, GENERATION_FILE)?, name: GENERATION_FILE, words }),
            false => None,
        };
        let file = own.as_ref().unwrap_or(&config);
        let mut defaults = GenerationDefaults::settings_of(file)?;
        defaults.read_lengths(file)?;
        defaults.ends = file.words("eos_token_id")?.or(config.words("eos_token_id")?);
        defaults.read_forbidden(file)?;
        defaults.first_word = file.word("decoder_start_token_id")?.or(config.word("decoder_start_token_id")?);
        defaults.forced_first = file.word("forced_bos_token_id")?;
        defaults.forced_last = file.word("forced_eos_token_id")?;
        defaults.left_aside.extend(file.not_followed());
        Ok(defaults)
    }

    /// How words are chosen.
    fn settings_of(file: &File) -> Result<Self> {
        let unlike = |name: &str, nothing: f32| Ok::<_, Error>(file.number(name)?.filter(|n| n.value != nothing));
        let above = |name: &str, least: usize| Ok::<_, Error>(file.count(name)?.filter(|n| n.value > least));
        Ok(GenerationDefaults {
            do_sample: file.stated(file.fields.peek_flag("do_sample")?),
            // Files for greedy choice have 0 here.
            temperature: unlike("temperature", 0.0)?,
            top_k: above("top_k", 0)?,
            top_p: file.number("top_p")?,
            min_p: unlike("min_p", 0.0)?,
            num_beams: above("num_beams", 1)?,
            length_penalty: file.number("length_penalty")?,
            patience: file.patience()?,
            renormalizes: file
                .stated(file.fields.peek_flag("renormalize_logits")?.filter(|renormalizes| *renormalizes)),
            repetition_penalty: unlike("repetition_penalty", 1.0)?,
            no_repeat: above("no_repeat_ngram_size", 0)?,
            stops: file.texts("stop_strings")?,
            ..GenerationDefaults::default()
        })
    }

    fn read_lengths(&mut self, file: &File) -> Result<()> {
        let above_zero = |name: &str| Ok::<_, Error>(file.count(name)?.filter(|n| n.value > 0));
        self.max_new_tokens = above_zero("max_new_tokens")?;
        self.min_new_tokens = above_zero("min_new_tokens")?;
        self.max_length = above_zero("max_length")?;
        self.min_length = above_zero("min_length")?;
        Ok(())
    }

    /// Words that never come; rows of several are not followed. A word that ends texts is none of the bad ones, as in
    /// transformers.
    fn read_forbidden(&mut self, file: &File) -> Result<()> {
        let mut forbidden = file.words("suppress_tokens")?.map_or_else(Vec::new, |words| words.value);
        let ends = self.ends.as_ref().map_or(Vec::new(), |ends| ends.value.clone());
        let rows = file.list("bad_words_ids")?;
        for row in rows {
            match row.as_array().map(Vec::as_slice) {
                Some([word]) => forbidden.extend(file.id("bad_words_ids", word)?.filter(|word| !ends.contains(word))),
                Some([_, _, ..]) => self.left_aside.push("bad_words_ids of several words".to_owned()),
                Some([]) | None => return Err(file.wrong("bad_words_ids", row, "a list of lists of words")),
            }
        }
        self.left_aside.dedup();
        self.forbidden = file.stated((!forbidden.is_empty()).then_some(forbidden));
        Ok(())
    }
}

/// One of the two files.
struct File {
    fields: Fields,
    name: &'static str,
    /// Words of the model.
    words: usize,
}

impl File {
    fn stated<T>(&self, value: Option<T>) -> Option<Stated<T>> {
        value.map(|value| Stated { value, file: self.name })
    }

    fn number(&self, name: &str) -> Result<Option<Stated<f32>>> {
        Ok(self.stated(self.fields.peek_number(name)?))
    }

    fn count(&self, name: &str) -> Result<Option<Stated<usize>>> {
        Ok(self.stated(self.fields.peek_index(name)?))
    }

    fn wrong(&self, name: &str, got: &Value, want: &str) -> Error {
        let reason = format!("{} is not {want}", printable(&got.to_string(), 60));
        self.fields.error(name, &reason, "correct the file, or fetch it again")
    }

    /// A word; a negative one stands for none.
    fn id(&self, name: &str, value: &Value) -> Result<Option<u32>> {
        if value.as_i64().is_some_and(|id| id < 0) {
            return Ok(None);
        }
        let id = value.as_u64().filter(|id| *id < self.words as u64).and_then(|id| u32::try_from(id).ok());
        id.map(Some).ok_or_else(|| self.wrong(name, value, &format!("a word of the model, which has {}", self.words)))
    }

    fn word(&self, name: &str) -> Result<Option<Stated<u32>>> {
        let id = self.fields.peek(name).map(|value| self.id(name, value)).transpose()?.flatten();
        Ok(self.stated(id))
    }

    /// The values of a list; none where there is no such field.
    fn list(&self, name: &str) -> Result<&[Value]> {
        let Some(value) = self.fields.peek(name) else { return Ok(&[]) };
        let list = value.as_array().filter(|list| list.len() <= MOST_WORDS);
        list.map(Vec::as_slice).ok_or_else(|| self.wrong(name, value, &format!("a list of at most {MOST_WORDS}")))
    }

    /// A word or a list of them.
    fn words(&self, name: &str) -> Result<Option<Stated<Vec<u32>>>> {
        let ids = match self.fields.peek(name) {
            Some(value) if !value.is_array() => self.id(name, value)?.into_iter().collect(),
            _ => {
                let ids = self.list(name)?.iter().map(|value| self.id(name, value));
                ids.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect::<Vec<u32>>()
            }
        };
        Ok(self.stated((!ids.is_empty()).then_some(ids)))
    }

    /// A text or a list of them.
    fn texts(&self, name: &str) -> Result<Option<Stated<Vec<String>>>> {
        let text = |value: &Value| match value.as_str() {
            Some(text) if !text.is_empty() => Ok(text.to_owned()),
            _ => Err(self.wrong(name, value, "a text")),
        };
        let texts = match self.fields.peek(name) {
            Some(value) if !value.is_array() => vec![text(value)?],
            _ => self.list(name)?.iter().map(text).collect::<Result<_>>()?,
        };
        Ok(self.stated((!texts.is_empty()).then_some(texts)))
    }

    fn patience(&self) -> Result<Option<Stated<Patience>>> {
        let name = "early_stopping";
        let patience = match self.fields.peek(name) {
            None => return Ok(None),
            Some(Value::Bool(true)) => Patience::First,
            Some(Value::Bool(false)) => Patience::Likely,
            Some(Value::String(text)) if text == "never" => Patience::Never,
            Some(other) => return Err(self.wrong(name, other, "true, false or \"never\"")),
        };
        Ok(self.stated(Some(patience)))
    }

    /// Names of fields that are not followed and would change something.
    fn not_followed(&self) -> impl Iterator<Item = String> {
        let changes = |(name, nothing): &&(&str, f64)| match self.fields.peek(name) {
            None | Some(Value::Bool(false)) => false,
            Some(Value::Number(number)) => number.as_f64() != Some(*nothing),
            Some(Value::Array(list)) => !list.is_empty(),
            Some(Value::Object(fields)) => !fields.is_empty(),
            Some(Value::Bool(true) | Value::String(_) | Value::Null) => true,
        };
        NOT_FOLLOWED.iter().filter(changes).map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>().into_iter()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A directory with these files; an empty text for none.
    fn read(generation: &str, config: &str) -> Result<GenerationDefaults> {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in [(GENERATION_FILE, generation), (CONFIG_FILE, config)] {
            if !text.is_empty() {
                std::fs::write(directory.path().join(name), text).unwrap();
            }
        }
        GenerationDefaults::from_directory(directory.path(), 50)
    }

    fn own<T>(value: T) -> Option<Stated<T>> {
        Some(Stated { value, file: GENERATION_FILE })
    }

    #[test]
    fn settings_come_from_the_generation_file_alone_if_there_is_one() {
        let old = r#"{"num_beams": 4, "early_stopping": true, "no_repeat_ngram_size": 3, "eos_token_id": 2}"#;
        let of_config = |value| Some(Stated { value, file: CONFIG_FILE });
        let defaults = read("", old).unwrap();
        assert_eq!((defaults.num_beams, defaults.no_repeat), (of_config(4), of_config(3)));
        assert_eq!(defaults.patience.unwrap().value, Patience::First);
        let defaults = read("{}", old).unwrap();
        assert_eq!((defaults.num_beams, &defaults.patience, &defaults.no_repeat), (None, &None, &None));
        assert_eq!(defaults.ends, Some(Stated { value: vec![2], file: CONFIG_FILE }), "words are looked for in both");
    }

    #[test]
    fn words_are_one_or_several_and_those_below_zero_are_none() {
        let defaults = read(
            r#"{"eos_token_id": [3, 4], "forced_bos_token_id": 7, "decoder_start_token_id": -1, "suppress_tokens": [1],
                "bad_words_ids": [[8], [5, 6], [9], [1, 2], [3]], "stop_strings": "END"}"#,
            r#"{"eos_token_id": 2, "forced_eos_token_id": 2}"#,
        );
        let defaults = defaults.unwrap();
        assert_eq!((defaults.ends, defaults.forced_first, defaults.first_word), (own(vec![3, 4]), own(7), None));
        assert_eq!(defaults.forbidden, own(vec![1, 8, 9]));
        assert_eq!(defaults.stops, own(vec!["END".to_owned()]));
        assert_eq!(defaults.forced_last, None, "the other file is not asked");
        assert_eq!(defaults.left_aside, ["bad_words_ids of several words"]);
    }

    #[test]
    fn what_changes_nothing_is_nothing_and_what_is_not_followed_is_named() {
        let defaults = read(
            r#"{"temperature": 0, "top_k": 0, "num_beams": 1, "repetition_penalty": 1.0, "min_p": null, "typical_p": 1.0,
                "num_beam_groups": 1, "force_words_ids": [], "penalty_alpha": 0.6, "max_time": 5, "do_sample": false,
                "no_repeat_ngram_size": 0, "transformers_version": "4.0", "use_cache": true}"#,
            "{}",
        );
        let expected = GenerationDefaults {
            do_sample: own(false),
            left_aside: vec!["max_time".to_owned(), "penalty_alpha".to_owned()],
            ..GenerationDefaults::default()
        };
        assert_eq!(defaults.unwrap(), expected);
    }

    #[test]
    fn a_value_that_makes_no_sense_is_named_with_file_and_field() {
        for (text, field) in [
            (r#"{"eos_token_id": 50}"#, "eos_token_id"),
            (r#"{"eos_token_id": "two"}"#, "eos_token_id"),
            (r#"{"bad_words_ids": [3]}"#, "bad_words_ids"),
            (r#"{"bad_words_ids": 3}"#, "bad_words_ids"),
            (r#"{"early_stopping": 1}"#, "early_stopping"),
            (r#"{"temperature": "hot"}"#, "temperature"),
            (r#"{"num_beams": 1e30}"#, "num_beams"),
            (r#"{"stop_strings": [""]}"#, "stop_strings"),
            ("[", "generation_config.json:1"),
        ] {
            let error = read(text, "{}").unwrap_err().to_string();
            assert!(error.contains(field) && error.contains(GENERATION_FILE), "{text}: {error}");
        }
        assert!(read("{}", "").is_err(), "a directory without a configuration is none");
    }
}
