//! Greedy decoding and sampling: rows that are independent of each other.

use super::generator::TokenChooser;
use super::logits::{argmax, force_token, repeated_ngrams, suppress};
use super::options::{FinishReason, GenerateOptions, Generated, Method, OnText, TextChunk};
use super::sampling::{RandomAddress, Sampling};
use super::stream::TextStream;
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};
use bmtrain_core::philox::Key;

/// A call of [`Generator::generate`](super::Generator::generate).
pub(super) struct DecodeRequest<'a> {
    pub(super) options: &'a GenerateOptions,
    pub(super) tokenizer: Option<&'a dyn Tokenizer>,
    pub(super) prompts: &'a [Vec<u32>],
    /// The first tokens of the decoder of an encoder-decoder.
    pub(super) decoder_prompt: Option<Vec<u32>>,
    /// The most new tokens of each prompt.
    pub(super) limits: &'a [usize],
    /// Index of the first prompt in the whole run.
    pub(super) first: u64,
}

impl DecodeRequest<'_> {
    /// Process the logits `[V]` of the next token of a row: penalty, n-grams, forbidden and forced tokens.
    pub(super) fn process_logits(&self, prompt: usize, tokens: &[u32], logits: &mut [f32]) {
        let (options, limit) = (self.options, self.limits[prompt]);
        let before = self.decoder_prompt.as_ref().unwrap_or(&self.prompts[prompt]);
        if options.penalty.factor != 1.0 {
            let before = if options.penalizes_prompt { before.as_slice() } else { &[] };
            let row: Vec<u32> = before.iter().chain(tokens).copied().collect();
            options.penalty.apply(&row, logits);
        }
        if let Some(size) = options.no_repeat {
            let row: Vec<u32> = before.iter().chain(tokens).copied().collect();
            suppress(&repeated_ngrams(&row, size), logits);
        }
        suppress(&options.forbidden, logits);
        if tokens.len() < options.min_new_tokens {
            suppress(&options.end_tokens, logits);
        }
        if let Some(token) = options.forced_bos.filter(|_| tokens.is_empty() && options.prefix.is_empty()) {
            force_token(token, logits);
        }
        if let Some(token) = options.forced_eos.filter(|_| tokens.len() + 1 == limit) {
            force_token(token, logits);
        }
    }
}

/// A sequence.
struct Row<'a> {
    prompt: usize,
    sequence: usize,
    tokens: Vec<u32>,
    stream: Option<TextStream<'a>>,
    text: String,
    finish_reason: Option<FinishReason>,
}

/// The sequences of all prompts.
pub(super) struct Rows<'a> {
    request: DecodeRequest<'a>,
    sampling: Option<(Sampling, Key)>,
    /// Sequences of each prompt.
    texts: usize,
    /// Grouped by prompt.
    rows: Vec<Row<'a>>,
    /// The unfinished rows, in the order of the batch.
    active: Vec<usize>,
    /// Whether the batch has a row for each sequence; after the prefill it has one for each prompt.
    is_expanded: bool,
}

impl<'a> Rows<'a> {
    pub(super) fn new(request: DecodeRequest<'a>) -> Result<Self> {
        let (sampling, texts) = match request.options.method {
            Method::Sampling { sampling, seed, texts } => (Some((sampling, Key::new(seed, "generation"))), texts),
            Method::Greedy | Method::Beams(_) => (None, 1),
        };
        let mut rows = Vec::new();
        for prompt in 0..request.prompts.len() {
            for sequence in 0..texts {
                let stream =
                    request.tokenizer.map(|tokenizer| TextStream::new(tokenizer, &request.options.stop_strings));
                let stream = stream.transpose()?;
                let (tokens, text) = (Vec::new(), String::new());
                rows.push(Row { prompt, sequence, tokens, stream, text, finish_reason: None });
            }
        }
        Ok(Rows { request, sampling, texts, active: (0..rows.len()).collect(), rows, is_expanded: false })
    }

    /// The next token of a row.
    fn next(&self, row: &Row<'_>, logits: &mut [f32]) -> Result<u32> {
        self.request.process_logits(row.prompt, &row.tokens, logits);
        let prompt = self.request.first + row.prompt as u64;
        let token = match self.sampling {
            None => argmax(logits).map(|token| token as u32),
            Some((sampling, key)) => {
                let index = prompt * self.texts as u64 + row.sequence as u64;
                sampling.sample(logits, RandomAddress { key, row: index, position: row.tokens.len() as u32 })
            }
        };
        token.ok_or_else(|| no_possible_token(format!("prompt {prompt}, token {}", row.tokens.len())))
    }
}

impl Row<'_> {
    /// Append a token.
    fn push(&mut self, token: u32, limit: usize, end_tokens: &[u32], on_text: OnText<'_>) -> Result<()> {
        self.tokens.push(token);
        if let Some(stream) = &mut self.stream {
            let text = stream.push(token)?;
            let is_stopped = stream.is_stopped();
            self.emit(&text, on_text)?;
            if is_stopped {
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
            let rest = stream.finish()?;
            self.emit(&rest, on_text)?;
        }
        Ok(())
    }

    fn emit(&mut self, text: &str, on_text: OnText<'_>) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.text.push_str(text);
        on_text(TextChunk { prompt: self.prompt, sequence: self.sequence, text })
    }
}

impl TokenChooser for Rows<'_> {
    fn choose(&mut self, mut logits: Vec<Vec<f32>>, on_text: OnText<'_>) -> Result<Vec<(usize, u32)>> {
        let mut next = Vec::with_capacity(self.active.len());
        let mut active = Vec::with_capacity(self.active.len());
        for (position, &index) in self.active.iter().enumerate() {
            // The sequences of a prompt share the row of the prefill.
            let from = if self.is_expanded { position } else { self.rows[index].prompt };
            let mut row_logits = match self.is_expanded {
                true => std::mem::take(&mut logits[from]),
                false => logits[from].clone(),
            };
            let token = self.next(&self.rows[index], &mut row_logits)?;
            let limit = self.request.limits[self.rows[index].prompt];
            self.rows[index].push(token, limit, &self.request.options.end_tokens, on_text)?;
            if self.rows[index].finish_reason.is_none() {
                active.push(index);
                next.push((from, token));
            }
        }
        (self.active, self.is_expanded) = (active, true);
        Ok(next)
    }

    fn finish(self, _on_piece: OnText<'_>) -> Result<Vec<Vec<Generated>>> {
        let mut all: Vec<Vec<Generated>> = self.request.prompts.iter().map(|_| Vec::new()).collect();
        for row in self.rows {
            let Row { tokens, text, finish_reason, .. } = row;
            all[row.prompt].push(Generated {
                tokens,
                text,
                score: None,
                finish_reason: finish_reason.unwrap_or(FinishReason::Length),
            });
        }
        Ok(all)
    }
}

/// All tokens are forbidden, or the logits are NaN.
pub(super) fn no_possible_token(place: String) -> Error {
    let reason = "no token is possible: all logits are minus infinity or NaN";
    Error::data(place, reason, "forbid fewer tokens, use dtype f32, or check the weights")
}
