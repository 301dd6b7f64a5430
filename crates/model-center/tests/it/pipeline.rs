//! Models over pipeline stages against the same models on one: every bit of losses, norms, weights and optimizer state,
//! with dropout.

use crate::goldens::{directory, inputs};
use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::host::{HostGroup, HostOptions, HostRank};
use bmtrain_core::comm::{Communicator, Solo};
use bmtrain_core::wrap::Counting;
use bmtrain_core::{Ctx, DType, Device};
use bmtrain_dist::block::{BlockOptions, Recompute};
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, Fingerprint, LossScaler, ParamGroup, ScalePolicy};
use bmtrain_dist::param::{BuilderOptions, F32Parameters, InitMode, TensorGroup};
use bmtrain_dist::pipeline::{MicroBatch, Partition, PartitionRule, Pipeline, Schedule, ScheduleKind, StageGroup};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use bmtrain_dist::{Mesh, OptimManager, RankGroup};
use model_center::config::{
    BertConfig, Config, CpmT5Config, Gpt2Config, LlamaConfig, MegatronBertConfig, OptConfig, T5Config,
};
use model_center::data::Batch;
use model_center::model::bert::Bert;
use model_center::model::cpm_t5::CpmT5;
use model_center::model::gpt2::Gpt2;
use model_center::model::llama::Llama;
use model_center::model::megatron_bert::MegatronBert;
use model_center::model::opt::Opt;
use model_center::model::t5::T5;
use model_center::model::{Head, LossSettings, OpenOptions, Registry, StageOptions, TextModel};
use std::sync::Arc;

/// Builds a family's model from the text of its configuration.
type Build = fn(&str, Recompute, &Device, BuilderOptions) -> Box<dyn TextModel>;

/// A training run of a golden directory.
#[derive(Debug, Clone)]
struct Run {
    golden: (&'static str, &'static str),
    /// From the directory's configuration with these fields changed, with random initialization; else the directory is
    /// opened.
    build: Option<(Build, &'static [(&'static str, i64)])>,
    kind: ScheduleKind,
    stages: usize,
    chunks: usize,
    data: usize,
    tensor: usize,
    partition: PartitionRule,
    level: ZeroLevel,
    dtype: DType,
    f32_parameters: F32Parameters,
    recompute: Recompute,
    micro_batches: usize,
    steps: usize,
}

impl Default for Run {
    fn default() -> Self {
        Run {
            golden: ("gpt2_a", "lm"),
            build: None,
            kind: ScheduleKind::OneForwardOneBackward,
            stages: 1,
            chunks: 1,
            data: 1,
            tensor: 1,
            partition: PartitionRule::default(),
            level: ZeroLevel::Zero,
            dtype: DType::F32,
            f32_parameters: F32Parameters::default(),
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

/// The model of a changed configuration, on a stage if there are several.
fn built(
    run: &Run,
    (build, fields): (Build, &[(&str, i64)]),
    (device, options): (&Device, BuilderOptions),
    stages: Option<StageOptions>,
) -> Box<dyn TextModel> {
    let text = std::fs::read_to_string(directory(run.golden.0, run.golden.1).join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    fields.iter().for_each(|(name, value)| config[*name] = (*value).into());
    let text = config.to_string();
    let stages = stages.map_or_else(StageGroup::default, |StageOptions { ranks, schedule, partition }| {
        let nowhere = Device::new(Arc::new(Counting::new(1 << 20)));
        let sketch =
            build(&text, run.recompute, &nowhere, BuilderOptions { init: InitMode::Deferred, ..Default::default() });
        let partition = Partition::of_model(&partition, sketch.parameters(), schedule.places()).unwrap();
        StageGroup::new(ranks, partition, &schedule).unwrap()
    });
    build(&text, run.recompute, device, BuilderOptions { stages, ..options })
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
        let tensor = TensorGroup {
            ranks: group(RankGroup::Tensor),
            vocabulary_multiple: 8,
            sequence: false,
            ..TensorGroup::default()
        };
        let model = match run.build {
            Some(build) => {
                let options =
                    BuilderOptions { mesh, tensor, sharding, seed: 11, dtype: run.dtype, ..Default::default() };
                built(run, build, (&device, options), stages)
            }
            None => {
                let options = OpenOptions {
                    mesh,
                    stages,
                    sharding,
                    tensor,
                    dtype: run.dtype,
                    f32_parameters: run.f32_parameters,
                    recompute: run.recompute,
                    hidden_dropout: Some(0.1),
                    attention_dropout: Some(0.1),
                    ..OpenOptions::new(&device)
                };
                Registry::default().open(&directory(run.golden.0, run.golden.1), &options).unwrap().model
            }
        };
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
                    let mut load = |number| Ok((self.micro_batch(run, step, number), LossSettings::default()));
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

/// Two stages and, of the schedules with one chunk, three and four.
fn check(run: &Run) {
    let run = Run { micro_batches: 6, ..run.clone() };
    let expected = one_stage(&run);
    for (kind, chunks) in KINDS {
        let stages: &[usize] = if chunks == 1 { &[2, 3, 4] } else { &[2] };
        for &stages in stages {
            let run = Run { kind, chunks, stages, ..run.clone() };
            assert_eq!(train(&run), expected, "{run:?}");
        }
    }
}

/// Declares how a family's model is built.
macro_rules! build {
    ($model:ty, $config:ty, $head:expr) => {
        |text, recompute, device, options| {
            let mut config = <$config as Config>::from_json(text, "config.json").unwrap();
            let text = &mut config.text;
            (text.dropout_p, text.embedding_dropout_p, text.attention_dropout_p) = (0.1, 0.1, 0.1);
            let model = <$model>::new(device, config, $head, BlockOptions::from(recompute), options);
            Box::new(model.unwrap()) as Box<dyn TextModel>
        }
    };
}

// After the macro, which they use.
mod directories;
mod outputs;
mod texts;

/// One test for each family, with enough blocks for every schedule.
macro_rules! families {
    ($($name:ident: ($($build:tt)+), $golden:expr, $fields:expr;)*) => {
        $(
            #[test]
            fn $name() {
                let build: Build = build!($($build)+);
                check(&Run { golden: $golden, build: Some((build, &$fields)), ..Run::default() });
            }
        )*
    };
}

const TIED: Head = Head::CausalLm { tied: true };
const UNTIED: Head = Head::CausalLm { tied: false };

families! {
    gpt2_with_tied_embeddings_is_one_stage_bit_for_bit: (Gpt2, Gpt2Config, TIED), ("gpt2_a", "lm"), [("n_layer", 5)];
    gpt2_with_its_own_head_is_one_stage_bit_for_bit: (Gpt2, Gpt2Config, UNTIED), ("gpt2_a", "untied"),
        [("n_layer", 5)];
    llama_is_one_stage_bit_for_bit: (Llama, LlamaConfig, UNTIED), ("llama_a", "untied"), [("num_hidden_layers", 4)];
    opt_with_projections_is_one_stage_bit_for_bit: (Opt, OptConfig, TIED), ("opt_a", "lm"), [("num_hidden_layers", 4)];
    bert_is_one_stage_bit_for_bit: (Bert, BertConfig, Head::MaskedLm), ("bert_a", "mlm"), [("num_hidden_layers", 4)];
    megatron_bert_is_one_stage_bit_for_bit: (MegatronBert, MegatronBertConfig, Head::MaskedLm),
        ("megatron_bert_a", "mlm"), [("num_hidden_layers", 4)];
    t5_with_position_biases_is_one_stage_bit_for_bit: (T5, T5Config, TIED), ("t5_a", "lm"),
        [("num_layers", 3), ("num_decoder_layers", 4)];
    cpm_t5_with_one_position_table_is_one_stage_bit_for_bit: (CpmT5, CpmT5Config, TIED), ("cpm_t5_a", "lm"),
        [("num_layers", 3), ("num_decoder_layers", 4)];
}

#[test]
fn directories_that_are_opened_on_stages_are_one_stage_bit_for_bit() {
    for golden in [("gpt2_a", "lm"), ("llama_a", "lm"), ("t5_a", "lm"), ("bart_a", "lm"), ("cpm_t5_a", "lm")] {
        let run = Run { golden, steps: 5, ..Run::default() };
        let expected = one_stage(&run);
        for partition in [PartitionRule::Parameters, PartitionRule::Count] {
            let run = Run { stages: 2, partition, ..run.clone() };
            assert_eq!(train(&run), expected, "{run:?}");
        }
    }
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

/// Hidden states cross edges in 16 bits, and the two uses of a tied table have f32 gradients.
#[test]
fn parameters_in_f32_beside_sixteen_bits_are_one_stage_bit_for_bit() {
    for (golden, dtype, token_types) in [
        (("gpt2_a", "lm"), DType::F16, false),
        (("t5_a", "lm"), DType::BF16, false),
        (("bert_a", "mlm"), DType::BF16, true),
    ] {
        let f32_parameters = F32Parameters { embeddings: true, norms: true, token_types };
        let run = Run { golden, dtype, f32_parameters, steps: 12, ..Run::default() };
        let expected = one_stage(&run);
        assert!(expected.skipped.contains(&false), "nothing was trained");
        assert_ne!(expected, one_stage(&Run { f32_parameters: F32Parameters::default(), ..run.clone() }));
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
