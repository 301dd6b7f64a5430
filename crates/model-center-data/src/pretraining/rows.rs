//! Token sequences of a fixed length from documents: packed ones, or random windows.
//!
//! Defines [`RowOptions`] and `Rows`, which the objectives over plain text read.

use std::sync::Arc;

use bmtrain_core::philox::Key;

use super::SampleInfo;
use super::parts::{CorpusPart, Mixed, check_ids};
use super::random::SampleRandom;
use crate::corpus::{DocumentUnit, SampleOptions, SampleOrder, Samples, TokenFile, WeightedDocuments};
use crate::{Error, Result};
use model_center_base::batch::LabelSpace;

/// Random documents that are tried for one sample; documents without tokens are never chosen.
const ATTEMPTS: usize = 1 << 20;

/// How samples are cut from documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RowSampler {
    /// The documents of an epoch one after the other, cut every L tokens: each token once in an epoch.
    #[default]
    Packed,
    /// A random window of a random document, chosen in proportion to its length; a shorter document is followed by
    /// further random ones. What Megatron-LM did in 2019. There are no epochs.
    RandomWindows,
}

/// Sequences of L + 1 tokens: L inputs and the targets one further.
#[derive(Debug, Clone)]
pub struct RowOptions {
    /// Length, number, seed and order of the samples, and where maps are kept.
    pub samples: SampleOptions,
    /// How samples are cut from documents.
    pub sampler: RowSampler,
    /// The EOD token, which ends a document. Random windows append it to documents that do not end with it.
    pub eod: Option<u32>,
    /// Number of tokens of the vocabulary: ids are below it.
    pub vocabulary: u32,
}

impl RowOptions {
    /// The EOD token, for what cannot do without one.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is none.
    pub(super) fn require_eod(&self) -> Result<u32> {
        self.eod.ok_or_else(|| {
            let fix = "name the token that ends documents, and build the corpus with --append-eod";
            Error::argument("EOD token", "documents are told apart by it, and there is none", fix)
        })
    }

    /// Settings on which the samples depend. More samples change none of the earlier ones, except in Megatron-LM's
    /// orders.
    pub(super) fn settings(&self) -> String {
        let SampleOptions { sequence_length, samples, seed, order, .. } = &self.samples;
        let samples = (*order != SampleOrder::Addressed).then_some(samples);
        let RowOptions { sampler, eod, vocabulary, .. } = self;
        format!("{sequence_length} {samples:?} {seed} {} {sampler:?} {eod:?} {vocabulary}", order.name())
    }
}

/// The samples of one corpus.
#[derive(Debug)]
struct RowSource {
    file: Arc<TokenFile>,
    samples: RowSamples,
}

#[derive(Debug)]
enum RowSamples {
    Packed(Samples),
    Windows { documents: WeightedDocuments, key: Key, eod: Option<u32> },
}

/// Samples of L + 1 checked token ids.
#[derive(Debug)]
pub(super) struct Rows {
    corpora: Mixed<RowSource>,
    length: usize,
    vocabulary: u32,
}

impl Rows {
    /// Opens the corpora, and computes maps where they are needed.
    pub(super) fn open(parts: &[CorpusPart], options: &RowOptions) -> Result<Rows> {
        let SampleOptions { sequence_length, samples, seed, .. } = options.samples;
        let length = usize::try_from(sequence_length).ok().filter(|length| *length < u32::MAX as usize);
        let Some(length) = length.filter(|length| *length > 0) else {
            let reason = format!("samples of {sequence_length} tokens");
            return Err(Error::argument("sequence length", reason, "use the number of positions of the model"));
        };
        if let Some(eod) = options.eod.filter(|eod| *eod >= options.vocabulary) {
            let reason = format!("the EOD token {eod} is not below the vocabulary's {}", options.vocabulary);
            return Err(Error::argument("EOD token", reason, "use a token of the tokenizer"));
        }
        let corpora = Mixed::open(parts, (samples, seed), |part, needed| {
            let file = Arc::clone(&part.file);
            let samples = match options.sampler {
                RowSampler::Packed => {
                    let own = SampleOptions { samples: needed, ..options.samples.clone() };
                    RowSamples::Packed(Samples::open(Arc::clone(&file), &part.documents, &own)?)
                }
                RowSampler::RandomWindows => RowSamples::Windows {
                    documents: WeightedDocuments::open(&file, &part.documents, DocumentUnit::Sequences)?,
                    key: Key::new(seed, "random windows"),
                    eod: options.eod,
                },
            };
            Ok(RowSource { file, samples })
        })?;
        Ok(Rows { corpora, length, vocabulary: options.vocabulary })
    }

    /// What the samples share.
    pub(super) fn info(&self, labels: LabelSpace, fingerprint: String) -> SampleInfo {
        let (len, max_length) = (self.corpora.len(), self.length);
        SampleInfo { len, labels, gives_decoder_inputs: false, max_length, fingerprint }
    }

    /// L.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Replaces `ids` by the L + 1 tokens of a sample.
    pub(super) fn read(&self, sample: u64, ids: &mut Vec<u32>) -> Result<()> {
        let (source, own) = self.corpora.at(sample)?;
        match &source.samples {
            RowSamples::Packed(samples) => samples.read(own, ids)?,
            RowSamples::Windows { documents, key, eod } => {
                let random = SampleRandom::new(*key, own);
                read_windows(&source.file, (documents, *eod), random, (self.length + 1, ids))?;
            }
        }
        check_ids(&source.file, ids, self.vocabulary)
    }
}

/// Fills `ids` with `wanted` tokens of random documents.
fn read_windows(
    file: &TokenFile,
    (documents, eod): (&WeightedDocuments, Option<u32>),
    mut random: SampleRandom,
    (wanted, ids): (usize, &mut Vec<u32>),
) -> Result<()> {
    ids.clear();
    for _ in 0..ATTEMPTS {
        if ids.len() >= wanted {
            return Ok(());
        }
        let document = documents.with_token(random.below(documents.tokens()));
        let range = file.sequence(document)?;
        let own = range.end - range.start;
        let mut last = [0];
        if let Some(at) = own.checked_sub(1) {
            file.read(document, at, &mut last)?;
        }
        let appended = eod.filter(|eod| own > 0 && last[0] != *eod);
        let length = own + u64::from(appended.is_some());
        let room = wanted - ids.len();
        // Only the first document of a sample may begin in its middle, as only it can be longer than the sample.
        let start = match ids.is_empty() && length > wanted as u64 {
            true => random.below(length - wanted as u64 + 1),
            false => 0,
        };
        let count = (length - start).min(room as u64);
        let stored = count.min(own - start);
        let before = ids.len();
        ids.resize(before + stored as usize, 0);
        file.read(document, start, &mut ids[before..])?;
        if count > stored {
            ids.extend(appended);
        }
    }
    let reason = format!("{ATTEMPTS} random documents have fewer than {wanted} tokens");
    Err(Error::data(file.prefix().display().to_string(), reason, "choose packed samples"))
}
