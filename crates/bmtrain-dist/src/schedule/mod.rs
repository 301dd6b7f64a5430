//! Pipeline schedules as values: [`Schedule`] lists for every stage what it runs, in order, without any device.
//!
//! Under every kind a chunk of a stage takes its micro-batches in ascending order, each of forward passes, input
//! gradients and weight gradients. So sums over micro-batches have the same terms in the same order, and gradients are
//! equal to the last bit between schedules.

mod check;
mod forward_only;
mod gpipe;
mod interleaved;
mod kind;
mod message;
mod one_forward_one_backward;
mod partition;
mod weight_gradients;
mod zero_bubble;
mod zero_bubble_v;

pub use kind::ScheduleKind;
pub use message::Message;
pub use partition::Partition;

use crate::error::{Error, Result};

/// Most actions of a schedule, over all stages: more is a mistake in a number, and would take gigabytes.
const MAX_ACTIONS: usize = 1 << 22;

/// One of the parts into which a chunk's work on a micro-batch is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Work {
    /// The forward pass.
    Forward,
    /// The whole backward pass: the gradients of the input and of the weights.
    Backward,
    /// The gradient of the chunk's input, which the stage before needs.
    InputGradient,
    /// The gradients of the chunk's weights, which no other stage needs. The activations are released after it.
    WeightGradient,
}

impl Work {
    /// Whether it computes the gradient that the chunk before needs.
    pub fn gives_input_gradient(self) -> bool {
        matches!(self, Work::Backward | Work::InputGradient)
    }

    /// Whether the chunk's activations of the micro-batch are released after it.
    pub fn releases(self) -> bool {
        matches!(self, Work::Backward | Work::WeightGradient)
    }
}

/// Action of a stage at one point of its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Action {
    /// Part of the work.
    pub work: Work,
    /// Number of the chunk among the stage's chunks of the model, from 0.
    pub chunk: usize,
    /// Number of the micro-batch in the step, from 0.
    pub micro_batch: usize,
}

impl Action {
    /// `work` of chunk `chunk` on micro-batch `micro_batch`.
    pub fn new(work: Work, chunk: usize, micro_batch: usize) -> Self {
        Action { work, chunk, micro_batch }
    }
}

/// Placement of the model's chunks on the stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Placement {
    /// Every chunk runs from the first stage to the last.
    Loop,
    /// Two chunks: the first from the first stage to the last, the second back.
    V,
}

/// Actions of every stage of a pipeline in one step, in order.
///
/// ```
/// use bmtrain_dist::pipeline::{Action, Schedule, ScheduleKind, Work};
///
/// # fn main() -> bmtrain_dist::Result<()> {
/// let schedule = Schedule::new(ScheduleKind::OneForwardOneBackward, 4, 1, 8)?;
/// assert_eq!(schedule.actions(3)[1], Action::new(Work::Backward, 0, 0));
/// assert_eq!(schedule.peak_in_flight(0), 4);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    kind: ScheduleKind,
    placement: Placement,
    stages: usize,
    chunks: usize,
    micro_batches: usize,
    actions: Vec<Vec<Action>>,
}

impl Schedule {
    /// The schedule of a kind for `stages` stages with `chunks` chunks of the model each, and `micro_batches`
    /// micro-batches in a step.
    ///
    /// # Errors
    /// Where the kind has another number of chunks, where there is no micro-batch, where `interleaved` gets a number of
    /// micro-batches that is not a multiple of the stages, and above 4 194 304 actions.
    pub fn new(kind: ScheduleKind, stages: usize, chunks: usize, micro_batches: usize) -> Result<Self> {
        let placement = if kind == ScheduleKind::ZeroBubbleV { Placement::V } else { Placement::Loop };
        Schedule::placed(kind, placement, stages, chunks, micro_batches)
    }

    /// Forward passes of `micro_batches` micro-batches with the chunks where this schedule has them: an evaluation
    /// between two steps of training.
    ///
    /// # Errors
    /// As [`Schedule::new`].
    pub fn forward_only(&self, micro_batches: usize) -> Result<Self> {
        Schedule::placed(ScheduleKind::ForwardOnly, self.placement, self.stages, self.chunks, micro_batches)
    }

    fn placed(
        kind: ScheduleKind,
        placement: Placement,
        stages: usize,
        chunks: usize,
        micro_batches: usize,
    ) -> Result<Self> {
        kind.require(stages, chunks, micro_batches)?;
        let actions = [stages, chunks, micro_batches].iter().try_fold(3_usize, |count, &n| count.checked_mul(n));
        if actions.is_none_or(|count| count > MAX_ACTIONS) {
            let reason = format!(
                "{kind} over {stages} stages with {chunks} chunks and {micro_batches} micro-batches has more than \
                 {MAX_ACTIONS} actions; use fewer micro-batches"
            );
            return Err(Error::setting("pipeline schedule", reason));
        }
        let mut schedule = Schedule { kind, placement, stages, chunks, micro_batches, actions: Vec::new() };
        schedule.actions = match kind {
            ScheduleKind::GPipe => gpipe::actions(stages, micro_batches),
            ScheduleKind::OneForwardOneBackward => one_forward_one_backward::actions(stages, micro_batches),
            ScheduleKind::Interleaved => interleaved::actions(stages, chunks, micro_batches),
            ScheduleKind::ZeroBubble => zero_bubble::actions(&schedule),
            ScheduleKind::ZeroBubbleV => zero_bubble_v::actions(&schedule),
            ScheduleKind::ForwardOnly => forward_only::actions(&schedule),
        };
        Ok(schedule)
    }

    /// The kind.
    pub fn kind(&self) -> ScheduleKind {
        self.kind
    }

    /// Number of stages, P.
    pub fn stages(&self) -> usize {
        self.stages
    }

    /// Number of chunks of the model on each stage.
    pub fn chunks(&self) -> usize {
        self.chunks
    }

    /// Number of micro-batches in a step.
    pub fn micro_batches(&self) -> usize {
        self.micro_batches
    }

    /// Number of chunks of the whole model.
    pub fn places(&self) -> usize {
        self.stages * self.chunks
    }

    /// Actions of a stage, in order. Empty for a stage that the schedule does not have.
    pub fn actions(&self, stage: usize) -> &[Action] {
        self.actions.get(stage).map_or(&[], Vec::as_slice)
    }

    /// Place of a stage's chunk in the model, in `0..places()`, in the order of the forward pass.
    pub fn place(&self, stage: usize, chunk: usize) -> usize {
        match self.placement {
            Placement::V if chunk % 2 == 1 => (chunk + 1) * self.stages - 1 - stage,
            _ => chunk * self.stages + stage,
        }
    }

    /// Stage and chunk that hold a place of the model: the inverse of [`Schedule::place`].
    pub fn holder(&self, place: usize) -> (usize, usize) {
        let (chunk, along) = (place / self.stages, place % self.stages);
        match self.placement {
            Placement::V if chunk % 2 == 1 => (self.stages - 1 - along, chunk),
            _ => (along, chunk),
        }
    }
}
