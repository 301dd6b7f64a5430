//! Training runs of small models on rank threads, whose pools are measured, by a loop that knows nothing of plans.

use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::host::{HostGroup, HostOptions, HostRank};
use bmtrain_core::comm::{Communicator, Solo};
use bmtrain_core::pool::Report;
use bmtrain_core::{Ctx, Device};
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, LossScaler, ParamGroup};
use bmtrain_dist::param::TensorGroup;
use bmtrain_dist::pipeline::{MicroBatch, Pipeline, Schedule};
use bmtrain_dist::shard::Sharding;
use bmtrain_dist::{Mesh, OptimManager, RankGroup};
use model_center::model::{Batch, Labels, LossSettings, OpenOptions, Registry, StageOptions, TextHead, TextModel};
use model_center::plan::layout::LayoutRun;
use std::path::Path;
use std::sync::Arc;

/// Steps of each run.
const STEPS: u32 = 3;

/// Random token ids, and what the head takes as labels.
fn batch(run: &LayoutRun, model: &dyn TextModel, salt: usize) -> Batch {
    let words = model.info().vocab_size;
    let ids = |count: usize| (0..count).map(|at| ((at * 7919 + salt * 104_729 + at / 3) % words) as i64).collect();
    let tokens = run.micro_batch * run.length;
    let batch = Batch::next_tokens(run.length, ids(tokens), None);
    let labels = match run.head {
        TextHead::CausalLm if model.info().generates_targets => Labels::Target(ids(run.micro_batch * run.target)),
        TextHead::CausalLm => return batch,
        TextHead::MaskedLm => Labels::Classes(ids(tokens)),
        _ => Labels::Classes((0..run.micro_batch as i64).map(|row| row % 2).collect()),
    };
    Batch { labels: Some(labels), ..batch }
}

struct Rank {
    device: Device,
    mesh: Mesh,
    model: Box<dyn TextModel>,
    optim: OptimManager,
    pipeline: Option<Pipeline>,
}

impl Rank {
    fn new(directory: &Path, run: &LayoutRun, mesh: Mesh, group: impl Fn(RankGroup) -> Arc<dyn Communicator>) -> Self {
        let device = Device::cpu(1).unwrap();
        let parallel = &run.parallel;
        let schedule =
            Schedule::new(parallel.schedule, parallel.pipeline, parallel.virtual_stages, run.micro_batches).unwrap();
        let stages = (parallel.pipeline > 1).then(|| StageOptions {
            ranks: group(RankGroup::Pipe),
            schedule: schedule.clone(),
            partition: parallel.partition.rule(),
        });
        let whole = OpenOptions::new(&device);
        let tensor =
            TensorGroup { ranks: group(RankGroup::Tensor), sequence: parallel.sequence, ..whole.tensor.clone() };
        let (level, ranks) = (parallel.zero, group(RankGroup::TensorZero));
        let options = OpenOptions {
            mesh,
            stages,
            tensor,
            sharding: Sharding { ranks, level, sum: run.sum, prefetch: parallel.prefetch },
            head: Some(run.head),
            dtype: run.dtype,
            f32_parameters: run.f32_parameters,
            grad_dtype: run.gradient_dtype,
            recompute: run.recompute,
            hidden_dropout: run.dropout[0],
            attention_dropout: run.dropout[1],
            from_config: true,
            ..whole
        };
        let model = Registry::default().open(directory, &options).unwrap().model;
        let mut optim = OptimManager::new(&device, Clip { max_norm: 1.0, ..Clip::default() }).unwrap();
        optim.set_scaler(LossScaler::new(run.scale, LossScaler::MAX_SKIPS).unwrap());
        let groups = ParamGroup::by_decay(model.parameters(), 0.01);
        optim.add(Box::new(Adam::new(groups, AdamOptions::default()).unwrap()), 1e-3);
        let pipeline =
            (parallel.pipeline > 1).then(|| Pipeline::new(&device, model.parameters().stages(), schedule).unwrap());
        Rank { device, mesh, model, optim, pipeline }
    }

    fn micro_batch(&self, run: &LayoutRun, step: u32, number: usize) -> MicroBatch<Batch> {
        let global = number * run.data + self.mesh.data_rank();
        let randomness = Randomness { seed: 3, step, micro_batch: global as u32 };
        let batch = batch(run, &*self.model, step as usize * run.micro_batches * run.data + global);
        MicroBatch { batch, randomness, weight: 1.0 / (run.micro_batches * run.data) as f32 }
    }

    fn train(&mut self, run: &LayoutRun) {
        for step in 0..STEPS {
            let losses = match &self.pipeline {
                Some(pipeline) => {
                    let mut load = |number| Ok((self.micro_batch(run, step, number), LossSettings::default()));
                    vec![self.model.forward_backward(pipeline, &self.optim, &mut load).unwrap()]
                }
                None => (0..run.micro_batches)
                    .map(|number| {
                        let MicroBatch { batch, randomness, weight } = self.micro_batch(run, step, number);
                        let mut cx = Ctx::training(&self.device, randomness);
                        let loss = self.model.loss(&batch, &mut cx).unwrap().unwrap();
                        match number + 1 == run.micro_batches {
                            true => self.optim.backward_last(&loss, weight, &mut cx).unwrap(),
                            false => self.optim.backward(&loss, weight, &mut cx).unwrap(),
                        }
                        loss.into_value()
                    })
                    .collect(),
            };
            let (_, losses) = self.optim.step_and_read(&losses.iter().collect::<Vec<_>>()).unwrap();
            assert!(losses.iter().all(|loss| loss.is_finite() && *loss != 0.0), "{run:?}: {losses:?}");
        }
    }
}

/// Train on rank threads: what the pool of each held.
pub fn measure(directory: &Path, run: &LayoutRun) -> Vec<Report> {
    let world = run.ranks();
    let train = |mut rank: Rank| {
        rank.train(run);
        rank.device.memory()
    };
    if world == 1 {
        return vec![train(Rank::new(directory, run, Mesh::SOLO, |_| Arc::new(Solo)))];
    }
    let ranks = HostGroup::threads(world, HostOptions::default()).unwrap();
    let start = |rank: HostRank| {
        let mesh = run.parallel.mesh(rank.rank(), world).unwrap();
        train(Rank::new(directory, run, mesh, |kind| {
            let (colour, key) = mesh.colour_and_key(kind);
            rank.split(colour, key).unwrap()
        }))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| start(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
