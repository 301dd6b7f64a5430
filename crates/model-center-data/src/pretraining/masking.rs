//! Masked language modelling: which tokens are predicted, and what is put in their place.
//!
//! Defines [`Masking`] and [`MaskTokens`]. Called by [`super::bert`].

use std::ops::Range;
use std::sync::Arc;

use super::random::SampleRandom;
use super::spans::{SpanLengths, choose};
use crate::{Error, Result};
use model_center_base::batch::IGNORED;
use model_center_formats::tokenizer::Tokenizer;

/// Shares of the predicted tokens that are replaced by MASK, and that stay.
const MASKED: f64 = 0.8;
const KEPT: f64 = 0.1;

/// The tokens that inputs of masked language modelling are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaskTokens {
    /// Begins an input.
    pub cls: u32,
    /// Ends a segment.
    pub sep: u32,
    /// Hides a token.
    pub mask: u32,
    /// Fills an input up.
    pub pad: u32,
    /// Number of tokens: ids are below it, random ones too.
    pub vocabulary: u32,
}

impl MaskTokens {
    /// The tokens of a tokenizer.
    ///
    /// # Errors
    /// [`Error::Model`] naming a token that the vocabulary does not have.
    pub fn of(tokenizer: &dyn Tokenizer) -> Result<MaskTokens> {
        let special = tokenizer.special_ids();
        let required = |id: Option<u32>, name: &str| {
            id.ok_or_else(|| {
                let reason = format!("the vocabulary has no {name} token, which masked language modelling needs");
                Error::model(tokenizer.place(), reason, "use a tokenizer such as BERT's, or a causal objective")
            })
        };
        let vocabulary = u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
        let tokens = MaskTokens {
            cls: required(special.cls, "CLS")?,
            sep: required(special.sep, "SEP")?,
            mask: required(special.mask, "MASK")?,
            pad: required(special.pad, "PAD")?,
            vocabulary,
        };
        tokens.check().map(|()| tokens)
    }

    /// Whether all of them are in the vocabulary.
    pub(super) fn check(&self) -> Result<()> {
        let MaskTokens { cls, sep, mask, pad, vocabulary } = *self;
        for (name, id) in [("CLS", cls), ("SEP", sep), ("MASK", mask), ("PAD", pad)] {
            if id >= vocabulary {
                let reason = format!("the {name} token {id} is not below the vocabulary's {vocabulary}");
                return Err(Error::argument("mask tokens", reason, "use the ids of one tokenizer"));
            }
        }
        Ok(())
    }
}

/// Whether each token of a vocabulary continues a word: its text begins with `##`, as in WordPiece.
pub fn continuations(tokenizer: &dyn Tokenizer) -> Arc<[bool]> {
    let ids = 0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
    ids.map(|id| tokenizer.token(id).is_some_and(|token| token.len() > 2 && token.starts_with("##"))).collect()
}

/// Which tokens are predicted.
#[derive(Debug, Clone, PartialEq)]
pub struct Masking {
    /// Share of the tokens of an input, special ones included.
    pub share: f64,
    /// Most predictions of an input.
    pub most: usize,
    /// Words of a masked span.
    pub lengths: SpanLengths,
    /// Whether each token of the vocabulary continues a word; words are then masked whole. `None` for tokens alone.
    pub continuations: Option<Arc<[bool]>>,
}

impl Masking {
    /// BERT's: 15 % of the tokens, one by one, and room for as many predictions, rounded up to tens.
    pub fn bert(sequence_length: usize) -> Masking {
        let most = (sequence_length as f64 * 0.15 / 10.0).ceil() as usize * 10;
        Masking { share: 0.15, most, lengths: SpanLengths::One, continuations: None }
    }

    pub(super) fn check(&self) -> Result<()> {
        if !(self.share > 0.0 && self.share <= 1.0) || self.most == 0 {
            let reason = format!("a share of {} and at most {} predictions", self.share, self.most);
            return Err(Error::argument("masking", reason, "use a share above 0 up to 1, and at least 1 prediction"));
        }
        Ok(())
    }

    /// Settings that distinguish this from others, without the table of continuations.
    pub(super) fn settings(&self) -> String {
        let words = self.continuations.as_ref().map(|table| table.iter().filter(|is| **is).count());
        format!("{} {} {:?} {words:?}", self.share, self.most, self.lengths)
    }

    /// Predictions of an input of `length` tokens.
    pub fn predictions(&self, length: usize) -> usize {
        self.most.min(((length as f64 * self.share).round_ties_even() as usize).max(1))
    }

    /// Masks tokens of an input and writes their labels. `text` are the ranges without special tokens. Where words are
    /// whole, those that do not fit are left out, so that there may be fewer predictions.
    pub(super) fn apply(
        &self,
        ids: &mut [u32],
        labels: &mut [i64],
        text: &[Range<usize>],
        tokens: &MaskTokens,
        (positions, replacements): (&mut SampleRandom, &mut SampleRandom),
    ) {
        labels.fill(IGNORED);
        let words = self.words(ids, text);
        let most = self.predictions(ids.len());
        for span in choose(&words, self.lengths, positions, |tokens, _| tokens <= most) {
            for at in span {
                labels[at] = i64::from(ids[at]);
                let chance = replacements.unit();
                if chance < MASKED {
                    ids[at] = tokens.mask;
                } else if chance >= MASKED + KEPT {
                    ids[at] = replacements.below(u64::from(tokens.vocabulary)) as u32;
                }
            }
        }
    }

    /// The words of the text, or its tokens.
    fn words(&self, ids: &[u32], text: &[Range<usize>]) -> Vec<Range<usize>> {
        let continues = |id: u32| {
            let table = self.continuations.as_ref();
            table.and_then(|table| table.get(id as usize)).copied().unwrap_or(false)
        };
        let mut words: Vec<Range<usize>> = Vec::new();
        for range in text {
            for at in range.clone() {
                match words.last_mut() {
                    Some(word) if at > range.start && continues(ids[at]) => word.end = at + 1,
                    _ => words.push(at..at + 1),
                }
            }
        }
        words
    }
}
