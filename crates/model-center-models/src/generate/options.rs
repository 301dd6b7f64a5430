//! Options of generation and generated sequences.

use super::beam::BeamOptions;
use super::constraint::Constraint;
use super::logits::RepetitionPenalty;
use super::sampling::Sampling;
use super::stream::check_stop_strings;
use crate::model::ModelInfo;
use crate::{Error, Result};
use std::sync::Arc;

/// The most sequences of a prompt; a larger number is most likely a mistake, and exhausts the memory.
pub(super) const MAX_SEQUENCES: usize = 1024;

/// How the next token is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Method {
    /// The most probable token.
    Greedy,
    /// Sampled from the filtered distribution.
    Sampling {
        /// Temperature and filters.
        sampling: Sampling,
        /// Equal seeds give equal texts, whatever the batch.
        seed: u64,
        /// Sequences of each prompt.
        texts: usize,
    },
    /// Beam search.
    Beams(BeamOptions),
}

/// How tokens are chosen and when a sequence ends.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateOptions {
    /// Greedy decoding, sampling or beam search.
    pub method: Method,
    /// The most tokens of a sequence; the model's longest sequence may end it earlier.
    pub max_new_tokens: usize,
    /// The fewest tokens before an end token.
    pub min_new_tokens: usize,
    /// The most tokens of a sequence together with its prompt, for an encoder-decoder with the decoder's first tokens.
    pub max_length: Option<usize>,
    /// The fewest tokens before an end token, counted likewise.
    pub min_length: usize,
    /// Makes tokens of the sequence less probable.
    pub penalty: RepetitionPenalty,
    /// Whether the penalty includes the prompt; for an encoder-decoder, the first tokens of the decoder.
    pub penalizes_prompt: bool,
    /// Tokens that end a sequence.
    pub end_tokens: Vec<u32>,
    /// Strings that end a sequence, whose text ends before them.
    pub stop_strings: Vec<String>,
    /// Tokens that are never generated.
    pub forbidden: Vec<u32>,
    /// N-grams of this size are generated once only. The prompt counts, for an encoder-decoder the decoder's tokens.
    pub no_repeat: Option<usize>,
    /// The first generated token of an encoder-decoder, such as a language token; ignored with a prefix.
    pub forced_bos: Option<u32>,
    /// The last token of a sequence that reaches `max_new_tokens`.
    pub forced_eos: Option<u32>,
    /// The decoder's start token; `None` for the one in the model's configuration.
    pub decoder_start_token: Option<u32>,
    /// Tokens of the decoder after its start token, before the generated ones.
    pub prefix: Vec<u32>,
    /// Whether attention is bidirectional over the prompt, for a model that supports it.
    pub is_context: bool,
    /// Subtracted from the logits of tokens that were generated, whatever the number of times.
    pub presence_penalty: f32,
    /// Subtracted from the logits of tokens for each time that they were generated.
    pub frequency_penalty: f32,
    /// Added to the logits of tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// The form of every text.
    pub constraint: Option<Arc<Constraint>>,
}

impl Default for GenerateOptions {
    /// Greedy decoding of 20 tokens without end tokens.
    fn default() -> Self {
        GenerateOptions {
            method: Method::Greedy,
            max_new_tokens: 20,
            min_new_tokens: 0,
            max_length: None,
            min_length: 0,
            penalty: RepetitionPenalty::default(),
            penalizes_prompt: true,
            end_tokens: Vec::new(),
            stop_strings: Vec::new(),
            forbidden: Vec::new(),
            no_repeat: None,
            forced_bos: None,
            forced_eos: None,
            decoder_start_token: None,
            prefix: Vec::new(),
            is_context: false,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            constraint: None,
        }
    }
}

impl GenerateOptions {
    /// Check the options.
    ///
    /// # Errors
    /// [`Error::Argument`] for an option out of range or without effect.
    pub fn validate(&self) -> Result<()> {
        match self.method {
            Method::Greedy => {}
            Method::Sampling { sampling, texts, .. } => {
                sampling.validate()?;
                if texts == 0 || texts > MAX_SEQUENCES {
                    let reason = format!("{texts} texts of a prompt");
                    return Err(Error::argument("texts", reason, format!("give between 1 and {MAX_SEQUENCES}")));
                }
            }
            Method::Beams(options) => options.validate()?,
        }
        if self.max_new_tokens == 0 {
            return Err(Error::argument("max_new_tokens", "no token may be generated", "give 1 or more"));
        }
        if self.min_new_tokens > self.max_new_tokens {
            let reason = format!("{} tokens at least, and {} at most", self.min_new_tokens, self.max_new_tokens);
            return Err(Error::argument("min_new_tokens", reason, "give at most `max_new_tokens`"));
        }
        if self.min_new_tokens > 0 && self.end_tokens.is_empty() {
            let fix = "leave it out, or give a token that ends a text";
            return Err(Error::argument("min_new_tokens", "it has no effect: no token ends a text", fix));
        }
        if self.no_repeat == Some(0) {
            return Err(Error::argument("no_repeat", "n-grams of no token", "leave it out, or give 1 or more"));
        }
        self.penalty.validate()?;
        let numbers = [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)];
        let biases = self.logit_bias.iter().map(|(_, bias)| ("logit_bias", *bias));
        if let Some((name, number)) = numbers.into_iter().chain(biases).find(|(_, number)| !number.is_finite()) {
            return Err(Error::argument(name, format!("{number} is not a finite number"), "give one, or 0 for none"));
        }
        if self.constraint.is_some() && !self.stop_strings.is_empty() {
            let reason = "a text of a form ends where the form does, and a stop string would cut it";
            return Err(Error::argument("stop", reason, "leave it out"));
        }
        check_stop_strings(&self.stop_strings)
    }

    /// Check the options for a model.
    /// model; tokens outside the vocabulary.
    pub fn validate_for(&self, info: &ModelInfo, has_tokenizer: bool) -> Result<()> {
        self.validate()?;
        if !has_tokenizer && !self.stop_strings.is_empty() {
            let reason = "no tokenizer: stop strings need the text of tokens";
            return Err(Error::argument("stop", reason, "give tokens that end a text instead"));
        }
        let needs_decoder = [
            ("prefix", !self.prefix.is_empty()),
            ("forced_bos", self.forced_bos.is_some()),
            ("decoder_start_token", self.decoder_start_token.is_some()),
        ];
        if let Some((name, _)) = needs_decoder.iter().find(|(_, is_given)| *is_given && !info.generates_targets) {
            let reason = "it is for the decoder of an encoder-decoder, and this model has none";
            let fix = if *name == "prefix" { "append it to the prompt" } else { "leave it out" };
            return Err(Error::argument(*name, reason, fix));
        }
        let single = |token: &Option<u32>| token.iter().copied().collect::<Vec<_>>();
        let tokens = [
            ("end_token", self.end_tokens.clone()),
            ("forbid", self.forbidden.clone()),
            ("prefix", self.prefix.clone()),
            ("forced_bos", single(&self.forced_bos)),
            ("forced_eos", single(&self.forced_eos)),
            ("logit_bias", self.logit_bias.iter().map(|(token, _)| *token).collect()),
            ("decoder_start_token", single(&self.decoder_start_token)),
        ];
        for (name, tokens) in tokens {
            if let Some(token) = tokens.iter().find(|token| **token as usize >= info.vocab_size) {
                let reason = format!("token {token}, and the model has {}", info.vocab_size);
                return Err(Error::argument(name, reason, "give tokens of the model's vocabulary"));
            }
        }
        Ok(())
    }
}

/// End of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// An end token, the last of its tokens.
    EndToken,
    /// A stop string.
    StopString,
    /// The most tokens, or the model's longest sequence.
    Length,
    /// The form of texts: nothing may follow.
    Complete,
}

impl FinishReason {
    /// `token`, `stop`, `length` or `complete`.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::EndToken => "token",
            FinishReason::StopString => "stop",
            FinishReason::Length => "length",
            FinishReason::Complete => "complete",
        }
    }
}

/// A generated sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// Its tokens, including the end token, or the one that completed a stop string.
    pub tokens: Vec<u32>,
    /// Their text without special tokens, up to a stop string; empty without a tokenizer.
    pub text: String,
    /// Beam search: the sum of log probabilities, divided by the length to the power of the length penalty.
    pub score: Option<f32>,
    /// Reason of its end.
    pub finish_reason: FinishReason,
}

/// Text as it is generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextChunk<'a> {
    /// Index of the prompt in the call.
    pub prompt: usize,
    /// Index of the sequence for this prompt.
    pub sequence: usize,
    /// Further text: whole characters, and nothing of a stop string.
    pub text: &'a str,
}

/// Called with every chunk of text; an error ends the generation.
pub type OnText<'a> = &'a mut dyn FnMut(TextChunk<'_>) -> Result<()>;
