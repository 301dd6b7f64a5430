//! Why a run ended.

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// `train.steps` were done.
    Steps,
    /// `train.epochs` were done.
    Epochs,
    /// `train.minutes` were over.
    Minutes,
    /// Evaluation stopped getting better.
    NoImprovement,
    /// It was requested.
    Request,
}

impl StopReason {
    /// Every reason.
    pub const ALL: [StopReason; 5] =
        [StopReason::Steps, StopReason::Epochs, StopReason::Minutes, StopReason::NoImprovement, StopReason::Request];

    /// The name in `metrics.jsonl`.
    pub fn name(self) -> &'static str {
        match self {
            StopReason::Steps => "steps",
            StopReason::Epochs => "epochs",
            StopReason::Minutes => "minutes",
            StopReason::NoImprovement => "no_improvement",
            StopReason::Request => "request",
        }
    }
}
