//! [`GenerationConfig`], the generation settings of a model directory, each with its file.

use super::beam::Patience;
use crate::{Error, Result};
use model_center_base::file::{is_inside, printable};
use model_center_formats::config::{Fields, directory_fields, fields_of};
use model_center_formats::gguf::is_gguf;
use serde_json::Value;
use std::path::Path;

const GENERATION_FILE: &str = "generation_config.json";
const CONFIG_FILE: &str = "config.json";
/// The longest list; lists in use have some hundred entries.
const MAX_TOKENS: usize = 100_000;

/// A value with its origin.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// `generation_config.json`, `config.json`, or a caller's name for its own settings.
    pub origin: &'static str,
}

/// Generation settings; `None` for absent ones and for values without effect, such as a top-k of 0.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GenerationConfig {
    /// Whether tokens are sampled.
    pub do_sample: Option<Setting<bool>>,
    /// See [`Sampling`](super::Sampling).
    pub temperature: Option<Setting<f32>>,
    /// See [`Sampling`](super::Sampling).
    pub top_k: Option<Setting<usize>>,
    /// See [`Sampling`](super::Sampling).
    pub top_p: Option<Setting<f32>>,
    /// See [`Sampling`](super::Sampling).
    pub min_p: Option<Setting<f32>>,
    /// Beams, above 1 in a directory.
    pub num_beams: Option<Setting<usize>>,
    /// See [`BeamOptions`](super::BeamOptions).
    pub length_penalty: Option<Setting<f32>>,
    /// `early_stopping`.
    pub patience: Option<Setting<Patience>>,
    /// `renormalize_logits`; see [`BeamOptions`](super::BeamOptions).
    pub renormalizes: Option<Setting<bool>>,
    /// See [`RepetitionPenalty`](super::RepetitionPenalty).
    pub repetition_penalty: Option<Setting<f32>>,
    /// `no_repeat_ngram_size`.
    pub no_repeat: Option<Setting<usize>>,
    /// The most new tokens.
    pub max_new_tokens: Option<Setting<usize>>,
    /// The fewest tokens before an end token.
    pub min_new_tokens: Option<Setting<usize>>,
    /// The most tokens including the prompt; for an encoder-decoder, including the first tokens of the decoder.
    pub max_length: Option<Setting<usize>>,
    /// The fewest tokens, counted as for `max_length`.
    pub min_length: Option<Setting<usize>>,
    /// `eos_token_id`.
    pub end_tokens: Option<Setting<Vec<u32>>>,
    /// `stop_strings`.
    pub stop_strings: Option<Setting<Vec<String>>>,
    /// `suppress_tokens`, and the entries of `bad_words_ids` that are one token.
    pub forbidden: Option<Setting<Vec<u32>>>,
    /// `decoder_start_token_id`.
    pub decoder_start_token: Option<Setting<u32>>,
    /// `forced_bos_token_id`.
    pub forced_bos: Option<Setting<u32>>,
    /// `forced_eos_token_id`.
    pub forced_eos: Option<Setting<u32>>,
    /// Fields with an effect that are not supported.
    pub not_followed: Vec<String>,
}

/// Unsupported fields, with the number that has no effect.
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

impl GenerationConfig {
    /// Read a model directory. Settings come from `generation_config.json` if it exists, else from `config.json`, as in
    /// older directories; start and end tokens that the former does not state come from `config.json`, too.
    ///
    /// # Errors
    /// [`Error::Model`] for missing or unreadable files, a value of another type, a token outside the vocabulary.
    pub fn from_directory(directory: &Path, vocab_size: usize) -> Result<Self> {
        let config = File { fields: directory_fields(directory)?, name: CONFIG_FILE, vocab_size };
        let own = match !is_gguf(directory) && is_inside(directory, GENERATION_FILE)? {
            true => Some(File { fields: fields_of(directory, GENERATION_FILE)?, name: GENERATION_FILE, vocab_size }),
            false => None,
        };
        let file = own.as_ref().unwrap_or(&config);
        let mut defaults = GenerationConfig::settings_of(file)?;
        defaults.read_lengths(file)?;
        defaults.end_tokens = file.tokens("eos_token_id")?.or(config.tokens("eos_token_id")?);
        defaults.read_forbidden(file)?;
        defaults.decoder_start_token =
            file.token("decoder_start_token_id")?.or(config.token("decoder_start_token_id")?);
        defaults.forced_bos = file.token("forced_bos_token_id")?;
        defaults.forced_eos = file.token("forced_eos_token_id")?;
        defaults.not_followed.extend(file.not_followed());
        Ok(defaults)
    }

    /// Method, penalty and stop strings.
    fn settings_of(file: &File) -> Result<Self> {
        let unlike = |name: &str, nothing: f32| Ok::<_, Error>(file.number(name)?.filter(|n| n.value != nothing));
        let above = |name: &str, least: usize| Ok::<_, Error>(file.count(name)?.filter(|n| n.value > least));
        Ok(GenerationConfig {
            do_sample: file.stated(file.fields.peek_flag("do_sample")?),
            // Files for greedy decoding have 0 here.
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
            stop_strings: file.texts("stop_strings")?,
            ..GenerationConfig::default()
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

    /// Forbidden tokens; sequences of several are not supported. An end token in `bad_words_ids` is ignored, as in
    /// transformers.
    fn read_forbidden(&mut self, file: &File) -> Result<()> {
        let mut forbidden = file.tokens("suppress_tokens")?.map_or_else(Vec::new, |tokens| tokens.value);
        let end_tokens = self.end_tokens.as_ref().map_or(Vec::new(), |ends| ends.value.clone());
        let rows = file.list("bad_words_ids")?;
        for row in rows {
            match row.as_array().map(Vec::as_slice) {
                Some([token]) => {
                    forbidden.extend(file.id("bad_words_ids", token)?.filter(|token| !end_tokens.contains(token)))
                }
                Some([_, _, ..]) => self.not_followed.push("bad_words_ids of several tokens".to_owned()),
                Some([]) | None => return Err(file.wrong("bad_words_ids", row, "a list of lists of tokens")),
            }
        }
        self.not_followed.dedup();
        self.forbidden = file.stated((!forbidden.is_empty()).then_some(forbidden));
        Ok(())
    }
}

/// One of the two files.
struct File {
    fields: Fields,
    name: &'static str,
    vocab_size: usize,
}

impl File {
    fn stated<T>(&self, value: Option<T>) -> Option<Setting<T>> {
        value.map(|value| Setting { value, origin: self.name })
    }

    fn number(&self, name: &str) -> Result<Option<Setting<f32>>> {
        Ok(self.stated(self.fields.peek_number(name)?))
    }

    fn count(&self, name: &str) -> Result<Option<Setting<usize>>> {
        Ok(self.stated(self.fields.peek_index(name)?))
    }

    fn wrong(&self, name: &str, got: &Value, want: &str) -> Error {
        let reason = format!("{} is not {want}", printable(&got.to_string(), 60));
        self.fields.error(name, &reason, "correct the file, or fetch it again")
    }

    /// A token; a negative id is none.
    fn id(&self, name: &str, value: &Value) -> Result<Option<u32>> {
        if value.as_i64().is_some_and(|id| id < 0) {
            return Ok(None);
        }
        let id = value.as_u64().filter(|id| *id < self.vocab_size as u64).and_then(|id| u32::try_from(id).ok());
        id.map(Some)
            .ok_or_else(|| self.wrong(name, value, &format!("a token of the model, which has {}", self.vocab_size)))
    }

    fn token(&self, name: &str) -> Result<Option<Setting<u32>>> {
        let id = self.fields.peek(name).map(|value| self.id(name, value)).transpose()?.flatten();
        Ok(self.stated(id))
    }

    /// The values of a list; empty without the field.
    fn list(&self, name: &str) -> Result<&[Value]> {
        let Some(value) = self.fields.peek(name) else { return Ok(&[]) };
        let list = value.as_array().filter(|list| list.len() <= MAX_TOKENS);
        list.map(Vec::as_slice).ok_or_else(|| self.wrong(name, value, &format!("a list of at most {MAX_TOKENS}")))
    }

    /// A token or a list of them.
    fn tokens(&self, name: &str) -> Result<Option<Setting<Vec<u32>>>> {
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
    fn texts(&self, name: &str) -> Result<Option<Setting<Vec<String>>>> {
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

    fn patience(&self) -> Result<Option<Setting<Patience>>> {
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

    /// Unsupported fields with an effect.
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
