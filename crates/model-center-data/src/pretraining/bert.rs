//! Masked language modelling over pairs of sentences, as BERT is pretrained.
//!
//! Defines [`MaskedLm`]: `[CLS] first [SEP] second [SEP]`, filled up with PAD.

use bmtrain_core::philox::Key;

use super::masking::{MaskTokens, Masking};
use super::pairs::{PairSampler, PairSource, SecondSentence};
use super::parts::{CorpusPart, Mixed, fingerprint};
use super::random::SampleRandom;
use super::{PretrainingSamples, SampleInfo};
use crate::corpus::GroupOptions;
use crate::{Error, Result};
use model_center_base::batch::{Batch, IGNORED, LabelSpace, Labels};

/// How inputs of masked language modelling are made.
#[derive(Debug, Clone, PartialEq)]
pub struct MaskedLmOptions {
    /// L, special tokens included.
    pub sequence_length: usize,
    /// Number of samples.
    pub samples: u64,
    /// The tokens that inputs are made of.
    pub tokens: MaskTokens,
    /// Which tokens are predicted.
    pub masking: Masking,
    /// Form of the second segment.
    pub second: SecondSentence,
    /// How sentences are chosen.
    pub sampler: PairSampler,
    /// How sentences are grouped. `target_tokens` and `fewest` follow from the above and are not read; the seed is that
    /// of every choice.
    pub groups: GroupOptions,
}

/// Samples of masked language modelling.
#[derive(Debug)]
pub struct MaskedLm {
    sources: Mixed<PairSource>,
    options: MaskedLmOptions,
    positions: Key,
    replacements: Key,
    info: SampleInfo,
}

/// One input with its labels, both of at most L tokens.
struct Input {
    ids: Vec<u32>,
    labels: Vec<i64>,
    /// Tokens of the first segment, CLS and SEP included.
    first: usize,
    is_other: bool,
}

impl MaskedLm {
    /// Opens the corpora, and computes maps of sentences where they are needed.
    ///
    /// # Errors
    /// [`Error::Argument`] for a sequence too short for two tokens beside the special ones, special tokens outside the
    /// vocabulary, shares out of range; [`Error::Data`] and [`Error::File`] as [`crate::corpus::SentenceGroups::open`].
    pub fn open(parts: &[CorpusPart], options: &MaskedLmOptions) -> Result<MaskedLm> {
        let MaskedLmOptions { sequence_length: length, samples, tokens, masking, second, sampler, groups } = options;
        tokens.check()?;
        masking.check()?;
        let is_pair = *second != SecondSentence::None;
        let special = if is_pair { 3 } else { 2 };
        if *length < special + 2 {
            let reason = format!("{length} tokens, {special} of them special: there is no text to predict from");
            return Err(Error::argument("sequence length", reason, "use the number of positions of the model"));
        }
        let own = GroupOptions {
            target_tokens: (length - special) as u64,
            fewest: if is_pair { 2 } else { 1 },
            ..groups.clone()
        };
        let seed = groups.seed;
        let GroupOptions { short, longest_sentence, .. } = groups;
        let settings = (length, tokens, masking.settings(), second, sampler, short, longest_sentence, seed);
        let sources = Mixed::open(parts, (*samples, seed), |part, _| {
            PairSource::open(part, (*sampler, *second), &own, tokens.vocabulary)
        })?;
        let info = SampleInfo {
            len: sources.len(),
            labels: LabelSpace::MaskedTokens { sentences: is_pair },
            gives_decoder_inputs: false,
            max_length: *length,
            fingerprint: fingerprint("masked", &settings, parts)?,
        };
        Ok(MaskedLm {
            sources,
            options: options.clone(),
            positions: Key::new(seed, "masked positions"),
            replacements: Key::new(seed, "masked tokens"),
            info,
        })
    }

    fn input(&self, sample: u64) -> Result<Input> {
        let MaskTokens { cls, sep, .. } = self.options.tokens;
        let (source, own) = self.sources.at(sample)?;
        let pair = source.read(own)?;
        let mut ids = vec![cls];
        ids.extend(&pair.first);
        ids.push(sep);
        let first = ids.len();
        let text = [1..first - 1, first..first + pair.second.len()];
        if self.options.second != SecondSentence::None {
            ids.extend(&pair.second);
            ids.push(sep);
        }
        let mut labels = vec![IGNORED; ids.len()];
        let mut positions = SampleRandom::new(self.positions, sample);
        let mut replacements = SampleRandom::new(self.replacements, sample);
        let random = (&mut positions, &mut replacements);
        self.options.masking.apply(&mut ids, &mut labels, &text, &self.options.tokens, random);
        Ok(Input { ids, labels, first, is_other: pair.is_other })
    }
}

impl PretrainingSamples for MaskedLm {
    fn info(&self) -> &SampleInfo {
        &self.info
    }

    fn batch(&self, samples: &[u64]) -> Result<Batch> {
        let length = self.options.sequence_length;
        let all = samples.len() * length;
        let mut ids = vec![i64::from(self.options.tokens.pad); all];
        let (mut labels, mut mask, mut types) = (vec![IGNORED; all], vec![0; all], vec![0; all]);
        let mut next_sentence = Vec::with_capacity(samples.len());
        for (sample, row) in samples.iter().zip((0..).step_by(length)) {
            let input = self.input(*sample)?;
            let end = row + input.ids.len();
            ids[row..end].iter_mut().zip(&input.ids).for_each(|(own, id)| *own = i64::from(*id));
            labels[row..end].copy_from_slice(&input.labels);
            mask[row..end].fill(1);
            types[row + input.first..end].fill(1);
            next_sentence.push(i64::from(input.is_other));
        }
        let is_pair = self.options.second != SecondSentence::None;
        Ok(Batch {
            attention_mask: Some(mask),
            token_type_ids: is_pair.then_some(types),
            labels: Some(Labels::Predicted(labels)),
            next_sentence: is_pair.then_some(next_sentence),
            ..Batch::new(length, ids)
        })
    }
}
