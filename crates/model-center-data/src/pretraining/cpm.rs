//! Infilling, as CPM-1 is pretrained: a part of each document is predicted from what is before and after it.
//!
//! Defines [`Infilling`]. CPM-2 is pretrained by [`super::SpanCorruption`].

use bmtrain_core::philox::Key;

use super::parts::{CorpusPart, fingerprint};
use super::random::SampleRandom;
use super::rows::{RowOptions, Rows};
use super::{PretrainingSamples, SampleInfo};
use crate::{Error, Result};
use model_center_base::batch::{Batch, IGNORED, LabelSpace, Labels};

/// The predicted part begins after an eighth to a quarter of a document and ends after three quarters to all of it.
const EIGHTHS: [[u64; 2]; 2] = [[1, 2], [6, 8]];
/// An eighth of a shorter document is less than a token.
const FEWEST: usize = 8;

/// Which documents have a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InfillingOptions {
    /// Shorter documents are predicted whole, each token from those before it.
    pub shortest: usize,
}

impl Default for InfillingOptions {
    /// ModelCenter's: 32 tokens.
    fn default() -> Self {
        InfillingOptions { shortest: 32 }
    }
}

/// Samples of infilling: rows of documents that each attend to themselves alone. The tokens before and after the
/// predicted part are its context, with bidirectional attention.
#[derive(Debug)]
pub struct Infilling {
    rows: Rows,
    options: InfillingOptions,
    eod: u32,
    key: Key,
    info: SampleInfo,
}

impl Infilling {
    /// Opens the corpora.
    ///
    /// # Errors
    /// [`Error::Argument`] without an EOD token or for a bound below 8; what opening samples reports.
    pub fn open(parts: &[CorpusPart], rows: &RowOptions, options: InfillingOptions) -> Result<Infilling> {
        let eod = rows.require_eod()?;
        if options.shortest < FEWEST {
            let reason = format!("a context in documents of {} tokens", options.shortest);
            return Err(Error::argument("infilling", reason, format!("use {FEWEST} tokens or more")));
        }
        if rows.samples.sequence_length < 2 {
            let reason = format!("samples of {} tokens", rows.samples.sequence_length);
            return Err(Error::argument("sequence length", reason, "use the number of positions of the model"));
        }
        let fingerprint = fingerprint("infilling", &(rows.settings(), options), parts)?;
        let key = Key::new(rows.samples.seed, "infilling");
        let rows = Rows::open(parts, rows)?;
        let info = rows.info(LabelSpace::NextTokens, fingerprint);
        Ok(Infilling { rows, options, eod, key, info })
    }
}

impl PretrainingSamples for Infilling {
    fn info(&self) -> &SampleInfo {
        &self.info
    }

    fn batch(&self, samples: &[u64]) -> Result<Batch> {
        let length = self.rows.length();
        let all = samples.len() * length;
        let (mut inputs, mut spans) = (Vec::with_capacity(all), Vec::with_capacity(all));
        let (mut labels, mut context) = (vec![IGNORED; all], vec![0; all]);
        let mut ids = Vec::new();
        for (sample, row) in samples.iter().zip((0..).step_by(length)) {
            self.rows.read(*sample, &mut ids)?;
            ids.truncate(length);
            inputs.extend(ids.iter().map(|id| i64::from(*id)));
            let mut random = SampleRandom::new(self.key, *sample);
            let mut start = row;
            for (document, span) in ids.split_inclusive(|id| *id == self.eod).zip(0_i64..) {
                let end = start + document.len();
                spans.extend(std::iter::repeat_n(span, document.len()));
                let mut predicted = start + 1..end;
                if document.len() >= self.options.shortest {
                    let [from, to] = EIGHTHS.map(|[least, most]| {
                        let [least, most] = [least, most].map(|eighths| document.len() as u64 * eighths / 8);
                        (least + random.below(most - least + 1)) as usize
                    });
                    predicted = start + from..start + to;
                    context[start..predicted.start].fill(1);
                    context[predicted.end..end].fill(1);
                }
                for at in predicted {
                    labels[at - 1] = inputs[at];
                }
                start = end;
            }
        }
        Ok(Batch {
            labels: Some(Labels::Predicted(labels)),
            context: Some(context),
            span: Some(spans),
            ..Batch::new(length, inputs)
        })
    }
}
