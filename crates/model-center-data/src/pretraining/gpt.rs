//! Causal language modelling: the next token at every position, as GPT is pretrained.
//!
//! Defines [`CausalLm`]. Each sample has L inputs and L targets one further.

use super::parts::{CorpusPart, fingerprint};
use super::rows::{RowOptions, Rows};
use super::{PretrainingSamples, SampleInfo, loss_tokens};
use crate::Result;
use model_center_base::batch::{Batch, IGNORED, LabelSpace, Labels};

/// Treatment of the EOD token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CausalOptions {
    /// Positions whose input is EOD have no loss: what follows is the beginning of an unrelated document.
    pub eod_mask_loss: bool,
    /// Tokens attend to tokens of their own document alone, and positions count from its beginning. EOD belongs to the
    /// document that it ends.
    pub reset_documents: bool,
}

/// Samples of next-token prediction.
#[derive(Debug)]
pub struct CausalLm {
    rows: Rows,
    options: CausalOptions,
    eod: u32,
    info: SampleInfo,
}

impl CausalLm {
    /// Opens the corpora.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for options that need an EOD token without one, and what opening
    /// samples reports.
    pub fn open(parts: &[CorpusPart], rows: &RowOptions, options: CausalOptions) -> Result<CausalLm> {
        if options.eod_mask_loss || options.reset_documents {
            rows.require_eod()?;
        }
        let (eod, settings) = (rows.eod.unwrap_or(u32::MAX), (rows.settings(), options));
        let rows = Rows::open(parts, rows)?;
        let info = rows.info(LabelSpace::NextTokens, fingerprint("causal", &settings, parts)?);
        Ok(CausalLm { rows, options, eod, info })
    }
}

impl PretrainingSamples for CausalLm {
    fn info(&self) -> &SampleInfo {
        &self.info
    }

    fn batch(&self, samples: &[u64]) -> Result<Batch> {
        let CausalOptions { eod_mask_loss, reset_documents } = self.options;
        let length = self.rows.length();
        let (mut ids, mut inputs, mut targets, mut starts) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for sample in samples {
            self.rows.read(*sample, &mut ids)?;
            inputs.extend(ids[..length].iter().map(|id| i64::from(*id)));
            targets.extend(ids.windows(2).map(|pair| match pair {
                [input, target] if !(eod_mask_loss && *input == self.eod) => i64::from(*target),
                _ => IGNORED,
            }));
            if reset_documents {
                starts.extend(document_starts(&ids[..length], self.eod));
            }
        }
        Ok(Batch {
            labels: Some(Labels::Predicted(targets)),
            document_starts: reset_documents.then_some(starts),
            ..Batch::new(length, inputs)
        })
    }

    fn weight_of(&self, samples: &[u64]) -> Result<u64> {
        match self.options.eod_mask_loss {
            true => Ok(loss_tokens(&self.batch(samples)?)),
            false => Ok(samples.len() as u64 * self.rows.length() as u64),
        }
    }
}

/// For each token of a sequence, the first token of its document.
pub(super) fn document_starts(ids: &[u32], eod: u32) -> impl Iterator<Item = u32> {
    let mut start = 0;
    ids.iter().zip(0_u32..).map(move |(id, at)| {
        let own = start;
        if *id == eod {
            start = at + 1;
        }
        own
    })
}
