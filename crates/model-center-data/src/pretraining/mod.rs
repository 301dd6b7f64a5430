//! Pretraining objectives: samples of token files as batches of a model.
//!
//! ```text
//! token file ─▶ Samples or sentence maps ─▶ PretrainingSamples (an objective) ─▶ Batch ─▶ trainer
//! ```
//!
//! Which tokens sample i has, which of them are masked and what is predicted are a pure function of the objective's
//! settings, its seed and i: a resumed run and any number of ranks or loading threads see the same samples.

mod bert;
mod cpm;
mod gpt;
mod masking;
mod pairs;
mod parts;
mod random;
mod rows;
mod sentinels;
mod spans;
mod t5;

pub use bert::{MaskedLm, MaskedLmOptions};
pub use cpm::{Infilling, InfillingOptions};
pub use gpt::{CausalLm, CausalOptions};
pub use masking::{MaskTokens, Masking, continuations};
pub use pairs::{PairSampler, SecondSentence};
pub use parts::CorpusPart;
pub use rows::{RowOptions, RowSampler};
pub use sentinels::Sentinels;
pub use spans::SpanLengths;
pub use t5::{Packing, SpanCorruption, SpanOptions, SpanSampleLengths, SpanScheme, TargetEnd};

use crate::Result;
use model_center_base::batch::{Batch, IGNORED, LabelSpace, Labels};
use std::fmt::Debug;

/// Properties that all samples of an objective share.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleInfo {
    /// Number of samples.
    pub len: u64,
    /// Label space: the token itself, masked tokens or a target.
    pub labels: LabelSpace,
    /// Whether batches have the decoder's input, and the model need not make it of targets.
    pub gives_decoder_inputs: bool,
    /// Tokens of the longest input.
    pub max_length: usize,
    /// A hash of everything the samples depend on: files, settings and seed.
    pub fingerprint: String,
}

/// The samples of an objective, numbered over all epochs of a run.
pub trait PretrainingSamples: Debug + Send + Sync {
    /// Number, lengths and labels of the samples.
    fn info(&self) -> &SampleInfo;

    /// Number of samples.
    fn len(&self) -> u64 {
        self.info().len
    }

    /// Whether there is no sample.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is predicted.
    fn labels(&self) -> &LabelSpace {
        &self.info().labels
    }

    /// Tokens of the longest input.
    fn max_length(&self) -> usize {
        self.info().max_length
    }

    /// A hash of everything the samples depend on.
    fn fingerprint(&self) -> &str {
        &self.info().fingerprint
    }

    /// The samples with these numbers as one batch, in this order.
    ///
    /// Errors: a number of at least [`SampleInfo::len`], and what reading the files reports.
    fn batch(&self, samples: &[u64]) -> Result<Batch>;

    /// Tokens with a loss in the samples with these numbers: the weight of a micro-batch in the mean of a step.
    ///
    /// Errors: as [`PretrainingSamples::batch`].
    fn weight_of(&self, samples: &[u64]) -> Result<u64> {
        Ok(self.weight(&self.batch(samples)?))
    }

    /// The same of a batch that is formed already.
    fn weight(&self, batch: &Batch) -> u64 {
        loss_tokens(batch)
    }
}

/// Labels of a batch of this module that have a loss: all of them but the ignored ones, as none are shifted.
fn loss_tokens(batch: &Batch) -> u64 {
    let ids = batch.labels.as_ref().and_then(Labels::ids).unwrap_or_default();
    ids.iter().filter(|id| **id != IGNORED).count() as u64
}
