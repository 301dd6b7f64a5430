//! The position of a run in its data.

/// The position of a run in its data: all that resuming needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize, serde::Deserialize)]
pub struct Position {
    /// Passes over the data completed.
    pub epoch: u64,
    /// Batch within the epoch, counted over all ranks.
    pub index: u64,
}
