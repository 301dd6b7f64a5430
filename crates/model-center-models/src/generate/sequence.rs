//! One sequence as it is generated: what its next token may be, its text, and what ends it.
//!
//! Defines [`TokenSampler`], [`Sequence`] and the processing of logits by [`GenerateOptions`]. Used by the batches of
//! [`super::rows`] and by the server, whose sequences join and leave.

use super::constraint::Progress;
use super::logits::{argmax, force_token, repeated_ngrams, suppress};
use super::options::{FinishReason, GenerateOptions, Method};
use super::sampling::{RandomAddress, Sampling};
use super::stream::TextStream;
use crate::Result;
use bmtrain_core::philox::Key;
use model_center_formats::tokenizer::Tokenizer;
use std::borrow::Cow;

impl GenerateOptions {
    /// Processes the logits `[V]` of the token after `before` and the generated `tokens`, at most `limit`: penalty,
    /// n-grams, forbidden and forced tokens, and the form of the text.
    ///
    /// # Errors
    /// No token of the vocabulary goes on with a text of the form.
    pub fn process_logits(&self, (before, tokens): (&[u32], &[u32]), limit: usize, logits: &mut [f32]) -> Result<()> {
        let penalties = (self.presence_penalty, self.frequency_penalty);
        if penalties != (0.0, 0.0) {
            subtract_penalties(penalties, tokens, logits);
        }
        for (token, bias) in &self.logit_bias {
            logits.get_mut(*token as usize).into_iter().for_each(|logit| *logit += bias);
        }
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
        if let Some(constraint) = &self.constraint {
            constraint.mask(tokens, &self.end_tokens, logits)?;
        }
        if tokens.len() < self.min_new_tokens || before.len() + tokens.len() < self.min_length {
            suppress(&self.end_tokens, logits);
        }
        if let Some(token) = self.forced_bos.filter(|_| tokens.is_empty() && self.prefix.is_empty()) {
            force_token(token, logits);
        }
        // A text of a form ends where the form does.
        let forced_eos = self.forced_eos.filter(|_| self.constraint.is_none());
        if let Some(token) = forced_eos.filter(|_| tokens.len() + 1 == limit) {
            force_token(token, logits);
        }
        Ok(())
    }

    /// Whether nothing may follow tokens in the form of texts.
    ///
    /// # Errors
    /// As [`GenerateOptions::process_logits`].
    pub(crate) fn is_final(&self, tokens: &[u32]) -> Result<bool> {
        match &self.constraint {
            None => Ok(false),
            Some(constraint) => Ok(constraint.progress(tokens)? == Progress::Final),
        }
    }
}

/// The penalties of OpenAI's API: for each token that was generated `presence`, and `frequency` for each time.
fn subtract_penalties((presence, frequency): (f32, f32), tokens: &[u32], logits: &mut [f32]) {
    let mut tokens = tokens.to_vec();
    tokens.sort_unstable();
    for same in tokens.chunk_by(|one, other| one == other) {
        let logit = same.first().and_then(|token| logits.get_mut(*token as usize));
        logit.into_iter().for_each(|logit| *logit -= presence + frequency * same.len() as f32);
    }
}

/// Chooses tokens by logits: the most probable one, or a sample.
#[derive(Debug, Clone, Copy)]
pub struct TokenSampler(Option<(Sampling, Key)>);

impl TokenSampler {
    /// The sampler of a method; beam search has none.
    pub fn new(method: &Method) -> Self {
        TokenSampler(match method {
            Method::Sampling { sampling, seed, .. } => Some((*sampling, Key::new(*seed, "generation"))),
            Method::Greedy | Method::Beams(_) => None,
        })
    }

    /// The token at `position` of the generated ones of sequence `row`; `None` if all logits are NaN or minus infinity.
    pub fn choose(&self, logits: &[f32], row: u64, position: usize) -> Option<u32> {
        match self.0 {
            None => argmax(logits).map(|token| token as u32),
            Some((sampling, key)) => sampling.sample(logits, RandomAddress { key, row, position: position as u32 }),
        }
    }
}

/// The generated part of a sequence.
#[derive(Debug)]
pub struct Sequence<'a> {
    /// Including the one that ended it.
    pub tokens: Vec<u32>,
    /// Without a tokenizer, and at the end, `None`.
    stream: Option<TextStream<'a>>,
    /// Reason of its end.
    pub finish_reason: Option<FinishReason>,
}

impl<'a> Sequence<'a> {
    /// No token yet. Special tokens that are `kept` appear in the text.
    pub fn new(
        tokenizer: Option<&'a dyn Tokenizer>,
        stop_strings: impl Into<Cow<'a, [String]>>,
        kept: Vec<(u32, String)>,
    ) -> Result<Self> {
        let stream = tokenizer.map(|tokenizer| TextStream::new(tokenizer, stop_strings)).transpose()?;
        let stream = stream.map(|stream| stream.keeping(kept));
        Ok(Sequence { tokens: Vec::new(), stream, finish_reason: None })
    }

    /// Appends a token; returns the text that is certain now. The sequence ends with an end token, a stop string, where
    /// its form does, or with `limit` tokens.
    pub fn push(&mut self, token: u32, limit: usize, options: &GenerateOptions) -> Result<String> {
        self.tokens.push(token);
        let mut text = String::new();
        if let Some(stream) = &mut self.stream {
            text = stream.push(token)?;
            if stream.is_stopped() {
                self.finish_reason = Some(FinishReason::StopString);
            }
        }
        if self.finish_reason.is_none() && options.end_tokens.contains(&token) {
            self.finish_reason = Some(FinishReason::EndToken);
        }
        if self.finish_reason.is_none() && options.is_final(&self.tokens)? {
            self.finish_reason = Some(FinishReason::Complete);
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
