//! Masked language models: perplexity of masked tokens, and pseudo-perplexity.
//!
//! Defines [`EvalMasking`], [`read_masked`] and [`MlmResult`]. Source of the pseudo-perplexity: Salazar et al., "Masked
//! Language Model Scoring", 2020: each token is masked alone.

use std::path::Path;

use bmtrain_core::philox::Key;
use serde::{Deserialize, Serialize};

use super::{ScoredSequence, ScoredTarget};
use crate::{Error, Result};
use model_center_base::batch::IGNORED;
use model_center_data::corpus::text::{Documents, TextFormat, TextSource};
use model_center_data::{OnBadRecord, Permutation};
use model_center_formats::io::json_lines::read_json_lines;
use model_center_formats::tokenizer::{KeepSide, Limit, Tokenizer};

/// Files are read whole.
const MAX_BYTES: u64 = 1 << 30;

/// Which tokens of a sequence are masked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum EvalMasking {
    /// This share of the tokens, at least one, chosen by the seed and the number of the sequence.
    Share {
        /// Above 0, at most 1.
        share: f64,
        /// Seed of the choice.
        seed: u64,
    },
    /// Each token alone, in a sequence of its own.
    Each,
}

/// A sequence with its tokens that may be masked, special tokens excluded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaskedSequence {
    ids: Vec<u32>,
    maskable: Vec<usize>,
    /// Masks that the file gives.
    given: Option<Vec<ScoredTarget>>,
}

/// A line of masked ids.
#[derive(Deserialize)]
struct GivenMasks {
    input_ids: Vec<u32>,
    labels: Vec<i64>,
}

/// The perplexity of masked tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MlmResult {
    /// Sequences of the file.
    pub sequences: u64,
    /// Masked tokens.
    pub masked_tokens: u64,
    /// Mean negative log-likelihood of a masked token, in nats.
    pub loss: f64,
    /// exp(loss).
    pub perplexity: f64,
    /// exp(min(20, loss)), as Megatron-LM prints it.
    pub perplexity_capped: f64,
}

/// Reads sequences: the texts of a file, or, with `masks_are_given`, JSON lines of `input_ids` with masked tokens and
/// `labels`, -100 where nothing is predicted. Texts keep their first `length` tokens.
///
/// # Errors
/// As [`Documents::advance`]; [`Error::Data`] with the line of `labels` of another length than `input_ids`, or no
/// label; [`Error::Model`] for a tokenizer without a mask token.
pub fn read_masked(
    path: &Path,
    tokenizer: Option<&dyn Tokenizer>,
    (format, key, length): (Option<TextFormat>, &str, usize),
) -> Result<Vec<MaskedSequence>> {
    let Some(tokenizer) = tokenizer else { return read_given(path, length) };
    // A line of a text file is a sequence.
    let format = format.or_else(|| TextFormat::of(path).filter(|format| *format != TextFormat::Text));
    let source = TextSource {
        format: Some(format.unwrap_or(TextFormat::Lines)),
        key: key.to_owned(),
        ..TextSource::new(vec![path.to_owned()])
    };
    let mut documents = Documents::open(source, OnBadRecord::Error)?;
    let (front, back) = tokenizer.template(false).around_first();
    let limit = Some(Limit { max_tokens: length, keep: KeepSide::Start });
    let mut sequences = Vec::new();
    while let Some(text) = documents.advance()? {
        let ids = tokenizer.encode(&text, None, limit)?.input_ids;
        let maskable: Vec<usize> = (front.len()..ids.len().saturating_sub(back.len())).collect();
        if !maskable.is_empty() {
            sequences.push(MaskedSequence { ids, maskable, given: None });
        }
    }
    match sequences.is_empty() {
        false => Ok(sequences),
        true => Err(Error::data(path.display().to_string(), "there is no token to mask", "give a text")),
    }
}

fn read_given(path: &Path, length: usize) -> Result<Vec<MaskedSequence>> {
    let lines = read_json_lines::<GivenMasks>(path, MAX_BYTES, r#"{"input_ids": [...], "labels": [...]}"#)?;
    let sequence = |(place, GivenMasks { input_ids, labels }): (String, GivenMasks)| {
        let refuse = |reason: String, fix: &str| Err(Error::data(place.clone(), reason, fix));
        if input_ids.len() != labels.len() {
            let reason = format!("{} labels for {} input_ids", labels.len(), input_ids.len());
            return refuse(reason, "give one label for each token, -100 where nothing is predicted");
        }
        if input_ids.len() > length {
            let reason = format!("{} tokens, and sequences have at most {length}", input_ids.len());
            return refuse(reason, "shorten it, or use a larger --length");
        }
        let mut given = Vec::new();
        for (position, label) in labels.iter().enumerate().filter(|(_, label)| **label != IGNORED) {
            match u32::try_from(*label) {
                Ok(token) => given.push(ScoredTarget { position, token }),
                Err(_) => return refuse(format!("label {label} is not a token id"), "correct it, or write -100"),
            }
        }
        match given.is_empty() {
            true => refuse("there is no label".to_owned(), "remove the line, or mask a token"),
            false => Ok(MaskedSequence { ids: input_ids, maskable: Vec::new(), given: Some(given) }),
        }
    };
    lines.into_iter().map(sequence).collect()
}

/// The sequences of a file with the masks of an evaluation. Memory does not depend on the number of masks.
#[derive(Debug)]
pub struct MaskedSet {
    sequences: Vec<MaskedSequence>,
    /// Scored sequences of each sequence and all before it.
    ends: Vec<u64>,
    masking: EvalMasking,
    mask: u32,
}

impl MaskedSet {
    /// Masks these sequences with this mask token.
    pub fn new(sequences: Vec<MaskedSequence>, masking: EvalMasking, mask: u32) -> MaskedSet {
        let count = |sequence: &MaskedSequence| match (masking, &sequence.given) {
            (EvalMasking::Each, None) => sequence.maskable.len() as u64,
            _ => 1,
        };
        let ends = sequences.iter().scan(0, |end, sequence| {
            *end += count(sequence);
            Some(*end)
        });
        MaskedSet { ends: ends.collect(), sequences, masking, mask }
    }

    /// Sequences of the file.
    pub fn sequences(&self) -> u64 {
        self.sequences.len() as u64
    }

    /// Number of sequences to score.
    pub fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The masked sequence of a number below [`MaskedSet::len`]; beyond that one without tokens.
    pub fn at(&self, index: u64) -> ScoredSequence {
        let number = self.ends.partition_point(|end| *end <= index);
        let Some(sequence) = self.sequences.get(number) else { return ScoredSequence::default() };
        let MaskedSequence { ids, maskable, given } = sequence;
        if let Some(given) = given {
            return ScoredSequence { input: ids.clone(), targets: given.clone() };
        }
        let positions = match self.masking {
            EvalMasking::Each => {
                let before = number.checked_sub(1).map_or(0, |before| self.ends[before]);
                maskable.get((index - before) as usize).copied().into_iter().collect()
            }
            EvalMasking::Share { share, seed } => chosen(maskable, share, (seed, number as u64)),
        };
        let mut input = ids.clone();
        let target = |position: &usize| ScoredTarget { position: *position, token: ids[*position] };
        let targets = positions.iter().map(target).collect();
        positions.iter().for_each(|position| input[*position] = self.mask);
        ScoredSequence { input, targets }
    }
}

/// A share of positions, at least one, by a seed and the number of a sequence.
fn chosen(positions: &[usize], share: f64, (seed, number): (u64, u64)) -> Vec<usize> {
    let count = ((positions.len() as f64 * share).round() as usize).clamp(1, positions.len().max(1));
    let stream = [number as u32, (number >> 32) as u32, 0];
    let order = Permutation::new(Key::new(seed, "evaluate.mask"), stream, positions.len() as u64);
    let chosen = (0..count as u64).filter_map(|index| positions.get(order.at(index)? as usize).copied());
    let mut chosen: Vec<usize> = chosen.collect();
    chosen.sort_unstable();
    chosen
}

#[cfg(test)]
mod tests {
    use super::{EvalMasking, MaskedSequence, MaskedSet, ScoredTarget};

    const MASK: u32 = 9;

    fn sequence() -> MaskedSequence {
        MaskedSequence { ids: vec![1, 4, 5, 6, 7, 2], maskable: vec![1, 2, 3, 4], given: None }
    }

    fn set(masking: EvalMasking, sequences: usize) -> MaskedSet {
        MaskedSet::new(vec![sequence(); sequences], masking, MASK)
    }

    #[test]
    fn each_token_is_masked_alone() {
        let set = set(EvalMasking::Each, 2);
        assert_eq!((set.len(), set.sequences()), (8, 2));
        assert_eq!(set.at(0).input, [1, 9, 5, 6, 7, 2]);
        assert_eq!(set.at(5).input, [1, 4, 9, 6, 7, 2]);
        assert!((0..8).all(|index| set.at(index).targets.len() == 1));
        assert_eq!((set.at(7).targets[0].position, set.at(7).targets[0].token), (4, 7));
    }

    #[test]
    fn a_share_is_fixed_by_seed_and_number() {
        let of = |seed, number| set(EvalMasking::Share { share: 0.5, seed }, 30).at(number);
        assert_eq!(of(1, 3), of(1, 3));
        assert!((0..20).any(|seed| of(seed, 3) != of(1, 3)) && (0..20).any(|number| of(1, number) != of(1, 3)));
        assert_eq!(of(1, 3).targets.len(), 2);
        assert_eq!(of(1, 3).input.iter().filter(|id| **id == MASK).count(), 2);
        assert_eq!(set(EvalMasking::Share { share: 0.01, seed: 1 }, 1).at(0).targets.len(), 1);
    }

    #[test]
    fn given_masks_are_used_as_they_are() {
        let targets = vec![ScoredTarget { position: 2, token: 8 }];
        let given = MaskedSequence { ids: vec![1, 4, 9, 2], maskable: Vec::new(), given: Some(targets.clone()) };
        let set = MaskedSet::new(vec![given], EvalMasking::Each, MASK);
        assert_eq!((set.len(), set.at(0).targets), (1, targets));
    }
}
