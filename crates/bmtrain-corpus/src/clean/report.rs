//! Fates of the documents, in numbers.

use serde_json::{Map, Value, json};

use super::fates::{Fate, Fates};
use super::state::CleanState;
use super::store::StorePosition;
use crate::Result;
use model_center_data::corpus::text::DocumentCounts;

/// Report of cleaning.
#[derive(Debug, Clone, PartialEq)]
pub struct CleanReport {
    /// Counts of what was read.
    pub counts: DocumentCounts,
    /// Documents by what became of them, `kept` first, then in the order of the stages.
    pub documents: Vec<(&'static str, u64)>,
    /// Documents whose text was repaired.
    pub repaired: u64,
    /// Documents without a task's text that they had, where something is left.
    pub split: u64,
    /// Pairs of near-duplicates that were reported.
    pub pairs: u64,
    /// Documents and bytes of the result.
    pub written: (u64, u64),
    /// Documents that an earlier process had screened.
    pub resumed: u64,
    /// Whether it was stopped on request; the same call goes on.
    pub stopped: bool,
}

impl CleanReport {
    pub(super) fn new(
        state: &CleanState,
        fates: &Fates,
        written: Option<StorePosition>,
        resumed: u64,
    ) -> Result<CleanReport> {
        let (counts, repaired, split) = fates.counts()?;
        Ok(CleanReport {
            counts: state.counts,
            documents: Fate::ALL.iter().map(|(fate, name)| (*name, counts[*fate as usize])).collect(),
            repaired,
            split,
            pairs: state.pairs,
            written: written.map_or((0, 0), |written| (written.documents, written.bytes)),
            resumed,
            stopped: written.is_none(),
        })
    }

    /// Documents with this name in [`CleanReport::documents`].
    pub fn count(&self, name: &str) -> u64 {
        self.documents.iter().find(|(known, _)| *known == name).map_or(0, |(_, count)| *count)
    }

    /// The report as it is written to `report.json`.
    pub fn to_json(&self) -> Value {
        let documents: Map<String, Value> =
            self.documents.iter().map(|(name, count)| ((*name).to_owned(), (*count).into())).collect();
        json!({
            "read": self.counts.documents, "empty": self.counts.empty, "unusable": self.counts.unusable,
            "text_bytes": self.counts.bytes, "documents": documents, "repaired": self.repaired, "split": self.split,
            "pairs": self.pairs, "written_documents": self.written.0, "written_bytes": self.written.1,
        })
    }
}
