//! The batch equation: samples of a step = micro-batch x accumulation x data ranks.
//!
//! Defines [`BatchParts`]; called by the translations once all four parts that are given are known.

use super::sheet::Sheet;
use crate::{Error, Result};
use model_center_recipe::key;

/// The parts that a source gives, each with where it comes from.
#[derive(Debug, Clone, Default)]
pub(super) struct BatchParts {
    pub(super) batch: Option<(u64, String)>,
    pub(super) micro: Option<(u64, String)>,
    pub(super) accumulation: Option<(u64, String)>,
    /// All ranks, and the tensor-parallel and pipeline-parallel ranks of one data rank.
    pub(super) ranks: Option<u64>,
    pub(super) model_ranks: u64,
}

impl BatchParts {
    /// Writes what follows and checks the equation.
    ///
    /// # Errors
    /// [`Error::Argument`] if the parts contradict each other.
    pub(super) fn write(&self, sheet: &mut Sheet) -> Result<()> {
        let bad = |reason: String| Error::argument("the batch equation", reason, "correct one of the numbers");
        for (name, part) in [("batch", &self.batch), ("micro-batch", &self.micro), ("accumulation", &self.accumulation)]
        {
            if let Some((0, from)) = part {
                return Err(bad(format!("a {name} of 0 ({from})")));
            }
        }
        let model_ranks = self.model_ranks.max(1);
        let data_ranks = match self.ranks {
            Some(ranks) if ranks == 0 || !ranks.is_multiple_of(model_ranks) => {
                let reason = format!("{ranks} ranks are no multiple of {model_ranks} tensor x pipeline ranks");
                return Err(bad(reason));
            }
            Some(ranks) => Some(ranks / model_ranks),
            None => None,
        };
        if let (Some((batch, from)), Some((micro, micro_from))) = (&self.batch, &self.micro) {
            let of_step = self.accumulation.as_ref().map_or(1, |(count, _)| *count);
            let least = micro.saturating_mul(of_step);
            let expected = data_ranks.map(|ranks| least.saturating_mul(ranks));
            let is_exact = self.accumulation.is_some();
            let fits = match expected {
                Some(expected) if is_exact => *batch == expected,
                Some(expected) => batch.is_multiple_of(expected),
                None => batch.is_multiple_of(least),
            };
            if !fits {
                let ranks = data_ranks.map_or_else(String::new, |ranks| format!(" x {ranks} data ranks"));
                let steps = if is_exact { format!(" x {of_step}") } else { String::new() };
                let is_no = if is_exact && data_ranks.is_some() { "is not" } else { "is not a multiple of" };
                return Err(bad(format!("{from} {is_no} {micro}{steps}{ranks} ({micro_from})")));
            }
        }
        let parts = [
            (key!(train.batch_size), &self.batch),
            (key!(train.micro_batch_size), &self.micro),
            (key!(train.accumulation), &self.accumulation),
        ];
        for (key, part) in parts {
            sheet.remove(key);
            if let Some((value, from)) = part {
                sheet.whole(key, *value, from.clone());
            }
        }
        // All three would fix the number of ranks.
        if self.batch.is_some() && self.micro.is_some() && self.accumulation.is_some() && data_ranks.is_none() {
            sheet.remove(key!(train.batch_size));
        }
        if self.ranks.is_some() {
            sheet.ranks = self.ranks;
        }
        Ok(())
    }
}
