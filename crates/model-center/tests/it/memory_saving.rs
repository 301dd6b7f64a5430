//! Recomputation policies and kept inputs over whole models: every bit of losses, norms, weights and optimizer state is
//! as in a run that keeps everything, on one rank and on every kind of several, with dropout.

use crate::goldens::{directory, inputs};
use crate::tensor_parallel::activations::{LENGTH, ROWS, peak_of_a_pass};
use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::host::{HostGroup, HostOptions, HostRank};
use bmtrain_core::comm::{Communicator, Solo};
use bmtrain_core::ops::ProductPrecision;
use bmtrain_core::{Ctx, DType, Device};
use bmtrain_dist::block::{BlockOptions, InputStore, Recompute};
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, Fingerprint, ParamGroup};
use bmtrain_dist::param::{BuilderOptions, InitMode, TensorGroup};
use bmtrain_dist::pipeline::{MicroBatch, PartitionRule, Pipeline, Schedule, ScheduleKind};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use bmtrain_dist::{Mesh, OptimManager, RankGroup};
use model_center::config::{Config, Gpt2Config, Qwen3Config, T5Config};
use model_center::data::Batch;
use model_center::model::gpt2::Gpt2;
use model_center::model::qwen3::Qwen3;
use model_center::model::t5::T5;
use model_center::model::{Head, LossSettings, OpenOptions, Registry, StageOptions, TextModel};
use std::sync::Arc;

const MICRO_BATCHES: usize = 4;
const STEPS: usize = 3;

/// Decoders, an encoder, encoder-decoders; with norms of heads, rotation by one table and by two, ALiBi and relative
/// positions; norms before layers, after them and both, a first block without one; parallel layers, and factors of what
/// layers add.
const FAMILIES: [(&str, &str); 14] = [
    ("gpt2_a", "lm"),
    ("bert_a", "mlm"),
    ("t5_a", "lm"),
    ("bart_a", "lm"),
    ("llama_a", "lm"),
    ("qwen3_a", "lm"),
    ("gemma2_a", "lm"),
    ("gemma3_a", "lm"),
    ("bloom_a", "lm"),
    ("granite_a", "lm"),
    ("olmo3_a", "lm"),
    ("glm4_a", "lm"),
    ("gpt_neox_a", "lm"),
    ("modernbert_a", "mlm"),
];

const POLICIES: [Recompute; 5] =
    [Recompute::Checkpoint, Recompute::Every(2), Recompute::Every(3), Recompute::Attention, Recompute::Auto];

/// Builds a model with random initialization, where the golden sizes are not divided by the ranks.
type Build = fn(&Device, BlockOptions, BuilderOptions) -> Box<dyn TextModel>;

#[derive(Debug, Clone, Copy)]
struct Run {
    golden: (&'static str, &'static str),
    build: Option<Build>,
    recompute: Recompute,
    inputs: InputStore,
    dtype: DType,
    kind: ScheduleKind,
    stages: usize,
    data: usize,
    tensor: usize,
    sequence: bool,
    level: ZeroLevel,
    prefetch: bool,
    products: ProductPrecision,
}

impl Default for Run {
    fn default() -> Self {
        Run {
            golden: ("gpt2_a", "lm"),
            build: None,
            recompute: Recompute::Keep,
            inputs: InputStore::Device,
            dtype: DType::F32,
            kind: ScheduleKind::OneForwardOneBackward,
            stages: 1,
            data: 1,
            tensor: 1,
            sequence: false,
            level: ZeroLevel::Zero,
            prefetch: true,
            products: ProductPrecision::Full,
        }
    }
}

#[derive(Debug, PartialEq)]
struct Seen {
    losses: Vec<u32>,
    norms: Vec<u32>,
    fingerprint: Fingerprint,
}

fn train(run: &Run, mesh: Mesh, group: impl Fn(RankGroup) -> Arc<dyn Communicator>) -> Seen {
    let device = Device::cpu(1).unwrap();
    let schedule = Schedule::new(run.kind, run.stages, 1, MICRO_BATCHES).unwrap();
    let (ranks, partition) = (group(RankGroup::Pipe), PartitionRule::default());
    let stages = (run.stages > 1).then(|| StageOptions { ranks, schedule: schedule.clone(), partition });
    let (ranks, sum) = (group(RankGroup::TensorZero), GradientSum::Fast);
    let options = OpenOptions {
        mesh,
        stages,
        sharding: Sharding { ranks, level: run.level, sum, prefetch: run.prefetch },
        tensor: TensorGroup {
            ranks: group(RankGroup::Tensor),
            vocabulary_multiple: 8,
            sequence: run.sequence,
            ..TensorGroup::default()
        },
        dtype: run.dtype,
        recompute: run.recompute,
        recompute_inputs: run.inputs,
        products: run.products,
        hidden_dropout: Some(0.1),
        attention_dropout: Some(0.1),
        ..OpenOptions::new(&device)
    };
    let model = match run.build {
        Some(build) => {
            let blocks = BlockOptions { recompute: run.recompute, inputs: run.inputs, zero: None };
            build(&device, blocks, BuilderOptions { init: InitMode::Random, seed: 11, ..options.builder() })
        }
        None => Registry::default().open(&directory(run.golden.0, run.golden.1), &options).unwrap().model,
    };
    let mut optim = OptimManager::new(&device, Clip { max_norm: 1.0, ..Clip::default() }).unwrap();
    let groups = ParamGroup::by_decay(model.parameters(), 0.01);
    optim.add(Box::new(Adam::new(groups, AdamOptions::default()).unwrap()), 1e-3);
    let pipeline = (run.stages > 1).then(|| Pipeline::new(&device, model.parameters().stages(), schedule).unwrap());
    let (mut losses, mut norms) = (Vec::new(), Vec::new());
    for step in 0..STEPS {
        let micro_batch = |number: usize| -> MicroBatch<Batch> {
            let mut batch = inputs(run.golden.0, run.golden.1);
            let global = number * run.data + mesh.data_rank();
            let salt = (step * MICRO_BATCHES * run.data + global) as i64;
            batch.input_ids.iter_mut().for_each(|id| *id = (*id + 3 * salt) % 31 + 1);
            let randomness = Randomness { seed: 3, step: step as u32, micro_batch: global as u32 };
            MicroBatch { batch, randomness, weight: 1.0 / (MICRO_BATCHES * run.data) as f32 }
        };
        let of_step: Vec<f32> = match &pipeline {
            Some(pipeline) => {
                let mut load = |number| Ok((micro_batch(number), LossSettings::default()));
                model.forward_backward(pipeline, &optim, &mut load).unwrap().to_vec().unwrap()
            }
            None => {
                let pass = |number| {
                    let MicroBatch { batch, randomness, weight } = micro_batch(number);
                    let mut cx = Ctx::training(&device, randomness);
                    let loss = model.loss(&batch, &mut cx).unwrap().unwrap();
                    optim.backward(&loss, weight, &mut cx).unwrap();
                    loss.value().item().unwrap()
                };
                (0..MICRO_BATCHES).map(pass).collect()
            }
        };
        losses.extend(of_step.into_iter().map(f32::to_bits));
        norms.push(optim.step().unwrap().grad_norm.to_bits());
    }
    Seen { losses, norms, fingerprint: optim.fingerprint().unwrap() }
}

/// What every rank of a run saw.
fn seen(run: &Run) -> Vec<Seen> {
    let world = run.stages * run.data * run.tensor;
    if world == 1 {
        return vec![train(run, Mesh::SOLO, |_| Arc::new(Solo))];
    }
    on_threads(world, |rank| {
        let mesh = Mesh::new(rank.rank(), world, run.stages, run.tensor).unwrap();
        train(run, mesh, |kind| {
            let (colour, key) = mesh.colour_and_key(kind);
            rank.split(colour, key).unwrap()
        })
    })
}

pub fn on_threads<T: Send>(ranks: usize, body: impl Fn(HostRank) -> T + Sync) -> Vec<T> {
    let ranks = HostGroup::threads(ranks, HostOptions::default()).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| body(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn t5(device: &Device, blocks: BlockOptions, builder: BuilderOptions) -> Box<dyn TextModel> {
    let mut config = T5Config::from_json(&config(("t5_a", "lm"), &[("d_ff", 32)]), "config.json").unwrap();
    (config.text.dropout_p, config.text.attention_dropout_p) = (0.1, 0.1);
    Box::new(T5::new(device, config, Head::CausalLm { tied: true }, blocks, builder).unwrap())
}

fn qwen3(device: &Device, blocks: BlockOptions, builder: BuilderOptions) -> Box<dyn TextModel> {
    let text = config(("qwen3_a", "lm"), &[("intermediate_size", 32)]);
    let mut config = Qwen3Config::from_json(&text, "config.json").unwrap();
    (config.text.dropout_p, config.text.attention_dropout_p) = (0.1, 0.1);
    Box::new(Qwen3::new(device, config, Head::CausalLm { tied: true }, blocks, builder).unwrap())
}

fn check(base: &Run, policies: &[(Recompute, InputStore)]) {
    let expected = seen(base);
    assert!(expected[0].norms.iter().all(|norm| f32::from_bits(*norm) > 0.0));
    for &(recompute, inputs) in policies {
        let run = Run { recompute, inputs, ..*base };
        assert!(seen(&run) == expected, "{run:?}");
    }
}

#[test]
fn every_policy_has_the_bits_of_keeping_everything_in_every_family() {
    for golden in FAMILIES {
        for dtype in [DType::F32, DType::BF16] {
            check(&Run { golden, dtype, ..Run::default() }, &POLICIES.map(|policy| (policy, InputStore::Device)));
        }
    }
}

#[test]
fn every_policy_has_the_same_bits_on_tensor_ranks_and_with_inputs_in_pieces() {
    let sharded = [Recompute::Checkpoint, Recompute::Every(2)].map(|policy| (policy, InputStore::Sharded));
    let whole = POLICIES.map(|policy| (policy, InputStore::Device));
    let families: [(_, Option<Build>); 4] = [
        (("gpt2_a", "lm"), None),
        (("bert_a", "mlm"), None),
        (("t5_a", "lm"), Some(t5)),
        (("qwen3_a", "lm"), Some(qwen3)),
    ];
    for (golden, build) in families {
        let run = Run { golden, build, tensor: 2, ..Run::default() };
        check(&run, &[&whole[..], &sharded].concat());
        check(&Run { sequence: true, ..run }, &whole);
    }
    check(&Run { tensor: 2, data: 2, level: ZeroLevel::Three, dtype: DType::BF16, ..Run::default() }, &sharded);
}

#[test]
fn every_policy_has_the_same_bits_on_data_parallel_ranks_and_pipeline_stages() {
    let policies = POLICIES.map(|policy| (policy, InputStore::Device));
    for golden in [("gpt2_a", "lm"), ("t5_a", "lm")] {
        for (level, prefetch) in [(ZeroLevel::Two, true), (ZeroLevel::Three, true), (ZeroLevel::Three, false)] {
            check(&Run { golden, data: 2, level, prefetch, ..Run::default() }, &policies);
        }
        for kind in [ScheduleKind::OneForwardOneBackward, ScheduleKind::ZeroBubble] {
            check(&Run { golden, stages: 2, kind, ..Run::default() }, &policies);
        }
    }
    let sharded = [(Recompute::Checkpoint, InputStore::Sharded), (Recompute::Every(2), InputStore::Sharded)];
    check(&Run { stages: 2, tensor: 2, ..Run::default() }, &sharded);
}

/// Widths that are multiples of 16, whose products are made of 8-bit factors.
fn wide(device: &Device, blocks: BlockOptions, builder: BuilderOptions) -> Box<dyn TextModel> {
    let text = config(("gpt2_a", "lm"), &[("n_embd", 32), ("n_head", 4), ("n_inner", 96)]);
    let mut config = Gpt2Config::from_json(&text, "config.json").unwrap();
    (config.text.dropout_p, config.text.attention_dropout_p) = (0.1, 0.1);
    Box::new(Gpt2::new(device, config, Head::CausalLm { tied: true }, blocks, builder).unwrap())
}

/// The scale of a factor depends on that factor alone: a block that is computed again has the bits of the first time.
#[test]
fn products_in_8_bits_have_the_same_bits_recomputed_and_are_near_those_of_whole_factors() {
    let run = Run { build: Some(wide), products: ProductPrecision::Fp8, dtype: DType::BF16, ..Run::default() };
    let policies = POLICIES.map(|policy| (policy, InputStore::Device));
    check(&run, &policies);
    check(&Run { data: 2, level: ZeroLevel::Three, ..run }, &policies);
    check(&Run { tensor: 2, dtype: DType::F32, ..run }, &policies);
    let losses = |products| -> Vec<f32> {
        seen(&Run { products, ..run })[0].losses.iter().map(|bits| f32::from_bits(*bits)).collect()
    };
    let (rounded, whole) = (losses(ProductPrecision::Fp8), losses(ProductPrecision::Full));
    assert_ne!(rounded, whole);
    for (rounded, whole) in rounded.iter().zip(&whole) {
        assert!((rounded - whole).abs() < 0.02 * whole, "{rounded} {whole}");
    }
}

/// Peak of the activations of a forward and a backward pass on the first of the tensor ranks, in bytes.
fn peak(build: impl Fn(&Device, BuilderOptions) -> Box<dyn TextModel> + Sync, tensor: usize) -> usize {
    let run = |ranks: Arc<dyn Communicator>| {
        let (device, mesh) = (Device::cpu(1).unwrap(), Mesh::new(ranks.rank(), tensor, 1, tensor).unwrap());
        let group = TensorGroup { ranks, vocabulary_multiple: 8, sequence: false, ..TensorGroup::default() };
        let model = build(&device, BuilderOptions { mesh, tensor: group, ..BuilderOptions::default() });
        peak_of_a_pass(&device, &*model)
    };
    on_threads(tensor, |rank| run(Arc::new(rank))).into_iter().max().unwrap()
}

/// The text of a golden configuration with other numbers.
fn config(golden: (&str, &str), fields: &[(&str, usize)]) -> String {
    let text = std::fs::read_to_string(directory(golden.0, golden.1).join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    fields.iter().for_each(|(name, value)| config[*name] = (*value).into());
    config.to_string()
}

fn gpt2(layers: usize, options: BlockOptions) -> impl Fn(&Device, BuilderOptions) -> Box<dyn TextModel> + Sync {
    let sizes = [("n_embd", 64), ("n_head", 4), ("n_inner", 256), ("n_layer", layers), ("n_positions", LENGTH)];
    let text = config(("gpt2_a", "lm"), &sizes);
    move |device, builder| {
        let config = Gpt2Config::from_json(&text, "config.json").unwrap();
        Box::new(Gpt2::new(device, config, Head::CausalLm { tied: true }, options, builder).unwrap())
    }
}

#[test]
fn a_tensor_rank_keeps_its_part_of_the_inputs() {
    let input = 64 * ROWS * LENGTH * 4;
    for tensor in [2, 4] {
        for (inputs, predicted) in [(InputStore::Device, input), (InputStore::Sharded, input / tensor)] {
            let options = BlockOptions { inputs, ..Recompute::Checkpoint.into() };
            let [few, many] = [2, 6].map(|layers| peak(gpt2(layers, options), tensor));
            assert_eq!((many - few) / 4, predicted, "tensor {tensor}, {inputs:?}");
        }
    }
}

#[test]
fn every_second_block_keeps_its_input() {
    let input = 64 * ROWS * LENGTH * 4;
    let [few, many] = [4, 12].map(|layers| peak(gpt2(layers, Recompute::Every(2).into()), 1));
    assert_eq!((many - few) / 4, input);
}

/// What recomputed attention saves: the log-sum-exps of heads, and with norms of heads what these keep.
#[test]
fn recomputed_attention_keeps_queries_keys_and_values_alone() {
    let tokens = ROWS * LENGTH;
    let each = |of: &dyn Fn(usize) -> usize| (of(6) - of(2)) / 4;
    let [kept, recomputed] = [Recompute::Keep, Recompute::Attention]
        .map(|recompute| each(&|layers| peak(gpt2(layers, recompute.into()), 1)));
    assert_eq!(kept - recomputed, 4 * tokens * 4, "a log-sum-exp for each of 4 heads");
    let of_qwen3 = |recompute: Recompute| {
        each(&|layers| {
            let sizes = [
                ("hidden_size", 64),
                ("num_attention_heads", 4),
                ("num_key_value_heads", 4),
                ("head_dim", 16),
                ("intermediate_size", 128),
                ("num_hidden_layers", layers),
                ("max_position_embeddings", LENGTH),
            ];
            let mut config: serde_json::Value = serde_json::from_str(&config(("qwen3_a", "lm"), &sizes)).unwrap();
            config["layer_types"] = vec!["full_attention"; layers].into();
            let text = config.to_string();
            let build = move |device: &Device, builder: BuilderOptions| -> Box<dyn TextModel> {
                let config = Qwen3Config::from_json(&text, "config.json").unwrap();
                Box::new(Qwen3::new(device, config, Head::CausalLm { tied: true }, recompute, builder).unwrap())
            };
            peak(build, 1)
        })
    };
    let (kept, recomputed) = (of_qwen3(Recompute::Keep), of_qwen3(Recompute::Attention));
    // Queries and keys as they enter their norms, a deviation for each of these 8 heads, and the log-sum-exps.
    assert_eq!(kept - recomputed, (2 * 64 + 8 + 4) * tokens * 4, "{recomputed} of {kept} bytes a block");
}
