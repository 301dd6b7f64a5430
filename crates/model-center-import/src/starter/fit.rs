//! Number of samples of a micro-batch that fit the memory, by the formulas of `plan`.

use super::Trained;
use super::model::FoundModel;
use bmtrain_dist::inspect::process as memory;
use bmtrain_dist::pipeline::{Schedule, ScheduleKind};
use bmtrain_dist::shard::ZeroLevel;
use model_center_train::formula::{ParallelLayout, RankMemory, TransformerSizes};

/// Share of the memory that the run may take: formulas leave out logits, the data and the program.
const SHARE: f64 = 0.8;
/// Micro-batch where no formula is known.
const CAUTIOUS: usize = 4;
const GIB: f64 = (1_u64 << 30) as f64;

/// Bytes of a value of a quantised matrix: codes of 4 bits, and a scale of 32 bits for 64 of them.
const QUANTIZED: f64 = 4.5 / 8.0;

/// Size of a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    /// Most tokens of a sequence.
    pub(super) length: usize,
    /// Samples of a step.
    pub(super) batch: usize,
    /// Sequences of a sample.
    pub(super) sequences: usize,
}

/// A setting that fits.
pub(super) struct Fit {
    pub(super) micro_batch: usize,
    /// Whether blocks are computed again.
    pub(super) recomputes: bool,
    /// Why the micro-batch is what it is.
    pub(super) reason: String,
    /// The problem, if it does not fit.
    pub(super) problem: Option<String>,
}

/// The largest micro-batch that divides the batch and fits; without recomputation if one sample does.
pub(super) fn fit(model: &FoundModel, trained: Trained, load: Load, memory: Option<u64>) -> Fit {
    let batch = load.batch;
    let available = memory.or(model.device_memory).or_else(memory::available_bytes);
    let as_is = |micro_batch: usize, reason: &str| Fit {
        micro_batch,
        recomputes: false,
        reason: reason.to_owned(),
        problem: None,
    };
    let (Some(sizes), Some(available)) = (model.sizes, available) else {
        let reason = "there is no formula for the memory of this model: see `plan`";
        return as_is(CAUTIOUS.min(batch), reason);
    };
    let room = available as f64 * SHARE;
    let bytes = |micro_batch: usize, recompute: bool| {
        needed(&sizes, trained, load, (micro_batch, recompute, model.value_bytes()))
    };
    let choices = [false, true].into_iter().flat_map(|recompute| {
        let powers = (0..=batch.ilog2()).rev().map(|power| 1_usize << power);
        powers.filter(|micro| batch.is_multiple_of(*micro)).map(move |micro| (micro, recompute))
    });
    for (micro_batch, recomputes) in choices {
        let needed = bytes(micro_batch, recomputes);
        if needed <= room {
            let (needed, all) = (needed / GIB, available as f64 / GIB);
            let reason =
                format!("by formula {needed:.2} GiB of the {all:.1} GiB that there are; `plan` counts exactly");
            return Fit { micro_batch, recomputes, reason, problem: None };
        }
    }
    let needed = bytes(1, true) / GIB;
    let problem = format!(
        "by formula a micro-batch of 1 needs {needed:.1} GiB, and {:.1} GiB are there: train updates with \
         --preset lora or qlora, on more ranks, or a smaller model; `plan` counts exactly",
        available as f64 / GIB
    );
    let reason = "the smallest; it does not fit by formula".to_owned();
    Fit { micro_batch: 1, recomputes: true, reason, problem: Some(problem) }
}

/// Bytes of a rank.
fn needed(
    sizes: &TransformerSizes,
    trained: Trained,
    Load { length, batch, sequences }: Load,
    (micro_batch, recompute, value_bytes): (usize, bool, usize),
) -> f64 {
    let layout = ParallelLayout {
        tensor: 1,
        pipeline: 1,
        data: 1,
        zero: ZeroLevel::Zero,
        schedule: ScheduleKind::OneForwardOneBackward,
        chunks: 1,
        length,
        micro_batch: micro_batch * sequences,
        micro_batches: (batch / micro_batch.max(1)).max(1),
        recompute,
        overlap: true,
        overlap_tensor: true,
        value_bytes,
        gradient_bytes: 4,
    };
    let Ok(schedule) = Schedule::new(layout.schedule, 1, 1, layout.micro_batches) else { return f64::INFINITY };
    let all = RankMemory::of(sizes, &layout, &schedule);
    match trained {
        Trained::Whole => all.total(),
        // Parameters stay; gradients, masters and moments are of the updates alone.
        Trained::LowRank { rank, quantized } => {
            let matrices = if quantized { sizes.layers as f64 * sizes.block_matrices() } else { 0.0 };
            let saved = matrices * (value_bytes as f64 - QUANTIZED);
            all.parameters - saved + all.activations + 20.0 * updates(sizes, rank)
        }
    }
}

/// Values of the updates of all linear layers of the blocks.
fn updates(sizes: &TransformerSizes, rank: usize) -> f64 {
    let width = sizes.width as f64;
    let maps = if sizes.gated { 3.0 } else { 2.0 };
    let attention = 4.0 * width + sizes.projected_width() + sizes.query_width();
    sizes.layers as f64 * rank as f64 * (attention + maps * (width + sizes.feed_forward as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(trained: Trained, micro_batch: usize, recompute: bool) -> f64 {
        let sizes = TransformerSizes::gpt2(12, 768, 12, 50257, 1024);
        needed(&sizes, trained, Load { length: 1024, batch: 16, sequences: 1 }, (micro_batch, recompute, 4))
    }

    #[test]
    fn fewer_samples_recomputation_and_updates_need_less() {
        let whole = bytes(Trained::Whole, 8, false);
        assert!(bytes(Trained::Whole, 4, false) < whole && bytes(Trained::Whole, 8, true) < whole);
        // 124 million parameters with gradients and two moments in f32, and what is kept of eight samples.
        let fixed = 16.0 * 124.4e6;
        assert!(whole > fixed && bytes(Trained::Whole, 1, true) < 1.2 * fixed, "{whole}");
        let of_updates = |quantized: bool| bytes(Trained::LowRank { rank: 16, quantized }, 1, true);
        let updates = of_updates(false);
        assert!(updates > 4.0 * 124e6 && updates < 0.4 * fixed, "{updates}");
        // 85 million values of matrices in 4.5 bits in place of 32.
        let saved = updates - of_updates(true);
        assert!((saved - 85e6 * 27.5 / 8.0).abs() < 1e7, "{saved}");
    }
}
