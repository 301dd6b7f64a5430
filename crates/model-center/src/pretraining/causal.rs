//! Next-token prediction over the samples of token files.
//!
//! Defines [`CausalSamples`]. The trainer of pretraining is the caller.

use std::sync::Arc;

use super::PretrainingSamples;
use crate::corpus::{DocumentSet, Mixture, MixtureWeight, SampleOptions, Samples, TokenFile};
use crate::data::{Batch, LabelSpace};
use crate::{Error, Result};

/// Documents of a corpus, and how much of the samples they are.
#[derive(Debug, Clone)]
pub struct CorpusPart {
    /// The corpus.
    pub file: Arc<TokenFile>,
    /// Its documents.
    pub documents: DocumentSet,
    /// How much of the samples they are; any weight for one part alone.
    pub weight: MixtureWeight,
}

/// Samples of L tokens; each but the first is predicted.
#[derive(Debug)]
pub struct CausalSamples {
    parts: Vec<Samples>,
    mixture: Mixture,
    samples: u64,
    length: usize,
    fingerprint: String,
}

impl CausalSamples {
    /// Opens the corpora; `options` are of all of them together.
    ///
    /// # Errors
    /// [`Error::Argument`] for no samples, or weights that mean nothing; what opening samples reports.
    pub fn open(parts: &[CorpusPart], options: &SampleOptions) -> Result<CausalSamples> {
        if options.samples == 0 {
            return Err(Error::argument("samples", "an objective without samples", "ask for at least one"));
        }
        let weights: Vec<MixtureWeight> = parts.iter().map(|part| part.weight).collect();
        let mixture = Mixture::new(&weights, options.seed)?;
        let needed = mixture.needed(options.samples);
        let open = |(part, needed): (&CorpusPart, u64)| {
            // A part may be so small that the first samples have none of it.
            let options = SampleOptions { samples: needed.max(1), ..options.clone() };
            Samples::open(Arc::clone(&part.file), &part.documents, &options)
        };
        // Which tokens a sample has, however many are asked for.
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("causal {} {} {:?}", options.sequence_length, options.seed, options.order).as_bytes());
        for CorpusPart { file, documents, weight } in parts {
            let sizes = [file.tokens(), file.sequences(), file.bytes()];
            hasher.update(format!("\n{sizes:?} {documents:?} {weight:?}").as_bytes());
        }
        Ok(CausalSamples {
            parts: parts.iter().zip(needed).map(open).collect::<Result<_>>()?,
            mixture,
            samples: options.samples,
            length: usize::try_from(options.sequence_length).unwrap_or(usize::MAX),
            fingerprint: hasher.finalize().to_hex().to_string(),
        })
    }
}

impl PretrainingSamples for CausalSamples {
    fn len(&self) -> u64 {
        self.samples
    }

    fn labels(&self) -> &LabelSpace {
        &LabelSpace::NextTokens
    }

    fn max_length(&self) -> usize {
        self.length
    }

    fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    fn batch(&self, samples: &[u64]) -> Result<Batch> {
        let (mut inputs, mut ids) = (Vec::with_capacity(samples.len().saturating_mul(self.length)), Vec::new());
        for sample in samples {
            if *sample >= self.samples {
                let reason = format!("there are {} samples, numbered from 0", self.samples);
                let fix = "ask for more samples when the objective is opened";
                return Err(Error::argument(format!("sample {sample}"), reason, fix));
            }
            let (part, own) = self.mixture.at(*sample);
            self.parts[part].read(own, &mut ids)?;
            // The head shifts the labels, so the token after the last input has no position that predicts it.
            inputs.extend(ids.iter().take(self.length).map(|id| i64::from(*id)));
        }
        let samples = samples.iter().map(|sample| *sample as u32).collect();
        Ok(Batch { samples, ..Batch::next_tokens(self.length, inputs, None) })
    }

    fn weight_of(&self, samples: &[u64]) -> Result<u64> {
        Ok(samples.len() as u64 * (self.length as u64).saturating_sub(1))
    }
}
