//! `[checkpoint]`: how the state of a run is saved, to go on from if it is cut off.

use super::eval::Interval;
use crate::recipe::engine::kinds::Range::AtLeast;
use crate::recipe::engine::table::settings;

settings! {
    /// `[checkpoint]`: how the state of the run is saved, to go on from if it is cut off.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct CheckpointSettings in "checkpoint", uncounted (r) {
        /// Interval of checkpoints in steps or epochs.
        pub every: Interval = interval(Interval::Never, ("never", Interval::Never)), "0.1";
        /// Interval of checkpoints in minutes; 0 for none by the clock.
        pub minutes: f64 = float(10.0, AtLeast(0.0)), "0.1";
        /// Number of checkpoints that are kept.
        pub keep: usize = integer(2, 2..=1000), "0.1";
        /// Whether the run continues or stops when a checkpoint cannot be saved.
        pub on_failure: OnSaveFailure = choice(
            &[("continue", OnSaveFailure::Continue), ("stop", OnSaveFailure::Stop)], OnSaveFailure::Continue), "0.1";
        /// Save moments and master weights too; from checkpoints without them a run resumes with `--fresh-optimizer`.
        pub optimizer_state: bool = flag(true), "0.2";
    }
}

/// Reaction to a checkpoint that cannot be saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnSaveFailure {
    /// It goes on, and tries again at the next one.
    Continue,
    /// It ends with the error.
    Stop,
}
