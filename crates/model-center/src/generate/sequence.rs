//! One sequence as it is generated: what its next token may be, its text, and what ends it.
//!
//! Defines [`TokenSampler`], [`Sequence`] and the processing of logits by [`GenerateOptions`]. Used by the batches of
//! [`super::rows`] and by the server, whose sequences join and leave.

use super::logits::{argmax, force_token, repeated_ngrams, suppress};
use super::options::{FinishReason, GenerateOptions, Method};
use super::sampling::{RandomAddress, Sampling};
use super::stream::TextStream;
use crate::Result;
use crate::tokenizer::Tokenizer;
use bmtrain_core::philox::Key;
use std::borrow::Cow;

impl GenerateOptions {
    /// Processes the logits `[V]` of the token after `before` and the generated `tokens`, at most `limit`: penalty,
    /// n-grams, forbidden and forced tokens.
    pub(crate) fn process_logits(&self, (before, tokens): (&[u32], &[u32]), limit: usize, logits: &mut [f32]) {
        if self.penalty.factor != 1.0 {
            let before = if self.penalizes_prompt { before } else { &[] };
            let row: Vec<u32> = before.iter().chain(tokens).copied().collect();
            self.penalty.apply(&row, logits);
        }
        if let Some(size) = self.no_repeat {
            let row: Vec<u32> = before.iter().chain(tokens).copied().collect();
            suppress(&repeated_ngrams(&row, size), logits);
        }
        suppress(&self.forbidden, logits);
        if tokens.len() < self.min_new_tokens {
            suppress(&self.end_tokens, logits);
        }
        if let Some(token) = self.forced_bos.filter(|_| tokens.is_empty() && self.prefix.is_empty()) {
            force_token(token, logits);
        }
        if let Some(token) = self.forced_eos.filter(|_| tokens.len() + 1 == limit) {
            force_token(token, logits);
        }
    }
}

/// Chooses tokens by logits: the most probable one, or a sample.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenSampler(Option<(Sampling, Key)>);

impl TokenSampler {
    /// The sampler of a method; beam search has none.
    pub(crate) fn new(method: &Method) -> Self {
        TokenSampler(match method {
            Method::Sampling { sampling, seed, .. } => Some((*sampling, Key::new(*seed, "generation"))),
            Method::Greedy | Method::Beams(_) => None,
        })
    }

    /// The token at `position` of the generated ones of sequence `row`; `None` if all logits are NaN or minus infinity.
    pub(crate) fn choose(&self, logits: &[f32], row: u64, position: usize) -> Option<u32> {
        match self.0 {
            None => argmax(logits).map(|token| token as u32),
            Some((sampling, key)) => sampling.sample(logits, RandomAddress { key, row, position: position as u32 }),
        }
    }
}

/// The generated part of a sequence.
#[derive(Debug)]
pub(crate) struct Sequence<'a> {
    /// Including the one that ended it.
    pub(crate) tokens: Vec<u32>,
    /// Without a tokenizer, and at the end, `None`.
    stream: Option<TextStream<'a>>,
    /// What ended it.
    pub(crate) finish_reason: Option<FinishReason>,
}

impl<'a> Sequence<'a> {
    /// No token yet.
    pub(crate) fn new(
        tokenizer: Option<&'a dyn Tokenizer>,
        stop_strings: impl Into<Cow<'a, [String]>>,
    ) -> Result<Self> {
        let stream = tokenizer.map(|tokenizer| TextStream::new(tokenizer, stop_strings)).transpose()?;
        Ok(Sequence { tokens: Vec::new(), stream, finish_reason: None })
    }

    /// Appends a token; returns the text that is certain now. The sequence ends with an end token, a stop string, or
    /// `limit` tokens.
    pub(crate) fn push(&mut self, token: u32, limit: usize, end_tokens: &[u32]) -> Result<String> {
        self.tokens.push(token);
        let mut text = String::new();
        if let Some(stream) = &mut self.stream {
            text = stream.push(token)?;
            if stream.is_stopped() {
                self.finish_reason = Some(FinishReason::StopString);
            }
        }
        if self.finish_reason.is_none() && end_tokens.contains(&token) {
            self.finish_reason = Some(FinishReason::EndToken);
        }
        if self.finish_reason.is_none() && self.tokens.len() >= limit {
            self.finish_reason = Some(FinishReason::Length);
        }
        if self.finish_reason.is_some()
            && let Some(stream) = self.stream.take()
        {
            text.push_str(&stream.finish()?);
        }
        Ok(text)
    }
}
