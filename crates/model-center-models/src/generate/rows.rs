//! Greedy decoding and sampling: rows that are independent of each other.

use super::generator::TokenChooser;
use super::options::{FinishReason, GenerateOptions, Generated, Method, OnText, TextChunk};
use super::sequence::{Sequence, TokenSampler};
use crate::{Error, Result};
use model_center_formats::tokenizer::Tokenizer;

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
    /// Process the logits `[V]` of the next token of a row, see [`GenerateOptions::process_logits`].
    pub(super) fn process_logits(&self, prompt: usize, tokens: &[u32], logits: &mut [f32]) -> Result<()> {
        let before = self.decoder_prompt.as_ref().unwrap_or(&self.prompts[prompt]);
        self.options.process_logits((before, tokens), self.limits[prompt], logits)
    }
}

/// A sequence.
struct Row<'a> {
    prompt: usize,
    sequence: usize,
    generated: Sequence<'a>,
    text: String,
}

/// The sequences of all prompts.
pub(super) struct Rows<'a> {
    request: DecodeRequest<'a>,
    sampler: TokenSampler,
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
        let texts = match request.options.method {
            Method::Sampling { texts, .. } => texts,
            Method::Greedy | Method::Beams(_) => 1,
        };
        let sampler = TokenSampler::new(&request.options.method);
        let mut rows = Vec::new();
        for prompt in 0..request.prompts.len() {
            for sequence in 0..texts {
                let generated = Sequence::new(request.tokenizer, &request.options.stop_strings, Vec::new())?;
                rows.push(Row { prompt, sequence, generated, text: String::new() });
            }
        }
        Ok(Rows { request, sampler, texts, active: (0..rows.len()).collect(), rows, is_expanded: false })
    }

    /// The next token of a row.
    fn next(&self, row: &Row<'_>, logits: &mut [f32]) -> Result<u32> {
        let (prompt, position) = (self.request.first + row.prompt as u64, row.generated.tokens.len());
        self.request.process_logits(row.prompt, &row.generated.tokens, logits)?;
        let index = prompt * self.texts as u64 + row.sequence as u64;
        let token = self.sampler.choose(logits, index, position);
        token.ok_or_else(|| no_possible_token(format!("prompt {prompt}, token {position}")))
    }
}

impl Row<'_> {
    /// Append a token.
    fn push(&mut self, token: u32, limit: usize, options: &GenerateOptions, on_text: OnText<'_>) -> Result<()> {
        let text = self.generated.push(token, limit, options)?;
        self.emit(&text, on_text)
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
            self.rows[index].push(token, limit, self.request.options, on_text)?;
            if self.rows[index].generated.finish_reason.is_none() {
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
            let Row { generated: Sequence { tokens, finish_reason, .. }, text, .. } = row;
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
pub fn no_possible_token(place: String) -> Error {
    let reason = "no token is possible: all logits are minus infinity or NaN";
    Error::data(place, reason, "forbid fewer tokens, use dtype f32, or check the weights")
}
