//! Throughput of a run as a share of the peak of its ranks.

use super::finetune::RunConfig;
use super::model_options::multiplies_bf16;
use super::trainer::Trainer;
use crate::formula::families::sizes_of_config;
use bmtrain_core::cpu::InstructionSet;
use bmtrain_core::cpu::gemm::{measure_bf16_peak, measure_peak};
use model_center_recipe::Resolved;

/// Peak of a rank in floating-point operations per second: the recipe's, else what `measure` finds of products of bf16
/// by bf16 or of f32, whichever the run computes. The peak of a CUDA device is not measured: 0, for unknown.
pub(super) fn peak_of(resolved: &Resolved, on_processors: bool, measure: impl FnOnce(bool) -> f64) -> f64 {
    let measured = || if on_processors { measure(multiplies_bf16(resolved)) } else { 0.0 };
    resolved.log.peak_tflops.map_or_else(measured, |tflops| 1e12 * tflops)
}

/// Peak that this number of threads reach, of products of bf16 by bf16 (where the set multiplies them) or of f32.
pub(super) fn measured_peak(in_bf16: bool, threads: usize, set: InstructionSet) -> f64 {
    let measure = if in_bf16 { measure_bf16_peak } else { measure_peak };
    measure(threads, set)
}

/// Numbers from which the share of the peak is computed.
pub(super) struct PeakThroughput {
    /// Floating-point operations per second of all ranks' processors; 0 where unknown.
    flops: f64,
    flops_per_token: f64,
}

impl PeakThroughput {
    /// Logits and the weighted sums of attention are left out: they depend on the lengths, and up to a few hundred
    /// tokens they are a few percent of the rest. The share of the peak is too low by so much. A token of an
    /// encoder-decoder passes one of its two halves; a classifier's passes both.
    pub(super) fn new(flops: f64, trainer: &Trainer) -> Self {
        let passed = if trainer.model.info().generates_targets { 0.5 } else { 1.0 };
        PeakThroughput { flops, flops_per_token: 6.0 * passed * trainer.model.matmul_parameters() as f64 }
    }

    /// The same with the arithmetic of attention and head, where the sizes and the length of sequences are known.
    pub(super) fn of_pretraining(self, config: &RunConfig) -> Self {
        let flops_per_token = model_flops(config).unwrap_or(self.flops_per_token);
        PeakThroughput { flops_per_token, ..self }
    }

    /// Share of the peak that a step with this number of tokens, padding included, reached; `None` where the peak is
    /// unknown.
    pub(super) fn share(&self, tokens: u64, seconds: f64) -> Option<f64> {
        let work = self.flops_per_token * tokens as f64;
        (self.flops > 0.0).then(|| work / seconds / self.flops)
    }
}

/// Floating-point operations of the model for a token of a pretraining sample: what is recomputed does not count.
pub(super) fn model_flops(config: &RunConfig) -> Option<f64> {
    let settings = config.resolved.data.source.pretraining()?;
    let sizes = sizes_of_config(config.setup.start.config.as_ref()?).ok()?;
    Some(sizes.training_flops(settings.sequence_length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model_center_recipe::Recipe;

    fn recipe(further: &[&str]) -> Resolved {
        let sets = ["model.path=m", "data.task=classification", "data.train=t.csv", "data.labels=[\"a\", \"b\"]"];
        let sets = sets.iter().chain(&["train.steps=1", "output.dir=o"]).chain(further);
        Recipe::load(None, &sets.map(ToString::to_string).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn the_peak_is_that_of_the_products_that_the_run_computes() {
        let peak = |further: &[&str], on_processors| {
            peak_of(&recipe(further), on_processors, |in_bf16| if in_bf16 { 16e12 } else { 1e12 })
        };
        assert_eq!(peak(&[], true), 1e12);
        assert_eq!(peak(&["model.dtype=f16"], true), 1e12);
        assert_eq!(peak(&["model.dtype=bf16"], true), 16e12);
        assert_eq!(peak(&["train.products=bf16"], true), 16e12);
        // Not measured on a CUDA device, and not where the recipe states it.
        assert_eq!(peak(&["model.dtype=bf16"], false), 0.0);
        for on_processors in [true, false] {
            assert_eq!(peak(&["model.dtype=bf16", "log.peak_tflops=0.5"], on_processors), 5e11);
        }
    }

    #[test]
    fn where_the_processor_multiplies_bf16_faster_its_peak_is_higher() {
        let set = InstructionSet::best();
        // The best of some in turn: neighbours on the machine make one measurement shorter, never longer.
        let best = (0..3).fold([0.0_f64; 2], |best, _| {
            [best[0].max(measured_peak(true, 1, set)), best[1].max(measured_peak(false, 1, set))]
        });
        let [bf16, f32] = best;
        assert!(f32 > 1e8, "{f32}");
        if set.multiplies_bf16() {
            // Twice with dot products of pairs, sixteen times with tiles.
            assert!(bf16 > 1.2 * f32, "{bf16} and {f32}");
        }
    }

    #[test]
    fn a_share_is_the_work_of_the_tokens_over_that_of_the_peak() {
        let peak = PeakThroughput { flops: 2e12, flops_per_token: 6e6 };
        let share = peak.share(1000, 0.01).unwrap();
        assert!((share - 0.3).abs() < 1e-12, "{share}");
        assert_eq!(PeakThroughput { flops: 0.0, ..peak }.share(1000, 0.01), None);
    }
}
