//! Models over pipeline stages against the same models on one: every bit of losses, norms, weights and optimizer state,
//! with dropout.

use crate::goldens::directories::F32;
use crate::goldens::{directory, inputs};
use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::host::{HostGroup, HostOptions, HostRank};
use bmtrain_core::comm::{Communicator, Solo};
use bmtrain_core::{Ctx, DType, Device};
use bmtrain_dist::block::Recompute;
use bmtrain_dist::checkpoint::Snapshot;
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, Fingerprint, LossScaler, ParamGroup, ScalePolicy};
use bmtrain_dist::param::TensorGroup;
use bmtrain_dist::pipeline::{MicroBatch, PartitionRule, Pipeline, Schedule, ScheduleKind};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use bmtrain_dist::{Mesh, Module, OptimManager, RankGroup};
use model_center::data::Batch;
use model_center::model::{OpenOptions, Registry, StageOptions, TextModel};
use std::sync::Arc;

/// A training run of a golden directory.
#[derive(Debug, Clone)]
struct Run {
    golden: (&'static str, &'static str),
    kind: ScheduleKind,
    stages: usize,
    chunks: usize,
    data: usize,
    tensor: usize,
    partition: PartitionRule,
    level: ZeroLevel,
    dtype: DType,
    recompute: Recompute,
    micro_batches: usize,
    steps: usize,
}

impl Default for Run {
    fn default() -> Self {
        Run {
            golden: ("gpt2_a", "lm"),
            kind: ScheduleKind::OneForwardOneBackward,
            stages: 1,
            chunks: 1,
            data: 1,
            tensor: 1,
            partition: PartitionRule::default(),
            level: ZeroLevel::Zero,
            dtype: DType::F32,
            recompute: Recompute::Keep,
            micro_batches: 4,
            steps: 20,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Seen {
    losses: Vec<Vec<u32>>,
    norms: Vec<u32>,
    skipped: Vec<bool>,
    fingerprint: Fingerprint,
}

struct Rank {
    device: Device,
    mesh: Mesh,
    model: Box<dyn TextModel>,
    optim: OptimManager,
    pipeline: Option<Pipeline>,
}

impl Rank {
    fn new(run: &Run, mesh: Mesh, group: impl Fn(RankGroup) -> Arc<dyn Communicator>) -> Self {
        let device = Device::cpu(1).unwrap();
        let schedule = Schedule::new(run.kind, run.stages, run.chunks, run.micro_batches).unwrap();
        let (ranks, partition) = (group(RankGroup::Pipe), run.partition.clone());
        let stages = (run.stages > 1).then(|| StageOptions { ranks, schedule: schedule.clone(), partition });
        let sharding =
            Sharding { ranks: group(RankGroup::TensorZero), level: run.level, sum: GradientSum::Fast, prefetch: true };
        let options = OpenOptions {
            mesh,
            stages,
            sharding,
            tensor: TensorGroup { ranks: group(RankGroup::Tensor), vocabulary_multiple: 8 },
            dtype: run.dtype,
            recompute: run.recompute,
            hidden_dropout: Some(0.1),
            attention_dropout: Some(0.1),
            ..OpenOptions::new(&device)
        };
        let registry = Registry::default();
        let model = registry.open(&directory(run.golden.0, run.golden.1), &options).unwrap().model;
        let mut optim = OptimManager::new(&device, Clip { max_norm: 1.0, ..Clip::default() }).unwrap();
        let groups = ParamGroup::by_decay(model.parameters(), 0.01);
        optim.add(Box::new(Adam::new(groups, AdamOptions::default()).unwrap()), 1e-3);
        if run.dtype == DType::F16 {
            let policy = ScalePolicy::BmTrain { start: 1.6e7, factor: 2.0, every: 100, min: 1.0, max: 1e9 };
            optim.set_scaler(LossScaler::new(policy, 16).unwrap());
        }
        let stages = model.parameters().stages();
        let pipeline = (run.stages > 1).then(|| Pipeline::new(&device, stages, schedule).unwrap());
        Rank { device, mesh, model, optim, pipeline }
    }

    fn micro_batch(&self, run: &Run, step: usize, number: usize) -> MicroBatch<Batch> {
        let mut batch = inputs(run.golden.0, run.golden.1);
        let global = number * run.data + self.mesh.data_rank();
        let salt = (step * run.micro_batches * run.data + global) as i64;
        batch.input_ids.iter_mut().for_each(|id| *id = (*id + 3 * salt) % 31 + 1);
        let randomness = Randomness { seed: 3, step: step as u32, micro_batch: global as u32 };
        MicroBatch { batch, randomness, weight: 1.0 / (run.micro_batches * run.data) as f32 }
    }

    fn train(mut self, run: &Run) -> Seen {
        let (mut losses, mut norms, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
        for step in 0..run.steps {
            let of_step: Vec<f32> = match &self.pipeline {
                Some(pipeline) => {
                    let mut load = |number| Ok(self.micro_batch(run, step, number));
                    self.model.forward_backward(pipeline, &self.optim, &mut load).unwrap().to_vec().unwrap()
                }
                None => {
                    let micro_batch = |number| {
                        let MicroBatch { batch, randomness, weight } = self.micro_batch(run, step, number);
                        let mut cx = Ctx::training(&self.device, randomness);
                        let loss = self.model.loss(&batch, &mut cx).unwrap().unwrap();
                        self.optim.backward(&loss, weight, &mut cx).unwrap();
                        loss.value().item().unwrap()
                    };
                    (0..run.micro_batches).map(micro_batch).collect()
                }
            };
            losses.push(of_step.into_iter().map(f32::to_bits).collect());
            let info = self.optim.step().unwrap();
            norms.push(info.grad_norm.to_bits());
            skipped.push(info.skipped);
        }
        Seen { losses, norms, skipped, fingerprint: self.optim.fingerprint().unwrap() }
    }
}

fn on_mesh<T: Send>(run: &Run, body: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    let world = run.stages * run.data * run.tensor;
    if world == 1 {
        return vec![body(Rank::new(run, Mesh::SOLO, |_| Arc::new(Solo)))];
    }
    let ranks = HostGroup::threads(world, HostOptions::default()).unwrap();
    let start = |rank: HostRank| {
        let mesh = Mesh::new(rank.rank(), world, run.stages, run.tensor).unwrap();
        body(Rank::new(run, mesh, |kind| {
            let (colour, key) = mesh.colour_and_key(kind);
            rank.split(colour, key).unwrap()
        }))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| start(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// What the ranks of the first data-parallel rank saw, which is the same on all stages.
fn train(run: &Run) -> Seen {
    let seen = on_mesh(run, |rank| rank.train(run));
    for (number, other) in seen.iter().enumerate() {
        let has_same_data = number % (run.data * run.tensor) < run.tensor;
        assert!(!has_same_data || other.losses == seen[0].losses, "{run:?}");
        assert_eq!(other.norms, seen[0].norms, "{run:?}");
    }
    seen.into_iter().next().unwrap()
}

fn one_stage(run: &Run) -> Seen {
    train(&Run { stages: 1, chunks: 1, kind: ScheduleKind::GPipe, ..run.clone() })
}

/// Every schedule over two stages.
const KINDS: [(ScheduleKind, usize); 5] = [
    (ScheduleKind::GPipe, 1),
    (ScheduleKind::OneForwardOneBackward, 1),
    (ScheduleKind::Interleaved, 2),
    (ScheduleKind::ZeroBubble, 1),
    (ScheduleKind::ZeroBubbleV, 2),
];

/// Two stages and, of the schedules with one chunk, as many stages as the model has blocks.
fn check(golden: (&'static str, &'static str), blocks: usize) {
    let expected = one_stage(&Run { golden, ..Run::default() });
    for (kind, chunks) in KINDS {
        let stages: &[usize] = if chunks == 1 && blocks > 2 { &[2, blocks] } else { &[2] };
        for stages in stages.iter().copied().filter(|stages| stages * chunks <= blocks) {
            let run = Run { golden, kind, chunks, stages, micro_batches: 4, ..Run::default() };
            if kind == ScheduleKind::Interleaved && run.micro_batches % stages != 0 {
                continue;
            }
            assert_eq!(train(&run), expected, "{run:?}");
        }
    }
}

fn blocks(golden: (&str, &str)) -> usize {
    let device = Device::cpu(1).unwrap();
    let model = Registry::default().open(&directory(golden.0, golden.1), &OpenOptions::new(&device)).unwrap().model;
    let of_part = |param: &bmtrain_dist::param::Param| match param.part() {
        bmtrain_dist::pipeline::ModelPart::Block(block) => block + 1,
        _ => 0,
    };
    model.parameters().iter().map(of_part).max().unwrap()
}

macro_rules! families {
    ($($name:ident: $model:literal, $head:literal;)*) => {
        $(
            #[test]
            fn $name() {
                check(($model, $head), blocks(($model, $head)));
            }
        )*
    };
}

families! {
    gpt2_with_tied_embeddings_is_one_stage_bit_for_bit: "gpt2_a", "lm";
    gpt2_with_its_own_head_is_one_stage_bit_for_bit: "gpt2_a", "untied";
    llama_is_one_stage_bit_for_bit: "llama_a", "lm";
    opt_with_projections_is_one_stage_bit_for_bit: "opt_a", "lm";
    bert_is_one_stage_bit_for_bit: "bert_a", "mlm";
    t5_with_position_biases_is_one_stage_bit_for_bit: "t5_a", "lm";
    bart_is_one_stage_bit_for_bit: "bart_a", "lm";
}

#[test]
fn sixteen_bits_and_recomputed_blocks_are_one_stage_bit_for_bit() {
    for (golden, dtype) in
        [(("gpt2_a", "lm"), DType::F16), (("llama_a", "lm"), DType::BF16), (("t5_a", "lm"), DType::BF16)]
    {
        let run = Run { golden, dtype, recompute: Recompute::Checkpoint, ..Run::default() };
        let expected = one_stage(&run);
        assert_eq!(expected.skipped.contains(&true), dtype == DType::F16);
        for kind in [ScheduleKind::OneForwardOneBackward, ScheduleKind::ZeroBubble] {
            let run = Run { kind, stages: 2, ..run.clone() };
            assert_eq!(train(&run), expected, "{run:?}");
        }
    }
}

#[test]
fn stages_with_data_parallel_ranks_are_data_parallel_ranks_alone() {
    for level in [ZeroLevel::Zero, ZeroLevel::One, ZeroLevel::Three] {
        let golden = ("gpt2_a", if level >= ZeroLevel::Two { "untied" } else { "lm" });
        let run = Run { golden, level, data: 2, steps: 5, ..Run::default() };
        assert_eq!(train(&Run { stages: 2, ..run.clone() }), one_stage(&run), "{level:?}");
    }
}

#[test]
fn stages_with_tensor_parallel_ranks_are_tensor_parallel_ranks_alone() {
    for golden in [("gpt2_a", "lm"), ("bloom_a", "lm")] {
        let run = Run { golden, tensor: 2, steps: 5, ..Run::default() };
        assert_eq!(train(&Run { stages: 2, ..run.clone() }), one_stage(&run), "{golden:?}");
    }
}

#[test]
fn one_of_several_stages_is_not_written_as_the_model() {
    let run = Run { stages: 2, ..Run::default() };
    for errors in on_mesh(&run, |rank| {
        let to = tempfile::tempdir().unwrap();
        let exported = rank.model.save(to.path(), &F32).unwrap_err().to_string();
        let saved = Snapshot::begin(&rank.device, rank.model.parameters(), &rank.optim, Vec::new());
        [exported, saved.unwrap_err().to_string()]
    }) {
        assert!(errors.iter().all(|error| error.contains("2 pipeline stages")), "{errors:?}");
    }
}

#[test]
fn a_rule_for_other_blocks_is_refused_before_weights_are_read() {
    let device = Device::cpu(1).unwrap();
    let ranks = Arc::new(bmtrain_core::comm::CountingRank::new(0, 2).unwrap());
    let schedule = Schedule::new(ScheduleKind::GPipe, 2, 1, 2).unwrap();
    let error = |partition| {
        let stages = Some(StageOptions { ranks: ranks.clone(), schedule: schedule.clone(), partition });
        let mesh = Mesh::new(0, 2, 2, 1).unwrap();
        let options = OpenOptions { mesh, stages, ..OpenOptions::new(&device) };
        Registry::default().open(&directory("gpt2_a", "lm"), &options).err().unwrap().to_string()
    };
    let given = error(PartitionRule::Given(vec![40, 2]));
    assert!(given.contains("42 blocks") && given.contains("2 places"), "{given}");
}
