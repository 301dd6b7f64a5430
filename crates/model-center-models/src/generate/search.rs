//! Beam search for the prompts of a batch.

use super::beam::{BeamOptions, Beams};
use super::generator::TokenChooser;
use super::options::{FinishReason, Generated, OnText, TextChunk};
use super::rows::{DecodeRequest, no_possible_token};
use super::stream::TextStream;
use crate::Result;

/// One search for each prompt.
pub(super) struct BeamSearches<'a> {
    request: DecodeRequest<'a>,
    beams: Vec<Beams>,
}

impl<'a> BeamSearches<'a> {
    pub(super) fn new(request: DecodeRequest<'a>, options: BeamOptions) -> Result<Self> {
        let end_tokens = &request.options.end_tokens;
        let beams =
            request.limits.iter().map(|&longest| Beams::new(options, end_tokens, longest)).collect::<Result<_>>()?;
        Ok(BeamSearches { request, beams })
    }

    /// The text of tokens, and whether it has a stop string.
    fn text(request: &DecodeRequest<'_>, tokens: &[u32]) -> Result<(String, bool)> {
        let Some(tokenizer) = request.tokenizer else { return Ok((String::new(), false)) };
        let mut stream = TextStream::new(tokenizer, &request.options.stop_strings)?;
        let mut text = String::new();
        for &token in tokens {
            text.push_str(&stream.push(token)?);
        }
        let is_stopped = stream.is_stopped();
        Ok((text + &stream.finish()?, is_stopped))
    }
}

impl TokenChooser for BeamSearches<'_> {
    fn choose(&mut self, mut logits: Vec<Vec<f32>>, _on_piece: OnText<'_>) -> Result<Vec<(usize, u32)>> {
        let (mut next, mut first) = (Vec::new(), 0);
        let BeamSearches { request, beams } = self;
        // A character has at most as many tokens as bytes; some tokens have no text, and the first may lose its space.
        let reach = 8 + 2 * request.options.stop_strings.iter().map(String::len).max().unwrap_or(0);
        for (prompt, beams) in beams.iter_mut().enumerate() {
            let rows = beams.rows();
            let (mut failure, mut unprocessed) = (None, None);
            let mut stops = |tokens: &[u32]| {
                match request.options.is_final(tokens) {
                    Ok(false) => {}
                    Ok(true) => return true,
                    Err(error) => failure = Some(error),
                }
                if request.options.stop_strings.is_empty() {
                    return false;
                }
                // Earlier tokens were searched in earlier steps.
                let tail = &tokens[tokens.len().saturating_sub(reach)..];
                let ends = |tokens: &[u32]| Self::text(request, tokens).map(|(_, is_stopped)| is_stopped);
                // Some tokens decode differently at the beginning of a text: a stop in the tail must be in all of it.
                ends(tail).and_then(|found| Ok(found && (tail.len() == tokens.len() || ends(tokens)?))).unwrap_or_else(
                    |error| {
                        failure = Some(error);
                        true
                    },
                )
            };
            let process = |tokens: &[u32], logits: &mut [f32]| {
                if let Err(error) = request.process_logits(prompt, tokens, logits) {
                    unprocessed = Some(error);
                }
            };
            let own_logits = logits.get_mut(first..first + rows).unwrap_or_default();
            let from = beams.step(own_logits, process, &mut stops);
            if let Some(failure) = failure.or(unprocessed) {
                return Err(failure);
            }
            let tokens = (0..from.len()).map(|row| beams.tokens(row).last().copied().unwrap_or(0));
            if !beams.is_done() {
                next.extend(from.iter().map(|from| first + from).zip(tokens));
            }
            first += rows;
        }
        Ok(next)
    }

    fn finish(self, on_text: OnText<'_>) -> Result<Vec<Vec<Generated>>> {
        let BeamSearches { request, beams, .. } = self;
        let mut all = Vec::with_capacity(beams.len());
        for (prompt, beams) in beams.into_iter().enumerate() {
            let mut texts = Vec::new();
            let found = beams.finish();
            if found.is_empty() {
                return Err(no_possible_token(format!("prompt {}", request.first + prompt as u64)));
            }
            for (sequence, found) in found.into_iter().enumerate() {
                let (text, is_stopped) = Self::text(&request, &found.tokens)?;
                let ends_text = found.tokens.last().is_some_and(|token| request.options.end_tokens.contains(token));
                let finish_reason = match () {
                    () if is_stopped => FinishReason::StopString,
                    () if ends_text => FinishReason::EndToken,
                    () if request.options.is_final(&found.tokens)? => FinishReason::Complete,
                    () => FinishReason::Length,
                };
                on_text(TextChunk { prompt, sequence, text: &text })?;
                texts.push(Generated { tokens: found.tokens, text, score: Some(found.score), finish_reason });
            }
            all.push(texts);
        }
        Ok(all)
    }
}
