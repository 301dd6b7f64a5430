//! The settings of a run as plain typed values: what a resolved recipe holds.
//!
//! Where another module already has the type of a setting (schedules, clipping, metrics, data reading), that type is
//! used, so that programs pass settings on without translating. `Option` remains only where absence has a meaning of
//! its own, documented at the field. Filled by `keys.rs`; read by the programs through [`Resolved`](super::Resolved).

use super::batch_ramp::BatchRamp;
use super::class_weights::ClassWeights;
use super::data_source::DataSource;
use super::distill::DistillSettings;
use super::groups::ParamGroupSettings;
use super::loss_scale::LossScale;
use super::optimizer::OptimizerSettings;
use super::parallel::Parallel;
use bmtrain_core::cpu::{Pinning, Processors};
use bmtrain_core::ops::ProductPrecision;
use bmtrain_core::{DType, DeviceChoice};
use bmtrain_dist::block::{InputStore, Recompute};
use bmtrain_dist::optim::{AverageForm, Clip, DecaySpan, ScheduleKind, Warmup};
use bmtrain_dist::param::F32Parameters;
use bmtrain_dist::shard::GradientSum;
use model_center_data::metrics::Metric;
use model_center_data::{OnBadRecord, TooLong};
use model_center_formats::config::ConfigOverrides;
use model_center_models::WeightForm;
use model_center_models::adapter::Adapter;
use model_center_models::contrastive::ContrastiveLoss;
use model_center_models::preference::PreferenceLoss;
use std::path::PathBuf;

/// All settings of a recipe.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// `[model]`
    pub model: ModelSettings,
    /// `[adapter]`: what is trained where the model is frozen.
    pub adapter: Option<Adapter>,
    /// `adapter.quantize`: how the frozen model is held.
    pub base_weights: WeightForm,
    /// `[data]`
    pub data: DataSettings,
    /// `[preference]`: the loss of pairs of completions; `None` of other samples.
    pub preference: Option<PreferenceLoss>,
    /// `[embedding]`: the loss of texts that belong together; `None` of other samples.
    pub contrastive: Option<ContrastiveLoss>,
    /// `[distill]`: what is learned from a teacher; `None` without one.
    pub distill: Option<DistillSettings>,
    /// `[train]`
    pub train: TrainSettings,
    /// `[eval]`
    pub eval: EvalSettings,
    /// `[save]`
    pub save: SaveSettings,
    /// How the state is saved.
    pub checkpoint: CheckpointSettings,
    /// `[log]`
    pub log: LogSettings,
    /// `[run]`
    pub run: RunSettings,
    /// `[output]`
    pub output: OutputSettings,
    /// `[device]`
    pub device: DeviceSettings,
    /// `[parallel]`
    pub parallel: Parallel,
}

/// `[model]`: what is trained.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSettings {
    /// Where initial values come from.
    pub init: ModelInit,
    /// What to start from as it is written: a Hugging Face directory, or the hub's name of a model. Without weights
    /// also a configuration file, or nothing where the family is given. [`ModelStart`](super::ModelStart) finds it.
    pub path: String,
    /// Branch, tag or commit of a model of the hub; `None` for its main branch.
    pub revision: Option<String>,
    /// Its family, for a directory of ModelCenter's whose `config.json` does not name one.
    pub family: Option<String>,
    /// Tensors of the directory that are left out, by patterns; other task heads are left out anyway.
    pub leave: Vec<String>,
    /// Without weights: a tokenizer apart from the model, a directory or a file.
    pub tokenizer: Option<String>,
    /// Without weights: what replaces sizes of the configuration.
    pub shape: ConfigOverrides,
    /// Type of the parameters.
    pub dtype: DType,
    /// The parameters that are f32 where the type of the others has 16 bits.
    pub f32_parameters: F32Parameters,
    /// Where the classifier comes from; a language-modelling head is always the directory's.
    pub head: Head,
    /// Dropout of hidden states; `None` keeps the model's own.
    pub hidden_dropout: Option<f32>,
    /// Dropout of attention probabilities; `None` keeps the model's own.
    pub attention_dropout: Option<f32>,
    /// Seed of the initial values of parameters the directory does not hold.
    pub init_seed: u64,
}

/// Where a model's initial values come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelInit {
    /// From the weights of its directory.
    Weights,
    /// All are initialized randomly; its configuration is all that is read.
    Random,
}

/// Where the classifier comes from: one output per class, one per choice, or one number. A language-modelling head is
/// always the directory's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Head {
    /// From the directory if it has one, which must then be for the same labels; else randomly initialized.
    Auto,
    /// Randomly initialized, even if the directory has one.
    New,
}

/// `[data]`: what is learnt from.
#[derive(Debug, Clone, PartialEq)]
pub struct DataSettings {
    /// The task and its files.
    pub source: DataSource,
    /// Whether control tokens that texts spell are parsed.
    pub parse_special: bool,
    /// Most tokens of one input, special tokens included.
    pub max_length: usize,
    /// The same of a target.
    pub target_length: usize,
    /// The name of the chat template, of several that the model has; `None`: the default one.
    pub chat_template: Option<String>,
    /// What happens to longer inputs.
    pub too_long: TooLong,
    /// What happens to unusable records.
    pub on_bad_record: OnBadRecord,
    /// Whether each epoch has a random order of its own; else the order of the files.
    pub shuffle: bool,
    /// What becomes of the samples that do not fill the last batch of an epoch.
    pub last_batch: LastBatch,
    /// Whether inputs of like length are batched together.
    pub length_grouped: bool,
    /// Whether the sequences of a micro-batch are joined to one without padding.
    pub packing: bool,
    /// At most this many records are evaluated on; `None` is all.
    pub eval_limit: Option<u64>,
    /// What each class weighs in the training loss; `None`: all samples weigh the same.
    pub class_weights: Option<ClassWeights>,
}

/// What becomes of the samples that do not fill the last batch of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastBatch {
    /// They are left out of this epoch.
    Drop,
    /// They are a smaller batch.
    Keep,
}

/// `[train]`: how it is trained.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainSettings {
    /// Stop after this number of passes over the data; `None`: no such limit. At least one of the three limits is set.
    pub epochs: Option<f64>,
    /// Stop after this number of optimizer steps; `None`: no such limit.
    pub steps: Option<u64>,
    /// Stop this number of minutes after the first step began, evaluations included; `None`: no such limit.
    pub minutes: Option<f64>,
    /// Samples of one optimizer step, over all ranks.
    pub batch_size: usize,
    /// Samples of one forward pass; divides `batch_size`, gradients are accumulated over the ratio.
    pub micro_batch_size: usize,
    /// Micro-batches of a data-parallel rank in one optimizer step; `None`: what `batch_size` leaves.
    pub accumulation: Option<usize>,
    /// Batches that grow to `batch_size`; `None`: all are of one size.
    pub batch_ramp: Option<BatchRamp>,
    /// Peak learning rate (for Noam: the factor of its formula).
    pub lr: f64,
    /// The decay of the learning rate.
    pub schedule: ScheduleKind,
    /// The warm-up of the learning rate.
    pub warmup: Warmup,
    /// The number of steps that the schedule is made for; `None`: the steps of the run.
    pub decay_steps: Option<u64>,
    /// What linear and cosine decay are a share of.
    pub decay_span: DecaySpan,
    /// After the warm-up the learning rate does not fall below this share of `lr`.
    pub final_lr_ratio: f64,
    /// Weight decay.
    pub weight_decay: f32,
    /// Whether norms and biases decay as well.
    pub decay_norms_and_biases: bool,
    /// Parameters with a learning rate and a weight decay of their own.
    pub groups: Vec<ParamGroupSettings>,
    /// What the learning rate of a layer is multiplied by relative to the layer above it.
    pub layer_decay: f64,
    /// Patterns of the names of parameters that are not trained.
    pub frozen: Vec<String>,
    /// Patterns of the names of the only parameters that are trained; empty for all.
    pub only: Vec<String>,
    /// The optimizer, with its numbers and how weight decay acts.
    pub optimizer: OptimizerSettings,
    /// The average of the weights that is evaluated and written in their place; `None`: none.
    pub average: Option<AverageForm>,
    /// Upper bound of the gradients' norm, infinite for none.
    pub clip: Clip,
    /// Share of the target given to all classes alike.
    pub label_smoothing: f32,
    /// The weight of the loss of a prompt's tokens relative to the answer's.
    pub prompt_loss: f32,
    /// Seed of dropout and shuffling.
    pub seed: u64,
    /// What is kept of a block's forward pass.
    pub recompute: Recompute,
    /// Where the inputs of recomputed blocks are kept.
    pub recompute_inputs: InputStore,
    /// What the factors of products with weights of blocks are rounded to.
    pub products: ProductPrecision,
    /// In which order the gradients of micro-batches are added: `elastic` gives the same bits on any number of ranks.
    pub gradient_sum: GradientSum,
    /// Whether gradients, and their reduction over ranks, have the dtype of the parameters rather than f32.
    pub gradient_dtype: GradientDType,
    /// By what losses are multiplied on the backward pass.
    pub loss_scale: LossScale,
    /// Whether master weights and moments are in host memory and are updated there; the bits are the same.
    pub offload: bool,
    /// Whether the parameters at rest are in host memory; a block's come to the device while it computes.
    pub offload_parameters: bool,
    /// Every this number of steps, statistics of parameters and hidden states are printed; `None`: never.
    pub inspect_every: Option<u64>,
    /// When to stop before the limits; `None`: never.
    pub early_stop: Option<EarlyStopSettings>,
    /// When the run ends because its loss has left its course; `None`: never.
    pub divergence: Option<DivergenceSettings>,
}

/// `[train.divergence]`: when a run ends because its loss has left its course.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DivergenceSettings {
    /// A loss of more than this many times the mean of recent steps is too high, as is one above where the run began.
    pub spike: f64,
    /// Steps in a row whose loss may be too high.
    pub patience: u64,
}

/// `[train.early_stop]`: stop when evaluation no longer gets better.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EarlyStopSettings {
    /// What is watched.
    pub metric: EvalMetric,
    /// Stop after this number of evaluations in a row without a new best.
    pub patience: u64,
}

/// `[eval]`: how it is judged.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalSettings {
    /// How often; there is always an evaluation at the end.
    pub every: Interval,
    /// What picks the best weights; the task's other metrics are reported all the same.
    pub metric: EvalMetric,
    /// Samples of one forward pass.
    pub batch_size: usize,
    /// Probability above which a label is predicted, where samples have any number of them.
    pub threshold: f32,
}

/// What an evaluation is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvalMetric {
    /// The mean loss; smaller is better.
    Loss,
    /// A metric.
    Metric(Metric),
}

impl EvalMetric {
    /// The name in recipes and in `metrics.jsonl`.
    pub fn name(self) -> &'static str {
        match self {
            EvalMetric::Loss => "loss",
            EvalMetric::Metric(metric) => metric.name(),
        }
    }

    /// Whether a larger figure is better.
    pub fn larger_is_better(self) -> bool {
        match self {
            EvalMetric::Loss => false,
            EvalMetric::Metric(metric) => metric.larger_is_better(),
        }
    }
}

/// How often something happens, written `"200 steps"`, `"0.5 epochs"` or `"end"`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Interval {
    /// Every this number of optimizer steps.
    Steps(u64),
    /// Every this number of passes over the data; fractions are rounded to whole steps, at least one.
    Epochs(f64),
    /// Only at the end.
    End,
    /// Never.
    Never,
}

impl Interval {
    /// In optimizer steps; `None` for only at the end, or never.
    pub fn in_steps(self, steps_per_epoch: u64) -> Option<u64> {
        match self {
            Interval::Steps(steps) => Some(steps.max(1)),
            Interval::Epochs(epochs) => Some(((epochs * steps_per_epoch as f64).round() as u64).max(1)),
            Interval::End | Interval::Never => None,
        }
    }
}

/// `[save]`: which weights are saved.
#[derive(Debug, Clone, PartialEq)]
pub struct SaveSettings {
    /// Which.
    pub which: SaveWhich,
    /// Type of the saved weights.
    pub dtype: DType,
    /// Whether the model is saved with the updates of an adapter added, in place of the updates alone.
    pub merged: bool,
}

/// Which weights a run saves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaveWhich {
    /// Those that evaluated best.
    Best,
    /// The last step's.
    Last,
    /// Both, in two directories.
    Both,
    /// None: the run leaves its metrics alone.
    None,
}

impl SaveWhich {
    /// Whether the weights that evaluated best are saved.
    pub fn keeps_best(self) -> bool {
        matches!(self, SaveWhich::Best | SaveWhich::Both)
    }
}

/// `[checkpoint]`: how the state of the run is saved, to go on from if it is cut off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CheckpointSettings {
    /// After this number of steps or passes, and at the end.
    pub every: Interval,
    /// After this number of minutes; 0 disables it.
    pub minutes: f64,
    /// How many are kept.
    pub keep: usize,
    /// What becomes of the run when one cannot be saved.
    pub on_failure: OnSaveFailure,
    /// Whether they have moments and master weights, without which a run does not resume with the same bits.
    pub optimizer_state: bool,
}

/// What becomes of a run that cannot save a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnSaveFailure {
    /// It goes on, and tries again at the next one.
    Continue,
    /// It ends with the error.
    Stop,
}

/// `[log]`: what is reported on the way.
#[derive(Debug, Clone, PartialEq)]
pub struct LogSettings {
    /// Every this number of optimizer steps.
    pub every: u64,
    /// Name of the metrics file in the output directory, none that the run writes besides.
    pub metrics: String,
    /// Whether the terminal stays silent but for errors and the result.
    pub quiet: bool,
    /// Peak of the device of a rank in TFLOP/s; utilisation is a share of it. `None`: measured, on processors.
    pub peak_tflops: Option<f64>,
    /// Whether TensorBoard's event files are written too.
    pub tensorboard: bool,
    /// Prompts that are completed before training, at evaluations and after it; `None`: none.
    pub samples: Option<Vec<String>>,
    /// The most tokens of a completion.
    pub sample_tokens: usize,
}

/// `[run]`: what the run is called where runs are listed.
#[derive(Debug, Clone, PartialEq)]
pub struct RunSettings {
    /// Its name; `None`: its directory's.
    pub name: Option<String>,
    /// By what runs are found together.
    pub tags: Vec<String>,
}

/// `[output]`: where it goes.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputSettings {
    /// The directory of this run.
    pub dir: PathBuf,
}

/// `[device]`: what it runs on.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceSettings {
    /// The device of a rank.
    pub name: DeviceChoice,
    /// Threads of the ranks of a host together: of their CPU backends, or for what the host does beside CUDA devices.
    pub threads: Threads,
    /// What the threads are pinned to.
    pub pin_threads: Pinning,
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

/// How many threads the ranks of a host have together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// One for each physical core available to this process, see [`Processors::default_threads`].
    Auto,
    /// This number.
    Count(usize),
}

impl Threads {
    /// The number of threads on this machine.
    pub fn count(self) -> usize {
        match self {
            Threads::Auto => Processors::of_this_process().default_threads(),
            Threads::Count(count) => count,
        }
    }
}
