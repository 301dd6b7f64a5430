//! Searches for the likeliest texts of several prompts, side by side in one batch.
//!
//! Defines [`Searches`]; called by [`super::Generator`].

use super::beam::{BeamOptions, Beams};
use super::generator::{Chooser, Ending, Generated, OnPiece, Piece};
use super::rows::Begun;
use super::stream::TextStream;
use crate::{Error, Result};

/// One search for each prompt.
pub(super) struct Searches<'a> {
    begun: Begun<'a>,
    own: Option<Vec<u32>>,
    beams: Vec<Beams>,
}

impl<'a> Searches<'a> {
    pub(super) fn new(begun: Begun<'a>, options: BeamOptions, own: Option<Vec<u32>>) -> Result<Self> {
        let ends = &begun.options.ends;
        let beams = begun.limits.iter().map(|&longest| Beams::new(options, ends, longest)).collect::<Result<_>>()?;
        Ok(Searches { begun, own, beams })
    }

    /// The text of words, and whether a stop ends it.
    fn text(begun: &Begun<'_>, words: &[u32]) -> Result<(String, bool)> {
        let Some(tokenizer) = begun.tokenizer else { return Ok((String::new(), false)) };
        let mut stream = TextStream::new(tokenizer, &begun.options.stops)?;
        let mut text = String::new();
        for &word in words {
            text.push_str(&stream.push(word)?);
        }
        let is_stopped = stream.is_stopped();
        Ok((text + &stream.finish()?, is_stopped))
    }
}

impl Chooser for Searches<'_> {
    fn choose(&mut self, mut scores: Vec<Vec<f32>>, _on_piece: OnPiece<'_>) -> Result<Vec<(usize, u32)>> {
        let (mut next, mut first) = (Vec::new(), 0);
        let Searches { begun, own, beams } = self;
        // A character takes no more words than it has bytes; some words have no text, and the first of a text none in
        // front.
        let reach = 8 + 2 * begun.options.stops.iter().map(String::len).max().unwrap_or(0);
        for ((prompt, &limit), beams) in begun.prompts.iter().zip(begun.limits).zip(beams) {
            let rows = beams.rows();
            let before = own.as_ref().unwrap_or(prompt);
            let mut failure = None;
            let mut stops = |words: &[u32]| {
                if begun.options.stops.is_empty() {
                    return false;
                }
                // Words further back have been looked at.
                let tail = &words[words.len().saturating_sub(reach)..];
                let ends = |words: &[u32]| Self::text(begun, words).map(|(_, is_stopped)| is_stopped);
                // Some words read otherwise at the beginning of a text than further on: all of it counts.
                ends(tail).and_then(|found| Ok(found && (tail.len() == words.len() || ends(words)?))).unwrap_or_else(
                    |error| {
                        failure = Some(error);
                        true
                    },
                )
            };
            let change = |words: &[u32], scores: &mut [f32]| begun.change(before, words, limit, scores);
            let own_scores = scores.get_mut(first..first + rows).unwrap_or_default();
            let from = beams.step(own_scores, change, &mut stops);
            if let Some(failure) = failure {
                return Err(failure);
            }
            let words = (0..from.len()).map(|row| beams.words(row).last().copied().unwrap_or(0));
            if !beams.is_done() {
                next.extend(from.iter().map(|from| first + from).zip(words));
            }
            first += rows;
        }
        Ok(next)
    }

    fn finish(self, on_piece: OnPiece<'_>) -> Result<Vec<Vec<Generated>>> {
        let Searches { begun, beams, .. } = self;
        let mut all = Vec::with_capacity(beams.len());
        for (prompt, beams) in beams.into_iter().enumerate() {
            let mut texts = Vec::new();
            let found = beams.finish();
            if found.is_empty() {
                let reason = "no word is possible: all scores are minus infinity or no numbers";
                let place = format!("prompt {}", begun.first + prompt as u64);
                return Err(Error::data(place, reason, "forbid fewer words, take 32-bit floats, or check the weights"));
            }
            for (number, found) in found.into_iter().enumerate() {
                let (text, is_stopped) = Self::text(&begun, &found.words)?;
                let ends_text = found.words.last().is_some_and(|word| begun.options.ends.contains(word));
                let ending = match (is_stopped, ends_text) {
                    (true, _) => Ending::Stop,
                    (false, true) => Ending::Word,
                    (false, false) => Ending::Length,
                };
                on_piece(Piece { prompt, text: number, piece: &text })?;
                texts.push(Generated { words: found.words, text, score: Some(found.score), ending });
            }
            all.push(texts);
        }
        Ok(all)
    }
}
