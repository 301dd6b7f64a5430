//! Training runs of the toy over stages and data-parallel ranks on threads, and what they came to.

use crate::ranks::on_ranks;
use crate::toy::{BATCH, LENGTH, Toy, ToyBatch, ToyOptions, VOCABULARY};
use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::host::{HostOptions, HostRank};
use bmtrain_core::comm::{Communicator, Solo};
use bmtrain_core::kernel::NormOrder;
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor};
use bmtrain_dist::block::Recompute;
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, Fingerprint, LossScaler, ParamGroup, ScalePolicy};
use bmtrain_dist::param::{BuilderOptions, NamePatterns};
use bmtrain_dist::pipeline::{MicroBatch, Partition, Pipeline, Schedule, ScheduleKind, StageGroup};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use bmtrain_dist::{Mesh, Model, Module, OptimManager, RankGroup, Result};
use std::sync::Arc;
use std::time::Duration;

/// A run.
#[derive(Debug, Clone)]
pub struct Run {
    pub kind: ScheduleKind,
    pub stages: usize,
    pub chunks: usize,
    /// Data-parallel ranks.
    pub data: usize,
    /// Micro-batches of each data-parallel rank.
    pub micro_batches: usize,
    pub blocks: [usize; 2],
    /// Blocks of each place, if not divided evenly.
    pub counts: Vec<usize>,
    pub tied: bool,
    pub dtype: DType,
    pub recompute: Recompute,
    pub level: ZeroLevel,
    pub sum: GradientSum,
    pub frozen: &'static [&'static str],
    pub scale: Option<ScalePolicy>,
    pub steps: usize,
    /// A step with a micro-batch whose loss is infinite.
    pub broken: Option<usize>,
    /// Wait of ranks for each other.
    pub deadline: Duration,
}

impl Default for Run {
    fn default() -> Self {
        Run {
            kind: ScheduleKind::OneForwardOneBackward,
            stages: 1,
            chunks: 1,
            data: 1,
            micro_batches: 4,
            blocks: [4, 4],
            counts: Vec::new(),
            tied: true,
            dtype: DType::F32,
            recompute: Recompute::Keep,
            level: ZeroLevel::Zero,
            sum: GradientSum::Fast,
            frozen: &[],
            scale: None,
            steps: 20,
            broken: None,
            deadline: HostOptions::default().deadline,
        }
    }
}

/// Results of a rank, by step.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    pub losses: Vec<Vec<u32>>,
    pub norms: Vec<u32>,
    pub skipped: Vec<bool>,
    pub broken: Option<String>,
    pub fingerprint: Fingerprint,
}

/// One of the ranks of a run.
pub struct Rank {
    pub device: Device,
    pub model: Toy,
    pub optim: OptimManager,
    pub pipeline: Pipeline,
    mesh: Mesh,
}

impl Rank {
    pub fn new(run: &Run, mesh: Mesh, stages: Arc<dyn Communicator>, data: Arc<dyn Communicator>) -> Result<Self> {
        let device = Device::cpu(1)?;
        let schedule = Schedule::new(run.kind, run.stages, run.chunks, run.micro_batches)?;
        let stages = match run.stages {
            1 => StageGroup::default(),
            _ => {
                let partition = match run.counts.as_slice() {
                    [] => Partition::even(run.blocks.iter().sum(), schedule.places())?,
                    counts => Partition::of_counts(counts)?,
                };
                StageGroup::new(stages, partition, &schedule)?
            }
        };
        let sharding = Sharding { ranks: data, level: run.level, sum: run.sum, prefetch: true };
        let frozen = NamePatterns::new(run.frozen.iter().copied());
        let (seed, dtype, stages_of_model) = (5, run.dtype, stages.clone());
        let builder = BuilderOptions {
            mesh,
            seed,
            dtype,
            sharding,
            frozen,
            stages: stages_of_model,
            ..BuilderOptions::default()
        };
        let options = ToyOptions { recompute: run.recompute, blocks: run.blocks, tied: run.tied, builder };
        let model = Toy::with(&device, options)?;
        let mut optim = OptimManager::new(&device, Clip { order: NormOrder::Two, max_norm: 0.5 })?;
        let adam = Adam::new(ParamGroup::by_decay(model.parameters(), 0.01), AdamOptions::default())?;
        optim.add(Box::new(adam), 0.01);
        if let Some(policy) = run.scale {
            optim.set_scaler(LossScaler::new(policy, 8)?);
        }
        let pipeline = Pipeline::new(&device, &stages, schedule)?;
        Ok(Rank { device, model, optim, pipeline, mesh })
    }

    /// Micro-batch `number` of a step on this data-parallel rank.
    pub fn micro_batch(&self, run: &Run, step: usize, number: usize) -> Result<MicroBatch<ToyBatch>> {
        let global = number * run.data + self.mesh.data_rank();
        let of_run = step * run.micro_batches * run.data + global;
        let tensor = |salt: usize| {
            let ids = (0..BATCH * LENGTH).map(|i| ((i * 7 + salt + of_run * (salt + 2)) % VOCABULARY) as i64);
            Tensor::from_slice_in(&self.device, [BATCH, LENGTH], &ids.collect::<Vec<_>>(), Segment::Data)
        };
        let batch = ToyBatch { source: tensor(1)?, target: tensor(3)?, labels: tensor(4)? };
        let is_broken = run.broken == Some(step) && number + 1 == run.micro_batches;
        let factor = if is_broken { f32::INFINITY } else { 1.0 };
        let randomness = Randomness { seed: 9, step: step as u32, micro_batch: global as u32 };
        Ok(MicroBatch { batch, randomness, weight: factor / (run.micro_batches * run.data) as f32 })
    }

    /// Losses of a step, by a pipeline or, on one stage, one micro-batch after the other.
    pub fn losses(&self, run: &Run, step: usize, is_plain: bool) -> Result<Vec<u32>> {
        let load = |number| self.micro_batch(run, step, number);
        let losses = match is_plain {
            true => {
                let mut losses = Vec::new();
                for number in 0..run.micro_batches {
                    let MicroBatch { batch, randomness, weight } = load(number)?;
                    let mut cx = Ctx::training(&self.device, randomness);
                    let loss = self.model.forward(&batch, &mut cx)?;
                    self.optim.backward(&loss, weight, &mut cx)?;
                    losses.push(loss.value().item()?);
                }
                losses
            }
            false => self.pipeline.forward_backward(&self.model, &self.optim, load, Ok)?.to_vec::<f32>()?,
        };
        Ok(losses.into_iter().map(f32::to_bits).collect())
    }

    pub fn train(&mut self, run: &Run, is_plain: bool) -> Result<Seen> {
        let (mut losses, mut norms, mut skipped, mut broken) = (Vec::new(), Vec::new(), Vec::new(), None);
        for step in 0..run.steps {
            losses.push(self.losses(run, step, is_plain)?);
            let info = self.optim.step()?;
            norms.push(info.grad_norm.to_bits());
            skipped.push(info.skipped);
            broken = self.optim.broken_gradient().map(str::to_owned).or(broken);
        }
        Ok(Seen { losses, norms, skipped, broken, fingerprint: self.optim.fingerprint()? })
    }
}

/// Do something on every rank of a run.
pub fn on_mesh<T: Send>(run: &Run, body: impl Fn(Result<Rank>) -> T + Sync) -> Vec<T> {
    let world = run.stages * run.data;
    if world == 1 {
        return vec![body(Rank::new(run, Mesh::SOLO, Arc::new(Solo), Arc::new(Solo)))];
    }
    let options = HostOptions { deadline: run.deadline, ..HostOptions::default() };
    on_ranks(world, options, |rank: HostRank| {
        let mesh = Mesh::new(rank.rank(), world, run.stages, 1).unwrap();
        let group = |kind| {
            let (colour, key) = mesh.colour_and_key(kind);
            rank.split(colour, key).unwrap()
        };
        let (stages, data) = (group(RankGroup::Pipe), group(RankGroup::TensorZero));
        body(Rank::new(run, mesh, stages, data))
    })
}

/// Results on which all ranks agree, and the losses of the first data-parallel rank.
pub fn train(run: &Run) -> Seen {
    agreed(run, on_mesh(run, |rank| rank.unwrap().train(run, false).unwrap()))
}

/// Results on one stage without a pipeline.
pub fn train_on_one_stage(run: &Run) -> Seen {
    let run = Run { stages: 1, chunks: 1, kind: ScheduleKind::GPipe, counts: Vec::new(), ..run.clone() };
    agreed(&run, on_mesh(&run, |rank| rank.unwrap().train(&run, true).unwrap()))
}

fn agreed(run: &Run, seen: Vec<Seen>) -> Seen {
    for (rank, other) in seen.iter().enumerate() {
        let is_same_data = rank % run.data == 0;
        assert!(!is_same_data || other.losses == seen[0].losses, "{run:?}: stages disagree on a loss");
        assert_eq!((&other.norms, &other.skipped), (&seen[0].norms, &seen[0].skipped), "{run:?}");
        assert_eq!((&other.broken, &other.fingerprint), (&seen[0].broken, &seen[0].fingerprint), "{run:?}");
    }
    seen.into_iter().next().unwrap()
}
