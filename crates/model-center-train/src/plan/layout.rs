//! What the ranks of a layout in three dimensions hold and send in a step, counted from `config.json` alone.
//!
//! [`count_rank`] builds the rank's part of the model on the counting backend, among ranks that are counted too, and
//! lets a [`StepRunner`] train it. So every schedule has the activations that the rank's own actions keep, in their
//! order. No weights, no tokenizer and no data are needed. Called by `bmtrain plan --layout`.

use crate::train::StepRunner;
use crate::{Error, Result};
use bmtrain_core::autograd::Randomness;
use bmtrain_core::pool::Report;
use bmtrain_core::wrap::Counting;
use bmtrain_core::{DType, Device};
use bmtrain_dist::block::Recompute;
use bmtrain_dist::dry_run::{SimulatedRank, count};
use bmtrain_dist::mesh::RankGroup;
use bmtrain_dist::optim::{Clip, LossScaler, ParamGroup, ScalePolicy};
use bmtrain_dist::param::{F32Parameters, NamePatterns, TensorGroup};
use bmtrain_dist::pipeline::{self, MicroBatch, PipelineCosts, Schedule};
use bmtrain_dist::shard::{GradientSum, Sharding};
use bmtrain_dist::{CountedSends, OptimManager, RankGroups};
use model_center_base::batch::{Batch, Labels};
use model_center_data::metrics::LabelKind;
use model_center_formats::config::{ConfigSource, TextHead};
use model_center_models::adapter::Adapter;
use model_center_models::{HeadInit, ModelInfo, OpenMode, OpenOptions, Registry, StageOptions, TextModel};
use model_center_recipe::{OptimizerSettings, Parallel, Resolved};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Steps that show the peak: the first makes the optimizer's state, the second has it from its beginning.
const STEPS: u32 = 2;

/// A training run of a model in a layout.
#[derive(Debug, Clone, PartialEq)]
pub struct LayoutRun {
    /// Tensor-parallel ranks, stages with their schedule, and what is sharded.
    pub parallel: Parallel,
    /// Ranks that see different samples.
    pub data: usize,
    /// In which order gradients are summed.
    pub sum: GradientSum,
    /// The family, where `config.json` names none.
    pub family: Option<String>,
    /// The configuration of a model that begins without weights; `None` for the directory's.
    pub config: Option<Arc<ConfigSource>>,
    /// The head, and with it the labels.
    pub head: TextHead,
    /// Dtype of parameters and hidden states.
    pub dtype: DType,
    /// The parameters that are f32 beside 16-bit ones.
    pub f32_parameters: F32Parameters,
    /// The parameters that are not trained.
    pub frozen: NamePatterns,
    /// The only parameters that are trained, but for those; `None` for all.
    pub trained: Option<NamePatterns>,
    /// The adapter that is trained beside the model, which is frozen.
    pub adapter: Option<Adapter>,
    /// Dtype of gradients.
    pub gradient_dtype: DType,
    /// Activations that blocks keep for the backward pass.
    pub recompute: Recompute,
    /// Dropout of hidden states and of attention, where it is not the configuration's.
    pub dropout: [Option<f32>; 2],
    /// The optimizer.
    pub optimizer: OptimizerSettings,
    /// Whether the optimizer's state is in the host's memory.
    pub offload: bool,
    /// How the loss is scaled.
    pub scale: ScalePolicy,
    /// Whether devices are CUDA devices, which launch other kernels.
    pub on_cuda: bool,
    /// B, sequences of a micro-batch.
    pub micro_batch: usize,
    /// Micro-batches of each data-parallel rank in a step.
    pub micro_batches: usize,
    /// L, tokens of each sequence.
    pub length: usize,
    /// Tokens of each target, for models that generate one.
    pub target: usize,
}

impl LayoutRun {
    /// A recipe's run on `ranks` ranks, with sequences of `length` tokens. The recipe is for these ranks already
    /// ([`Resolved::on_ranks`]). A classifier, whose classes are in the data, is taken to have two.
    pub fn of_recipe(resolved: &Resolved, ranks: usize, length: usize) -> Self {
        let data = resolved.parallel.data_ranks(ranks);
        let micro_batch = resolved.micro_batch_on(data);
        let task = resolved.data.source.task();
        LayoutRun {
            parallel: resolved.parallel.clone(),
            data,
            sum: resolved.train.gradient_sum,
            family: resolved.model.family.clone(),
            config: None,
            head: match (resolved.data.source.pretraining(), task.label_kind()) {
                (Some(settings), _) => settings.objective.head(),
                (_, LabelKind::Tokens) => TextHead::CausalLm,
                _ if task.uses_label_words() => TextHead::CausalLm,
                (_, LabelKind::Questions) => TextHead::QuestionAnswering,
                (_, LabelKind::Tags) => TextHead::TokenClassification { outputs: 2 },
                (_, LabelKind::Embeddings) => TextHead::None,
                (_, LabelKind::Values) => TextHead::Classification { outputs: 1 },
                _ => TextHead::Classification { outputs: 2 },
            },
            dtype: resolved.model.dtype,
            f32_parameters: resolved.model.f32_parameters,
            frozen: NamePatterns::new(&resolved.train.frozen),
            trained: resolved.train.only_trained(),
            adapter: resolved.adapter.clone(),
            gradient_dtype: resolved.train.gradient_dtype.of(resolved.model.dtype),
            recompute: resolved.train.recompute,
            dropout: [resolved.model.hidden_dropout, resolved.model.attention_dropout],
            optimizer: resolved.train.optimizer,
            offload: resolved.train.offload,
            scale: resolved.train.loss_scale.policy(resolved.model.dtype),
            on_cuda: resolved.device.name.is_cuda(),
            micro_batch,
            micro_batches: resolved.train.batch_size / micro_batch.max(1) / data,
            length,
            target: resolved.data.target_length,
        }
    }

    /// All ranks.
    pub fn ranks(&self) -> usize {
        self.parallel.ranks_of_copy() * self.data
    }

    /// The schedule of a step.
    ///
    /// # Errors
    /// A number of micro-batches or chunks that the kind of schedule refuses.
    pub fn schedule(&self) -> Result<Schedule> {
        let Parallel { pipeline, virtual_stages, schedule, .. } = self.parallel;
        Ok(Schedule::new(schedule, pipeline, virtual_stages, self.micro_batches)?)
    }

    /// How the whole model is opened, without weights.
    fn open_whole(&self, device: &Device) -> OpenOptions {
        OpenOptions {
            family: self.family.clone(),
            config: self.config.clone(),
            head: Some(self.head),
            head_values: HeadInit::DirectoryOrRandom,
            dtype: self.dtype,
            from_config: true,
            ..OpenOptions::new(device)
        }
    }

    /// How a rank of these groups opens the model, without weights.
    fn open_options(&self, device: &Device, groups: &RankGroups) -> Result<OpenOptions> {
        let Parallel { zero, prefetch, sequence, .. } = self.parallel;
        let stages = match self.parallel.pipeline {
            1 => None,
            _ => Some(StageOptions {
                ranks: Arc::clone(groups.pipe()),
                schedule: self.schedule()?,
                partition: self.parallel.partition.rule(),
            }),
        };
        let whole = self.open_whole(device);
        let options = OpenOptions {
            f32_parameters: self.f32_parameters,
            frozen: self.frozen.clone(),
            trained: self.trained.clone(),
            adapter: self.adapter.clone(),
            grad_dtype: self.gradient_dtype,
            recompute: self.recompute,
            hidden_dropout: self.dropout[0],
            attention_dropout: self.dropout[1],
            tensor: TensorGroup { sequence, ..whole.tensor.clone() },
            sharding: Sharding { ranks: Arc::clone(groups.data()), level: zero, sum: self.sum, prefetch },
            stages,
            mode: OpenMode::WithoutValues,
            ..whole
        };
        Ok(options.on_groups(groups))
    }

    fn optimizer(&self, device: &Device, model: &dyn TextModel) -> Result<OptimManager> {
        let groups = ParamGroup::by_decay(model.parameters(), 0.01);
        let mut optim = OptimManager::new(device, Clip { max_norm: 1.0, ..Clip::default() })?;
        optim.set_scaler(LossScaler::new(self.scale, LossScaler::MAX_SKIPS)?);
        self.optimizer.make(groups, self.offload)?.into_iter().for_each(|optimizer| optim.add(optimizer, 1e-4));
        Ok(optim)
    }

    /// A micro-batch with the labels that the head takes. Its values are not read.
    pub fn batch(&self, info: &ModelInfo) -> Batch {
        let LayoutRun { micro_batch: rows, length, target, .. } = *self;
        let batch = Batch::next_tokens(length, vec![0; rows * length], None);
        let labels = match self.head {
            TextHead::None => None,
            TextHead::CausalLm if info.generates_targets => Some(Labels::Target(vec![0; rows * target])),
            TextHead::CausalLm => batch.labels.clone(),
            TextHead::MaskedLm | TextHead::Pretraining => Some(Labels::Classes(vec![0; rows * length])),
            TextHead::Classification { outputs: 1 } => Some(Labels::Values(vec![0.0; rows])),
            TextHead::Classification { .. } => Some(Labels::Classes(vec![0; rows])),
            TextHead::TokenClassification { .. } => Some(Labels::TokenClasses(vec![0; rows * length])),
            TextHead::QuestionAnswering => Some(Labels::Spans(vec![[0, 0]; rows])),
            TextHead::NextSentence => None,
        };
        let compares = matches!(self.head, TextHead::NextSentence | TextHead::Pretraining);
        Batch { labels, next_sentence: compares.then(|| vec![0; rows]), ..batch }
    }
}

/// Requirements of a rank of a layout.
#[derive(Debug, Clone, PartialEq)]
pub struct RankCount {
    /// Its number.
    pub rank: usize,
    /// Its pipeline stage.
    pub stage: usize,
    /// The blocks of each of its chunks, counted through all stacks.
    pub blocks: Vec<Range<usize>>,
    /// Memory of its pool.
    pub memory: Report,
    /// Bytes that it sends in a step.
    pub sent: SentBytes,
    /// Floating-point operations of a step.
    pub flops: f64,
}

/// Bytes that a rank sends in a step, in each dimension, with collectives as rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SentBytes {
    /// To ranks that share layers.
    pub tensor: u64,
    /// To other stages.
    pub pipeline: u64,
    /// To ranks that see other samples.
    pub data: u64,
}

/// What the ranks of a layout hold and send, and the bubble of its pipeline.
#[derive(Debug, Clone, PartialEq)]
pub struct LayoutCount {
    /// The run.
    pub run: LayoutRun,
    /// The first rank of each stage.
    pub ranks: Vec<RankCount>,
    /// Idle over busy time of a stage, with chunks of equal time.
    pub bubble: f64,
    /// Values of the whole model.
    pub parameters: usize,
}

/// Count the first rank of each stage of a layout of the model whose `config.json` is in `directory`.
///
/// # Errors
/// As [`count_rank`].
pub fn count_layout(directory: &Path, registry: Registry<'_>, run: LayoutRun) -> Result<LayoutCount> {
    let schedule = run.schedule()?;
    let nowhere = Device::new(Arc::new(Counting::new(1 << 20)));
    let options = OpenOptions { mode: OpenMode::Check, ..run.open_whole(&nowhere) };
    let stage_ranks = run.ranks() / run.parallel.pipeline;
    let first_ranks = (0..run.parallel.pipeline).map(|stage| stage * stage_ranks);
    Ok(LayoutCount {
        parameters: registry.open(directory, &options)?.parameters,
        ranks: first_ranks.map(|rank| count_rank(directory, registry, &run, rank)).collect::<Result<_>>()?,
        bubble: pipeline::simulate(&schedule, &PipelineCosts::equal(&schedule))?.bubble(),
        run,
    })
}

/// Count a rank of a layout of the model whose `config.json` is in `directory`.
///
/// # Errors
/// A configuration that cannot be read; ranks, stages or micro-batches that do not divide; a head that the family does
/// not have.
pub fn count_rank(directory: &Path, registry: Registry<'_>, run: &LayoutRun, rank: usize) -> Result<RankCount> {
    let (groups, sends) = RankGroups::counting(run.parallel.mesh(rank, run.ranks())?)?;
    let alone = if run.on_cuda { SimulatedRank::first_on_cuda(1) } else { SimulatedRank::first_of(1) };
    let (needs, (blocks, sent)) =
        count(alone, |device, _| rehearse((directory, registry), run, device, (&groups, &sends)))?;
    Ok(RankCount {
        rank,
        stage: groups.mesh().stage(),
        blocks,
        sent,
        flops: needs.cost().flops as f64 / f64::from(STEPS),
        memory: needs.memory,
    })
}

/// Steps as a run takes them; the blocks of the rank, and what it sends in the last step.
fn rehearse(
    (directory, registry): (&Path, Registry<'_>),
    run: &LayoutRun,
    device: &Device,
    (groups, sends): (&RankGroups, &CountedSends),
) -> Result<(Vec<Range<usize>>, SentBytes)> {
    let model = registry.open(directory, &run.open_options(device, groups)?)?.model;
    let stages = model.parameters().stages();
    let schedule = run.schedule()?;
    let blocks = stages.partition().map_or_else(Vec::new, |partition| {
        (0..schedule.chunks()).map(|chunk| partition.range(schedule.place(groups.mesh().stage(), chunk))).collect()
    });
    let optim = run.optimizer(device, &*model)?;
    let batch = run.batch(model.info());
    if batch.labels.is_none() && batch.next_sentence.is_none() && run.parallel.pipeline == 1 {
        let fix = "choose a head that has one, such as lm or cls";
        return Err(Error::model("plan", "the model made no loss", fix));
    }
    let mut runner = StepRunner::new(device, model, optim, run.micro_batches)?;
    let mut sent = SentBytes::default();
    for step in 0..STEPS {
        let before = SentBytes::of(sends);
        runner.step(&mut |number| {
            let randomness = Randomness { seed: 0, step, micro_batch: number as u32 };
            Ok(MicroBatch { batch: batch.clone(), randomness, weight: 1.0 / run.micro_batches.max(1) as f32 })
        })?;
        sent = SentBytes::of(sends) - before;
    }
    Ok((blocks, sent))
}

impl SentBytes {
    fn of(sends: &CountedSends) -> Self {
        let [tensor, pipeline, data] =
            [RankGroup::Tensor, RankGroup::Pipe, RankGroup::TensorZero].map(|kind| sends.bytes(kind));
        SentBytes { tensor, pipeline, data }
    }
}

impl std::ops::Sub for SentBytes {
    type Output = SentBytes;

    fn sub(self, before: SentBytes) -> SentBytes {
        let SentBytes { tensor, pipeline, data } = before;
        SentBytes { tensor: self.tensor - tensor, pipeline: self.pipeline - pipeline, data: self.data - data }
    }
}
