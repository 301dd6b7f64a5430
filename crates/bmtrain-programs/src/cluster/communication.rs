//! Bytes that a rank sends in a step, by dimension, and the number of collectives.
//!
//! Collectives are counted as rings: of a reduce-scatter or an all-gather of n bytes over R ranks each sends (R - 1) /
//! R n, of an all-reduce twice that.

use bmtrain_dist::pipeline::Schedule;
use bmtrain_dist::shard::ZeroLevel;
use model_center_train::formula::{ParallelLayout, TransformerSizes, memory::parameters_of_stage};

/// Bytes that the rank sends that sends most, in a step and in each dimension.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Communication {
    /// All-reduces between ranks that share layers.
    pub tensor: f64,
    /// Hidden states and their gradients between stages.
    pub pipeline: f64,
    /// Gradients and parameters between data-parallel ranks.
    pub data: f64,
}

/// All-reduces of a block's hidden states in one pass: after attention and after the feed-forward layer.
pub const REDUCES_OF_BLOCK: f64 = 2.0;

impl Communication {
    /// Communication of a step.
    pub fn of(sizes: &TransformerSizes, layout: &ParallelLayout, schedule: &Schedule) -> Self {
        let stages = 0..schedule.stages();
        let most = |of: &dyn Fn(usize) -> f64| stages.clone().map(of).fold(0.0, f64::max);
        let messages = most(&|stage| messages(schedule, stage) as f64);
        // Tensor-parallel ranks send parts of a message and gather the parts that arrive: over each edge as many come
        // as go.
        let gathered = messages * ring_share(layout.tensor) * layout.hidden_bytes(sizes);
        Communication {
            tensor: tensor(sizes, layout) + gathered,
            pipeline: messages * layout.message_bytes(sizes),
            data: most(&|stage| data(layout, parameters_of_stage(sizes, layout, (schedule, stage)))),
        }
    }

    /// All dimensions together.
    pub fn total(&self) -> f64 {
        self.tensor + self.pipeline + self.data
    }
}

fn tensor(sizes: &TransformerSizes, layout: &ParallelLayout) -> f64 {
    let passes = if layout.recompute { 3.0 } else { 2.0 };
    let blocks = layout.blocks_of_chunk(sizes) * (layout.chunks * layout.micro_batches) as f64;
    // The sum of the embedding on the first stage, and of the head's input gradient on the last.
    let outer = layout.micro_batches as f64 * if layout.pipeline == 1 { 2.0 } else { 1.0 };
    let reduces = blocks * passes * REDUCES_OF_BLOCK + outer;
    reduces * 2.0 * ring_share(layout.tensor) * layout.hidden_bytes(sizes)
}

/// Messages that a stage sends in a step.
fn messages(schedule: &Schedule, stage: usize) -> usize {
    let leaves = |action| schedule.destination(stage, action).is_some_and(|(to, _)| to != stage);
    schedule.actions(stage).iter().filter(|&&action| leaves(action)).count()
}

fn data(layout: &ParallelLayout, values: f64) -> f64 {
    let (gradients, parameters) = (layout.gradient_bytes as f64 * values, layout.value_bytes as f64 * values);
    let each = layout.micro_batches as f64;
    let volume = match layout.zero {
        ZeroLevel::Zero => 2.0 * gradients,
        ZeroLevel::One => gradients + parameters,
        ZeroLevel::Two => each * gradients + parameters,
        ZeroLevel::Three => each * (gradients + 2.0 * parameters),
    };
    ring_share(layout.data) * volume
}

/// The share of a collective's bytes that each of `ranks` sends in one round of a ring.
pub fn ring_share(ranks: usize) -> f64 {
    (ranks as f64 - 1.0) / ranks as f64
}
