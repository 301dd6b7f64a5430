//! The kinds of schedule, their names and what each requires of stages, chunks and micro-batches.

use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// In which order a stage runs the micro-batches of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScheduleKind {
    /// All forward passes, then all backward passes. Every micro-batch is in flight at once.
    GPipe,
    /// After a warm-up one forward pass and one backward pass in turn. At most P micro-batches are in flight.
    OneForwardOneBackward,
    /// One forward and one backward in turn over several chunks of the model on each rank, which divide the bubble.
    Interleaved,
    /// One forward and one backward in turn, where the gradients of weights fill the waits: a third of the bubble at
    /// the same memory.
    ZeroBubble,
    /// Two chunks on each rank along a V: no bubble where the three parts of a chunk's work take equal time.
    ZeroBubbleV,
    /// Forward passes alone, for evaluation.
    ForwardOnly,
}

impl ScheduleKind {
    /// Every kind.
    pub const ALL: [ScheduleKind; 6] = [
        ScheduleKind::GPipe,
        ScheduleKind::OneForwardOneBackward,
        ScheduleKind::Interleaved,
        ScheduleKind::ZeroBubble,
        ScheduleKind::ZeroBubbleV,
        ScheduleKind::ForwardOnly,
    ];

    /// The name in recipes and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            ScheduleKind::GPipe => "gpipe",
            ScheduleKind::OneForwardOneBackward => "1f1b",
            ScheduleKind::Interleaved => "interleaved",
            ScheduleKind::ZeroBubble => "zb-1p",
            ScheduleKind::ZeroBubbleV => "zb-v",
            ScheduleKind::ForwardOnly => "forward-only",
        }
    }

    /// Chunks of a rank where nothing else is set.
    pub fn default_chunks(self) -> usize {
        match self {
            ScheduleKind::Interleaved | ScheduleKind::ZeroBubbleV => 2,
            _ => 1,
        }
    }

    /// Whether gradients of inputs and of weights are separate work.
    pub fn splits_backward(self) -> bool {
        matches!(self, ScheduleKind::ZeroBubble | ScheduleKind::ZeroBubbleV)
    }

    /// Idle time over compute time of the rank that waits most, from its first forward to its last weight gradient,
    /// where every chunk takes equal time, both gradients take as long as the forward pass each, and communication
    /// takes none. None where there are too few micro-batches for the formula: fewer than P under `zb-1p`, than 2 P
    /// under `zb-v`.
    ///
    /// Source: Narayanan et al., 2021, section 2.2; Qi et al., 2023, tables 1 and 4.
    pub fn bubble(self, stages: usize, chunks: usize, micro_batches: usize) -> Option<f64> {
        let (p, v, m) = (stages as f64, chunks as f64, micro_batches as f64);
        match self {
            _ if stages == 1 => Some(0.0),
            ScheduleKind::GPipe | ScheduleKind::OneForwardOneBackward => Some((p - 1.0) / m),
            ScheduleKind::Interleaved => Some((p - 1.0) / (v * m)),
            ScheduleKind::ZeroBubble => (m >= p).then_some((p - 1.0) / (3.0 * m)),
            ScheduleKind::ZeroBubbleV => (m >= 2.0 * p).then_some(0.0),
            // Ranks wait before their first and after their last forward pass alone.
            ScheduleKind::ForwardOnly => (chunks == 1).then_some(0.0),
        }
    }

    /// The fewest micro-batches of a step that give every stage work at the same time and have the bubble of the
    /// [formula](ScheduleKind::bubble). Fewer can be run, but stages wait for most of the step.
    pub fn fewest_micro_batches(self, stages: usize) -> usize {
        match self {
            _ if stages <= 1 => 1,
            ScheduleKind::ForwardOnly => 1,
            ScheduleKind::ZeroBubbleV => stages.saturating_mul(2),
            _ => stages,
        }
    }

    /// Whether a step of `micro_batches` micro-batches has the [fewest](ScheduleKind::fewest_micro_batches) or more,
    /// and can be run.
    pub fn is_filled_by(self, stages: usize, micro_batches: usize) -> bool {
        let divides = self != ScheduleKind::Interleaved || micro_batches.is_multiple_of(stages.max(1));
        divides && micro_batches >= self.fewest_micro_batches(stages)
    }

    /// Refuses what no schedule of this kind can run.
    pub(super) fn require(self, stages: usize, chunks: usize, micro_batches: usize) -> Result<()> {
        let refuse = |reason: String| Err(Error::setting("pipeline schedule", format!("{self} {reason}")));
        if stages == 0 || chunks == 0 {
            return refuse(format!("needs at least 1 stage and 1 chunk, got {stages} stages and {chunks} chunks"));
        }
        match self {
            ScheduleKind::Interleaved if chunks < 2 => {
                return refuse(format!("needs at least 2 chunks of a rank, got {chunks}; use 1f1b for 1"));
            }
            ScheduleKind::ZeroBubbleV if chunks != 2 => {
                return refuse(format!("has exactly 2 chunks of a rank, got {chunks}"));
            }
            ScheduleKind::GPipe | ScheduleKind::OneForwardOneBackward | ScheduleKind::ZeroBubble if chunks != 1 => {
                return refuse(format!("has 1 chunk of a rank, got {chunks}; use interleaved for several"));
            }
            _ => {}
        }
        if micro_batches == 0 {
            return refuse("needs at least 1 micro-batch, got 0".into());
        }
        let rest = micro_batches % stages;
        if self == ScheduleKind::Interleaved && rest != 0 {
            let (below, above) = (micro_batches - rest, (micro_batches - rest).saturating_add(stages));
            let nearest = if below == 0 { format!("{above}") } else { format!("{below} or {above}") };
            return refuse(format!(
                "needs a multiple of its {stages} stages as the number of micro-batches, got {micro_batches}; \
                 use {nearest}"
            ));
        }
        Ok(())
    }
}

impl fmt::Display for ScheduleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ScheduleKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        ScheduleKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let known = ScheduleKind::ALL.map(ScheduleKind::name).join(", ");
            Error::setting("pipeline schedule", format!("unknown schedule \"{name}\"; expected one of {known}"))
        })
    }
}
