//! Several corpora as the source of one objective.
//!
//! Defines [`CorpusPart`], a corpus with its weight, and `Mixed`, which finds the corpus of a sample. Called by every
//! objective of this module.

use std::fmt::Debug;
use std::sync::Arc;

use crate::corpus::{CorpusMixture, DocumentSet, MixtureWeight, TokenFile};
use crate::{Error, Result};

/// Documents of a corpus, and how much of the samples they are.
#[derive(Debug, Clone)]
pub struct CorpusPart {
    /// The corpus.
    pub file: Arc<TokenFile>,
    /// Its documents. Objectives over sentences number the documents of the file, all others its sequences.
    pub documents: DocumentSet,
    /// How much of the samples they are; any weight for one part alone.
    pub weight: MixtureWeight,
}

/// Sources of the samples, for each corpus of a mixture.
#[derive(Debug)]
pub(super) struct Mixed<T> {
    parts: Vec<T>,
    mixture: CorpusMixture,
    samples: u64,
}

impl<T> Mixed<T> {
    /// Opens each part with the number of samples that the mixture takes of it.
    ///
    /// # Errors
    /// [`Error::Argument`] for no samples, or weights that mean nothing; what `open` reports.
    pub(super) fn open(
        parts: &[CorpusPart],
        (samples, seed): (u64, u64),
        mut open: impl FnMut(&CorpusPart, u64) -> Result<T>,
    ) -> Result<Mixed<T>> {
        if samples == 0 {
            return Err(Error::argument("samples", "an objective without samples", "ask for at least one"));
        }
        let weights: Vec<MixtureWeight> = parts.iter().map(|part| part.weight).collect();
        let mixture = CorpusMixture::new(&weights, seed)?;
        // A part may be so small that the first samples have none of it: its maps are opened for one.
        let needed = mixture.needed(samples);
        let parts = parts.iter().zip(needed).map(|(part, needed)| open(part, needed.max(1))).collect::<Result<_>>()?;
        Ok(Mixed { parts, mixture, samples })
    }

    /// Number of samples.
    pub(super) fn len(&self) -> u64 {
        self.samples
    }

    /// The part of a sample, and which of the part's samples it is.
    ///
    /// # Errors
    /// [`Error::Argument`] beyond the last sample.
    pub(super) fn at(&self, sample: u64) -> Result<(&T, u64)> {
        if sample >= self.samples {
            let reason = format!("there are {} samples, numbered from 0", self.samples);
            let fix = "ask for more samples when the objective is opened";
            return Err(Error::argument(format!("sample {sample}"), reason, fix));
        }
        let (part, own) = self.mixture.at(sample);
        Ok((&self.parts[part], own))
    }
}

/// A hash of an objective, its settings and its corpora.
///
/// # Errors
/// What reading the corpora reports.
pub(super) fn fingerprint(objective: &str, settings: &dyn Debug, parts: &[CorpusPart]) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(format!("{objective}\n{settings:?}\n").as_bytes());
    for CorpusPart { file, documents, weight } in parts {
        let line = format!("{} {} {weight:?}\n", file.fingerprint()?, documents.describe());
        hasher.update(line.as_bytes());
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// Checks that token ids are below the vocabulary's size.
///
/// # Errors
/// [`Error::Data`] naming corpus and token.
pub(super) fn check_ids(file: &TokenFile, ids: &[u32], vocabulary: u32) -> Result<()> {
    let Some(id) = ids.iter().find(|id| **id >= vocabulary) else { return Ok(()) };
    let reason = format!("token id {id} is not below the vocabulary's {vocabulary}");
    Err(Error::data(file.prefix().display().to_string(), reason, "use the tokenizer that the corpus was built with"))
}
