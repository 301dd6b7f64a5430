//! Memory of a rank by formula: the classes of `docs/sizing.md` in three dimensions.

use super::layout::ParallelLayout;
use super::sizes::TransformerSizes;
use bmtrain_dist::pipeline::Schedule;
use bmtrain_dist::shard::ZeroLevel;

/// Memory of a rank by class, bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankMemory {
    /// Parameters at rest.
    pub parameters: f64,
    /// Parameters of other ranks while they are at work.
    pub gathered: f64,
    /// Gradients.
    pub gradients: f64,
    /// Moments, and masters of 16-bit parameters.
    pub optimizer: f64,
    /// Activations of the micro-batches in flight.
    pub activations: f64,
}

impl RankMemory {
    /// All classes, as if they peaked at once: an upper bound.
    pub fn total(&self) -> f64 {
        let RankMemory { parameters, gathered, gradients, optimizer, activations } = self;
        parameters + gathered + gradients + optimizer + activations
    }

    /// The memory of the fullest stage.
    pub fn of(sizes: &TransformerSizes, layout: &ParallelLayout, schedule: &Schedule) -> Self {
        let stages = (0..schedule.stages()).map(|stage| Self::of_stage(sizes, layout, (schedule, stage)));
        let empty = RankMemory { parameters: 0.0, gathered: 0.0, gradients: 0.0, optimizer: 0.0, activations: 0.0 };
        stages.fold(empty, |fullest, stage| if stage.total() > fullest.total() { stage } else { fullest })
    }

    fn of_stage(sizes: &TransformerSizes, layout: &ParallelLayout, (schedule, stage): (&Schedule, usize)) -> Self {
        let values = parameters_of_stage(sizes, layout, (schedule, stage));
        let (value, ranks) = (layout.value_bytes as f64, layout.data as f64);
        let is_shared = layout.data > 1;
        let shard = |from: ZeroLevel| if is_shared && layout.zero >= from { ranks } else { 1.0 };
        let block = sizes.block_parameters() / layout.tensor as f64;
        let gathered = match layout.zero {
            ZeroLevel::Two if is_shared => value * values,
            ZeroLevel::Three if is_shared => value * (2.0 * block).min(values),
            _ => 0.0,
        };
        // The sum over micro-batches is f32; a block's gradients are whole until they are reduced.
        let whole = if is_shared && layout.zero >= ZeroLevel::Two { 2.0 * block * 4.0 } else { 0.0 };
        let masters = if layout.value_bytes < 4 { 12.0 } else { 8.0 };
        RankMemory {
            parameters: value * values / shard(ZeroLevel::Two),
            gathered,
            gradients: 4.0 * values / shard(ZeroLevel::Two) + whole,
            optimizer: masters * values / shard(ZeroLevel::One),
            activations: activations(sizes, layout, schedule.peak_in_flight(stage)),
        }
    }
}

/// Values that a rank of a stage holds without ZeRO: its blocks, and embedding or head where it has them.
pub fn parameters_of_stage(
    sizes: &TransformerSizes,
    layout: &ParallelLayout,
    (schedule, stage): (&Schedule, usize),
) -> f64 {
    let holds = |place: usize| (0..schedule.chunks()).any(|chunk| schedule.place(stage, chunk) == place);
    let (first, last) = (holds(0), holds(schedule.places() - 1));
    // A stage has no block twice.
    let places = layout.blocks_of_chunk(sizes) * schedule.chunks() as f64;
    let blocks = places.min(sizes.unique_layers as f64) * sizes.block_parameters();
    let embedding = if first { sizes.embedding_parameters() } else { 0.0 };
    let has_own_head = last && !(sizes.tied && first);
    let head = if has_own_head { sizes.head_parameters() } else { 0.0 };
    (blocks + embedding + head) / layout.tensor as f64
}

/// Bytes of the activations in flight: of every block while they are kept, else the input of every block and all of
/// one.
fn activations(sizes: &TransformerSizes, layout: &ParallelLayout, in_flight: usize) -> f64 {
    let blocks = in_flight as f64 * layout.blocks_of_chunk(sizes);
    let kept = block_activations(sizes, layout);
    if layout.recompute { blocks * layout.hidden_bytes(sizes) + kept } else { blocks * kept }
}

/// Bytes that a block keeps of a micro-batch: its input, the sum after attention and what the norms give on every rank;
/// queries, keys, values and outputs of the heads and what enters and leaves the activation on the rank that has them.
/// Attention probabilities are not kept.
fn block_activations(sizes: &TransformerSizes, layout: &ParallelLayout) -> f64 {
    let maps = if sizes.gated { 3.0 } else { 1.0 };
    let split = sizes.projected_width() + sizes.query_width() + maps * sizes.feed_forward as f64;
    let values = 4.5 * sizes.width as f64 + split / layout.tensor as f64;
    layout.tokens() * values * layout.value_bytes as f64
}
