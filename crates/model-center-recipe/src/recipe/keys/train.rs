//! `[train]`: how a model is trained. Keys that make one setting together are in files of their own.

use super::average::{self, AverageKeys};
use super::batch_ramp::{self, BatchRamp, BatchRampKeys};
use super::eval::EvalMetric;
use super::groups::ParamGroupSettings;
use super::loss_scale::{self, LossScale, LossScaleKeys};
use super::optimizer::{self, OptimizerKeys, OptimizerSettings};
use super::schedule::{self, ScheduleKeys};
use super::{DEFAULT_SEED, MAX_SAMPLES, MAX_STEPS};
use crate::recipe::engine::kinds::MAX_INTEGER;
use crate::recipe::engine::kinds::Range::{Above, AtLeast, Below, Within};
use crate::recipe::engine::reader::Reader;
use crate::recipe::engine::table::{Compared, settings};
use crate::{Error, Result};
use bmtrain_core::DType;
use bmtrain_core::kernel::NormOrder;
use bmtrain_dist::block::{InputStore, Recompute};
use bmtrain_dist::optim::{AverageForm, Clip, DecaySpan, ScheduleKind, Warmup};
use bmtrain_dist::shard::GradientSum;

const UNBOUNDED: &str = "not set: no such limit";

/// Advice for programs whose steps do not have a key.
const LOOP: &str = "leave it out: the program's own loop ends training";
pub(super) const GIVEN: &str = "leave it out: a step takes the batches that it is given";
const OPENED: &str = "give it when the model is opened";
const NOT_OF_STEP: &str = "it is not a setting of a step";
pub(super) const RECIPE: &str = "leave it out, or train with a recipe";

settings! {
    /// `[train]`: how it is trained.
    #[derive(Debug, Clone, PartialEq)]
    pub struct TrainSettings in "train" (r) {
        /// Stop after this many passes over the training data. The first limit that is reached ends the run.
        pub epochs: Option<f64> = optional_float(UNBOUNDED, Above(0.0), 3.0), "0.1", schedule(), not_of_step(LOOP);
        /// Stop after this many optimizer steps.
        pub steps: Option<u64> = optional_integer(UNBOUNDED, 1..=MAX_STEPS, 1000), "0.1", schedule();
        /// Stop this many minutes after the first step began.
        pub minutes: Option<f64> = optional_float(UNBOUNDED, Above(0.0), 60.0), "0.1", schedule(), not_of_step(LOOP);
        /// Samples of an optimizer step, over all ranks.
        pub batch_size: usize = integer(32, 1..=MAX_SAMPLES), "0.1", not_of_step(GIVEN);
        /// Samples of one forward pass of a rank; gradients of the micro-batches of a step are accumulated. A resumed
        /// run keeps its size.
        pub micro_batch_size: usize = integer(batch_size, 1..=MAX_SAMPLES), "0.1", follows("train.batch_size"),
            default("`train.batch_size` / data ranks"), not_of_step(GIVEN);
        /// Micro-batches of a data-parallel rank in one step: `train.batch_size` is `train.micro_batch_size` x
        /// `train.accumulation` x data ranks, and one of the three may be left out.
        pub accumulation: Option<usize> = optional_integer(
            "not set: train.batch_size / (train.micro_batch_size x data ranks)", 1..=MAX_SAMPLES, 4), "0.2",
            uncounted(),
            not_of_step(GIVEN);
        /// Peak learning rate; for `noam` the factor of its formula.
        pub lr: f64 = float(5e-5, Above(0.0)), "0.1", schedule();
        /// The decay of the learning rate.
        pub schedule: ScheduleKind = { schedule::read(r) } rows ScheduleKeys;
        /// Length of the linear warm-up; a fraction of the steps is rounded up.
        pub warmup: Warmup = warmup(), "0.1", schedule();
        /// Steps that the learning rate's schedule is made for, where it is not the length of the run.
        pub decay_steps: Option<u64> = optional_integer("not set: the steps of the run", 1..=MAX_STEPS, 990_000), "0.2",
            schedule();
        /// Where a linear or cosine decay ends: at its last step (`exact`), or the warm-up's length later, by
        /// Megatron-LM's formula of 2019.
        pub decay_endpoint: DecaySpan = choice(
            &[("exact", DecaySpan::AfterWarmup), ("megatron-2019", DecaySpan::All)], DecaySpan::AfterWarmup), "0.2",
            schedule(), later("\"exact\"");
        /// Share of `train.lr` below which the schedule does not decay; `linear-with-min-lr` and `cosine-with-min-lr`
        /// end at it.
        pub final_lr_ratio: f64 = float(0.0, Within(0.0, 1.0)), "0.1", schedule();
        /// Weight decay.
        pub weight_decay: f32 = single(0.01, AtLeast(0.0)), "0.1";
        /// Apply weight decay to norms and biases too.
        pub decay_norms_and_biases: bool = flag(false), "0.1";
        /// Parameters with a learning rate, as a factor of `train.lr`, or a weight decay of their own, by patterns of
        /// their names in which `*` stands for anything; the first that matches decides.
        pub groups: Vec<ParamGroupSettings> = param_groups(), "0.2";
        /// Factor of the learning rate from each layer to the one below it: the head has 1, the embeddings the least.
        pub layer_decay: f64 = float(1.0, Within(0.0, 1.0)), "0.2", later("1.0");
        /// Parameters that are not trained, by patterns of their names.
        pub frozen: Vec<String> = texts("not set: none", "[\"input_embedding.*\", \"*.layers.0.*\"]"), "0.2",
            not_of_step(OPENED);
        /// Train only parameters with these patterns of names: `["*.bias", "cls_projection.*"]` is BitFit with a new
        /// head.
        pub only: Vec<String> = texts("not set: all parameters", "[\"*.bias\", \"cls_projection.*\"]"), "0.2",
            not_of_step(OPENED);
        /// The optimizer, with its numbers and how weight decay acts.
        pub optimizer: OptimizerSettings = { optimizer::read(r) } rows OptimizerKeys;
        /// The average of the weights that is evaluated and written in their place; `None`: none.
        pub average: Option<AverageForm> = { average::read(r) } rows AverageKeys;
        /// Upper bound of the gradients' norm, infinite for none.
        pub clip: Clip = { ClipKeys::read(r).clip(r) } rows ClipKeys;
        /// Batches that grow to `batch_size`; `None`: all are of one size.
        pub batch_ramp: Option<BatchRamp> = { batch_ramp::read(r, batch_size as u64) } rows BatchRampKeys;
        /// Share of the target distribution that is uniform over all classes.
        pub label_smoothing: f32 = single(0.0, Below(0.0, 1.0)), "0.1";
        /// Weight of the loss of a prompt's own tokens relative to the answer's.
        pub prompt_loss: f32 = single(0.0, AtLeast(0.0)), "0.1", not_of_step(RECIPE);
        /// Seed of dropout and of the order of samples.
        pub seed: u64 = integer(DEFAULT_SEED, 0..=MAX_INTEGER), "0.1";
        /// Activations that the backward pass recomputes (activation checkpointing). `blocks` or `true` recomputes each
        /// block from its input, a number k groups of k blocks from the input of the first. `attention` recomputes only
        /// attention, from queries, keys and values. `auto` keeps the activations of the last blocks, up to the
        /// memory that gradients take later, and recomputes the others; from the second micro-batch of a step on it
        /// recomputes all.
        pub recompute: Recompute = recompute(), "0.1", not_of_step(OPENED);
        /// Where inputs of recomputed blocks are kept: on the device, in pieces by tensor-parallel ranks (`sharded`),
        /// or in host memory, which on the CPU is the same as `device`.
        pub recompute_inputs: InputStore = choice(
            &[("device", InputStore::Device), ("sharded", InputStore::Sharded), ("host", InputStore::Host)],
            InputStore::Device), "0.2", uncounted(), not_of_step(OPENED);
        /// Rounding of the factors of matrix products. `fp8`: where the weight is of a block, to 8 bits with a scale
        /// for each tensor, on GPUs of compute capability 8.9 and later; others, and the CPU, compute the same more
        /// slowly (`docs/fp8.md`). `bf16`: f32 factors to bf16 on a CPU that multiplies bf16 (AMX, or AVX512_BF16 of
        /// AMD, where products are about twice to six times as fast; BFMMLA of Arm on request); other CPUs multiply in
        /// f32 (`docs/devices.md`).
        pub products: Products = choice(
            &[("full", Products::Full), ("bf16", Products::Bf16), ("fp8", Products::Fp8)], Products::Full), "0.2",
            later("\"full\""), not_of_step(OPENED);
        /// Order in which gradients of micro-batches are added; `elastic` gives the same bits on any number of ranks
        /// with one `train.micro_batch_size`.
        pub gradient_sum: GradientSum = choice(
            &[("fast", GradientSum::Fast), ("elastic", GradientSum::Elastic)], GradientSum::Fast), "0.1",
            not_of_step(OPENED);
        /// Dtype of gradients and of their reduction over ranks; `model` is the dtype of the parameters.
        pub gradient_dtype: GradientDType = choice(
            &[("f32", GradientDType::F32), ("model", GradientDType::Model)], GradientDType::F32), "0.1",
            not_of_step(OPENED);
        /// By what losses are multiplied on the backward pass.
        pub loss_scale: LossScale = { loss_scale::read(r) } rows LossScaleKeys;
        /// Keep optimizer state in host memory and update it there.
        pub offload: bool = flag(false), "0.1", uncounted();
        /// Keep parameters in host memory too, and bring a block's to the device while it computes; on the CPU nothing
        /// moves.
        pub offload_parameters: bool = flag(false), "0.2", uncounted(), not_of_step(OPENED);
        /// Every this number of steps, print statistics of hidden states and parameters and of their gradients.
        pub inspect_every: Option<u64> = optional_integer("not set: never", 1..=MAX_STEPS, 100), "0.2", uncounted(),
            not_of_step(RECIPE);
        /// When to stop before the limits; `None`: never.
        pub early_stop: Option<EarlyStopSettings> = { None } rows EarlyStopKeys;
        /// When the run ends because its loss has left its course; `None`: never.
        pub divergence: Option<DivergenceSettings> = { None } rows DivergenceKeys;
    }
}

settings! {
    #[derive(Debug)]
    pub(super) struct ClipKeys in "train" (r) {
        /// Largest norm of the gradients; larger ones are scaled down.
        clip_norm: f32 = single(1.0, Above(0.0)), "0.1";
        /// Norm that is clipped: of order 2, the largest absolute value, or none.
        clip_kind: Option<NormOrder> = choice(
            &[("2", Some(NormOrder::Two)), ("inf", Some(NormOrder::Infinity)), ("none", None)], Some(NormOrder::Two)),
            "0.1";
    }
}

settings! {
    #[derive(Debug)]
    pub(super) struct EarlyStopKeys in "train.early_stop" (r, eval_metric: EvalMetric) {
        /// Stop after this many evaluations in a row without a new best.
        patience: Option<u64> = optional_integer("not set: the run is not stopped early", 1..=MAX_STEPS, 3), "0.1",
            not_of_step(RECIPE);
        /// Metric that early stopping watches.
        metric: EvalMetric = metric(eval_metric), "0.1", follows("eval.metric"), not_of_step(RECIPE);
    }
}

settings! {
    #[derive(Debug)]
    pub(super) struct DivergenceKeys in "train.divergence" (r) {
        /// End the run with exit code 7 after this many losses in a row that are not finite, above the mean of the
        /// first 20 steps, or spikes.
        patience: Option<u64> = optional_integer(
            "not set: only gradients that are not finite end a run", 1..=MAX_STEPS, 50), "0.2";
        /// A loss of more than this many times the mean of recent ones is a spike.
        spike: f64 = float(3.0, Above(1.0)), "0.2";
    }
}

impl ClipKeys {
    fn clip(self, r: &mut Reader) -> Clip {
        let Some(order) = self.clip_kind else {
            let why = "train.clip_kind = \"none\" does not clip";
            r.without_effect("train.clip_norm", "train.clip_kind", why, "remove one of the two");
            return Clip::default();
        };
        Clip { order, max_norm: self.clip_norm }
    }
}

/// `[train.early_stop]`: stop when evaluation no longer gets better.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EarlyStopSettings {
    /// Metric that is watched.
    pub metric: EvalMetric,
    /// Stop after this number of evaluations in a row without a new best.
    pub patience: u64,
}

/// `[train.divergence]`: when a run ends because its loss has left its course.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DivergenceSettings {
    /// A loss of more than this many times the mean of recent steps is too high, as is one above where the run began.
    pub spike: f64,
    /// Steps in a row whose loss may be too high.
    pub patience: u64,
}

impl TrainSettings {
    /// The settings of steps that a program takes by a loop of its own, from texts such as `train.lr=1e-4`, with the
    /// defaults of a recipe. The parameters of the model have `dtype`.
    ///
    /// # Errors
    /// [`Error::Argument`] for the first key that is unknown, out of range, without effect or not of a step.
    pub fn of_step(texts: &[String], dtype: DType) -> Result<Self> {
        let refuse = |key: &str| {
            let fix = match super::row(key) {
                _ if !key.starts_with("train.") => Some("give keys of the table [train], such as train.lr=1e-4"),
                row => row.and_then(|row| row.not_of_step),
            };
            Some((NOT_OF_STEP, fix?))
        };
        let train = super::read_texts(texts, refuse, |r| {
            let train = TrainSettings { divergence: read_divergence(r), ..TrainSettings::read(r) };
            schedule::check(r, &train);
            loss_scale::check(r, &train, dtype);
            optimizer::check(r, &train);
            train
        })?;
        train.check_of_step()?;
        Ok(train)
    }

    /// Refuses settings of steps that a program takes by a loop of its own: without a number of steps, or with what
    /// belongs to a run or to how a model is opened.
    ///
    /// # Errors
    /// [`Error::Argument`] for the first such key; label smoothing out of range.
    pub fn check_of_step(&self) -> Result<()> {
        if self.steps.is_none() {
            let reason = "it is missing, and the learning-rate schedule is made for it";
            return Err(Error::argument("train.steps", reason, "give the number of steps"));
        }
        let differing = self.differing(&TrainSettings::default());
        if let Some((key, fix)) = differing.iter().find_map(|row| Some((row.key, row.not_of_step?))) {
            return Err(Error::argument(key, NOT_OF_STEP, fix));
        }
        if !(0.0..1.0).contains(&self.label_smoothing) {
            let reason = format!("{} is not a share from 0 to below 1", self.label_smoothing);
            return Err(Error::argument("train.label_smoothing", reason, "give one, such as 0.1"));
        }
        Ok(())
    }
}

/// Reads `[train.early_stop]`.
pub(super) fn read_early_stop(r: &mut Reader, eval_metric: EvalMetric) -> Option<EarlyStopSettings> {
    let EarlyStopKeys { patience, metric } = EarlyStopKeys::read(r, eval_metric);
    if patience.is_none() {
        let (because, fix) = ("train.early_stop.patience", "set train.early_stop.patience, or remove it");
        r.without_effect("train.early_stop.metric", because, "train.early_stop.patience is not set", fix);
    }
    Some(EarlyStopSettings { metric, patience: patience? })
}

/// Reads `[train.divergence]`.
pub(super) fn read_divergence(r: &mut Reader) -> Option<DivergenceSettings> {
    let DivergenceKeys { patience, spike } = DivergenceKeys::read(r);
    if patience.is_none() {
        let (because, fix) = ("train.divergence.patience", "set train.divergence.patience, or remove it");
        r.without_effect("train.divergence.spike", because, "train.divergence.patience is not set", fix);
    }
    Some(DivergenceSettings { spike, patience: patience? })
}

/// Rounding of the factors of matrix products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Products {
    /// None: factors are multiplied in their dtypes.
    Full,
    /// f32 factors to bf16, where the CPU multiplies bf16
    /// ([`CpuOptions::bf16_products`](bmtrain_core::cpu::CpuOptions)).
    Bf16,
    /// Factors of layers in blocks to 8 bits ([`ProductPrecision::Fp8`](bmtrain_core::ops::ProductPrecision)).
    Fp8,
}

/// The dtype of gradients and of their reduction over ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GradientDType {
    /// In f32, whatever the parameters are.
    F32,
    /// The dtype of the parameters: half the bytes in f16 and bf16, and sums that are rounded to it.
    Model,
}

impl GradientDType {
    /// The type for parameters of this one.
    pub fn of(self, parameters: DType) -> DType {
        match self {
            GradientDType::F32 => DType::F32,
            GradientDType::Model => parameters,
        }
    }
}
