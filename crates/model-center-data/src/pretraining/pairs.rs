//! One or two segments of consecutive sentences: the inputs of BERT before they are masked.
//!
//! Defines [`SecondSentence`], [`PairSampler`] and `PairSource`, which [`super::bert`] reads.

use std::ops::Range;
use std::sync::Arc;

use bmtrain_core::philox::Key;

use super::parts::{CorpusPart, check_ids};
use super::random::SampleRandom;
use crate::corpus::{
    DocumentSet, DocumentUnit, GroupOptions, SentenceGroup, SentenceGroups, TokenFile, WeightedDocuments,
};
use crate::{Error, Result};

/// Random documents that are tried for a segment that is not empty.
const ATTEMPTS: usize = 10_000;
/// More tokens of one sentence are not read.
const MAX_TOKENS: u64 = 1 << 16;

/// Form of an input's second segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecondSentence {
    /// There is none, and nothing is predicted of it: RoBERTa.
    None,
    /// The sentences that follow, or in half of the inputs sentences of another document: BERT.
    Next,
    /// The sentences that follow, in half of the inputs in the place of the first: ALBERT, and Megatron-LM since its
    /// first version.
    Order,
}

/// How sentences are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PairSampler {
    /// Groups of consecutive sentences, each sentence once in an epoch: Megatron-LM since its first version.
    #[default]
    Groups,
    /// A random document, in proportion to its length, and a random sentence of it: Megatron-LM in 2019. There are no
    /// epochs.
    Random,
}

/// Two segments, the second empty where there is none.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) first: Vec<u32>,
    pub(super) second: Vec<u32>,
    /// Whether the second does not follow the first.
    pub(super) is_other: bool,
}

/// The pairs of one corpus.
#[derive(Debug)]
pub(super) struct PairSource {
    sentences: Sentences,
    set: DocumentSet,
    sampler: Sampler,
    second: SecondSentence,
    key: Key,
    /// Most tokens of both segments.
    most: u64,
    short: f64,
}

#[derive(Debug)]
enum Sampler {
    Groups(SentenceGroups),
    Random(WeightedDocuments),
}

impl PairSource {
    /// Opens a corpus; `options.target_tokens` is the most tokens of both segments.
    pub(super) fn open(
        part: &CorpusPart,
        (sampler, second): (PairSampler, SecondSentence),
        options: &GroupOptions,
        vocabulary: u32,
    ) -> Result<PairSource> {
        let CorpusPart { file, documents, .. } = part;
        if second == SecondSentence::Next && documents.len() < 2 {
            let reason = format!("{} documents, and a random second sentence is another document's", documents.len());
            return Err(Error::argument("documents", reason, "use the order of sentences, or more documents"));
        }
        let sampler = match sampler {
            PairSampler::Groups => Sampler::Groups(SentenceGroups::open(Arc::clone(file), documents, options)?),
            PairSampler::Random => Sampler::Random(WeightedDocuments::open(file, documents, DocumentUnit::Documents)?),
        };
        Ok(PairSource {
            sentences: Sentences { file: Arc::clone(file), vocabulary },
            set: documents.clone(),
            sampler,
            second,
            key: Key::new(options.seed, "sentence pairs"),
            most: options.target_tokens,
            short: options.short,
        })
    }

    /// The segments of a sample.
    pub(super) fn read(&self, sample: u64) -> Result<Pair> {
        let mut random = SampleRandom::new(self.key, sample);
        match &self.sampler {
            Sampler::Groups(groups) => self.of_group(&groups.at(sample)?, &mut random),
            Sampler::Random(documents) => self.of_random(documents, &mut random),
        }
    }

    /// The pair of a group, with at most the group's target of tokens.
    fn of_group(&self, group: &SentenceGroup, random: &mut SampleRandom) -> Result<Pair> {
        let sentences = self.sentences.lengths(group.sentences.clone(), u64::MAX)?;
        let mut pair = self.divided(group.document, &sentences, group.target_tokens, random)?;
        trim(&mut pair, group.target_tokens, random);
        Ok(pair)
    }

    /// The pair of a random document and sentence.
    fn of_random(&self, documents: &WeightedDocuments, random: &mut SampleRandom) -> Result<Pair> {
        let target = if random.chance(self.short) { 2 + random.below(self.most - 1) } else { self.most };
        for _ in 0..ATTEMPTS {
            let document = documents.with_token(random.below(documents.tokens()));
            let all = self.sentences.file.document(document)?;
            let start = all.start + random.below(all.end - all.start);
            let sentences = self.sentences.lengths(start..all.end, target)?;
            let enough = if self.second == SecondSentence::Order { 2 } else { 1 };
            if sentences.len() < enough {
                continue;
            }
            let mut pair = self.divided(document, &sentences, target, random)?;
            trim(&mut pair, self.most, random);
            return Ok(pair);
        }
        let reason = format!("{ATTEMPTS} random places have no sentences for a pair");
        Err(self.sentences.error(reason))
    }

    /// Sentences of a document as two segments.
    fn divided(&self, document: u64, sentences: &[u64], target: u64, random: &mut SampleRandom) -> Result<Pair> {
        if sentences.is_empty() {
            return Err(self.sentences.error(format!("a group of document {document} has no tokens")));
        }
        if self.second == SecondSentence::None {
            return Ok(Pair { first: self.sentences.read(sentences)?, ..Pair::default() });
        }
        let count = sentences.len();
        let is_other = match self.second {
            SecondSentence::Next => count == 1 || random.chance(0.5),
            _ => random.chance(0.5),
        };
        // All of a single sentence is the first segment.
        let end = if count == 1 { 1 } else { 1 + random.index(count - 1) };
        let first = self.sentences.read(&sentences[..end])?;
        if self.second == SecondSentence::Next && is_other {
            let wanted = target.saturating_sub(first.len() as u64).max(1);
            return Ok(Pair { first, second: self.of_another(document, wanted, random)?, is_other });
        }
        let second = self.sentences.read(&sentences[end..])?;
        let swapped = self.second == SecondSentence::Order && is_other;
        let (first, second) = if swapped { (second, first) } else { (first, second) };
        Ok(Pair { first, second, is_other })
    }

    /// Sentences of another document from a random one on, until there are `wanted` tokens. Documents have the same
    /// probability, whatever their length.
    fn of_another(&self, document: u64, wanted: u64, random: &mut SampleRandom) -> Result<Vec<u32>> {
        for _ in 0..ATTEMPTS {
            let other = self.set.at(random.below(self.set.len()));
            if other == document {
                continue;
            }
            let all = self.sentences.file.document(other)?;
            let start = all.start + random.below(all.end - all.start);
            let sentences = self.sentences.lengths(start..all.end, wanted)?;
            if !sentences.is_empty() {
                return self.sentences.read(&sentences);
            }
        }
        let reason = format!("{ATTEMPTS} random documents beside document {document} have no tokens");
        Err(self.sentences.error(reason))
    }
}

/// Reads sentences of a token file.
#[derive(Debug)]
pub(super) struct Sentences {
    pub(super) file: Arc<TokenFile>,
    pub(super) vocabulary: u32,
}

impl Sentences {
    /// The sentences with tokens among these, until they have `wanted` tokens.
    pub(super) fn lengths(&self, sentences: Range<u64>, wanted: u64) -> Result<Vec<u64>> {
        let (mut found, mut tokens) = (Vec::new(), 0);
        for sentence in sentences {
            if tokens >= wanted {
                break;
            }
            let range = self.file.sequence(sentence)?;
            if !range.is_empty() {
                found.push(sentence);
                tokens += range.end - range.start;
            }
        }
        Ok(found)
    }

    /// The tokens of sentences.
    pub(super) fn read(&self, sentences: &[u64]) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        for sentence in sentences {
            let range = self.file.sequence(*sentence)?;
            let before = ids.len();
            ids.resize(before + (range.end - range.start).min(MAX_TOKENS) as usize, 0);
            self.file.read(*sentence, 0, &mut ids[before..])?;
        }
        check_ids(&self.file, &ids, self.vocabulary)?;
        Ok(ids)
    }

    fn error(&self, reason: String) -> Error {
        let fix = "build the corpus from documents of several sentences, with --split-lines; one that was \
                   converted from BERT's records has no sentences, and is built anew from the text";
        Error::data(self.file.prefix().display().to_string(), reason, fix)
    }
}

/// Shortens the longer segment by a token at a time, at its beginning or its end with the same probability, until both
/// have at most `most` tokens.
fn trim(pair: &mut Pair, most: u64, random: &mut SampleRandom) {
    let (mut first, mut second) = (0..pair.first.len(), 0..pair.second.len());
    while (first.len() + second.len()) as u64 > most {
        let longer = if first.len() > second.len() { &mut first } else { &mut second };
        if random.chance(0.5) {
            longer.start += 1;
        } else {
            longer.end -= 1;
        }
    }
    for (segment, kept) in [(&mut pair.first, first), (&mut pair.second, second)] {
        segment.truncate(kept.end);
        segment.drain(..kept.start);
    }
}
