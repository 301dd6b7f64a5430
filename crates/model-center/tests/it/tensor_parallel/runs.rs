//! Training runs of one job on one rank and on a mesh of rank threads, and their comparison.

use super::ranks::on_ranks;
use crate::goldens::{directory, inputs};
use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::Communicator;
use bmtrain_core::kernel::Activation;
use bmtrain_core::wrap::Counting;
use bmtrain_core::{Ctx, DType, Device};
use bmtrain_dist::block::Recompute;
use bmtrain_dist::inspect::{Moments, SummaryRow, inspect_model};
use bmtrain_dist::nn::{
    Adapters, BottleneckOptions, LowRankOptions, PrefixOptions, ScaledSide, ScalingOptions, TensorSplit,
};
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, Fingerprint, LossScaler, ParamGroup, ScalePolicy};
use bmtrain_dist::param::{BuilderOptions, F32Parameters, InitMode, Param, Split, TensorGroup, widen};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use bmtrain_dist::{OptimManager, RankGroups};
use model_center::data::VerbalizerBatch;
use model_center::model::DecodingOptions;
use model_center::model::{Batch, Head, Labels, TextModel};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

/// Text of a configuration, dropout, recomputation, and what a model is built with.
pub type Build = fn(&str, f32, Recompute, &Device, Head, BuilderOptions) -> Result<Box<dyn TextModel>, String>;

/// What is trained, and how.
#[derive(Clone)]
pub struct Job {
    /// Model and head of the golden inputs.
    pub golden: (&'static str, &'static str),
    /// Fields of the configuration that differ from the golden one.
    pub fields: Value,
    pub head: Head,
    pub build: Build,
    pub dropout: f32,
    pub recompute: Recompute,
    pub level: ZeroLevel,
    pub sum: GradientSum,
    pub dtype: DType,
    pub f32_parameters: F32Parameters,
    pub scale: Option<ScalePolicy>,
    /// Of each step, over all data-parallel ranks.
    pub micro_batches: u32,
    pub vocabulary_multiple: usize,
    /// Whether one rank has padding too.
    pub pads_one_rank: bool,
    /// Whether tokens are sharded over the tensor ranks.
    pub sequence: bool,
    /// Rank of low-rank updates of first and last parts of all linear layers in blocks, with dropout; else all is
    /// trained.
    pub low_rank: Option<usize>,
    /// Whether these have magnitudes.
    pub magnitude: bool,
    /// Whether all that is trained are factors of last parts of the outputs of these layers, and of inputs of the
    /// second layers of feed-forwards.
    pub factors: bool,
    /// Virtual tokens whose keys and values are all that is trained.
    pub prefix: Option<usize>,
    /// Values of the bottlenecks after the blocks' row-parallel layers, which are all that is trained.
    pub bottleneck: Option<usize>,
    /// Label words that the model predicts at the last position of each sequence, instead of the golden labels.
    pub label_words: Option<[i64; 3]>,
    /// Factor of the loss in the backward pass.
    pub weight: f32,
    pub steps: u32,
}

impl Default for Job {
    fn default() -> Self {
        Job {
            golden: ("", ""),
            fields: Value::Null,
            head: Head::None,
            build: |_, _, _, _, _, _| Err("no family".into()),
            dropout: 0.1,
            recompute: Recompute::Keep,
            level: ZeroLevel::Zero,
            sum: GradientSum::Fast,
            dtype: DType::F32,
            f32_parameters: F32Parameters::default(),
            scale: None,
            micro_batches: 1,
            // So that tiny vocabularies are divided, and the last ranks have padding.
            vocabulary_multiple: 8,
            pads_one_rank: false,
            sequence: false,
            low_rank: None,
            magnitude: false,
            factors: false,
            prefix: None,
            bottleneck: None,
            label_words: None,
            weight: 1.0,
            steps: 20,
        }
    }
}

impl Job {
    pub fn tensor_group(&self, ranks: Arc<dyn Communicator>) -> TensorGroup {
        let Job { vocabulary_multiple, pads_one_rank, sequence, .. } = *self;
        TensorGroup { ranks, vocabulary_multiple, pads_one_rank, sequence }
    }

    pub fn model(&self, device: &Device, builder: BuilderOptions) -> Result<Box<dyn TextModel>, String> {
        if let Some(tokens) = self.prefix {
            let adapters = Adapters { prefix: Some(PrefixOptions { tokens }), ..Adapters::default() };
            return self.built(device, BuilderOptions { adapters: Some(Arc::new(adapters)), ..builder });
        }
        let rank = match (self.low_rank, self.factors || self.bottleneck.is_some()) {
            (None, false) => return self.built(device, builder),
            (rank, _) => rank,
        };
        let nowhere = Device::new(Arc::new(Counting::new(1 << 20)));
        let sketch = self.built(&nowhere, BuilderOptions { init: InitMode::Deferred, ..Default::default() })?;
        if let Some(size) = self.bottleneck {
            let layers = sketch.parameters().linear_layers().iter();
            let layers = layers.filter(|layer| layer.is_in_block && layer.split == TensorSplit::Rows);
            let options = BottleneckOptions { size, activation: Activation::Gelu };
            let bottlenecks = layers.map(|layer| (layer.name.clone(), options.clone())).collect();
            let adapters = Some(Arc::new(Adapters { bottlenecks, ..Adapters::default() }));
            return self.built(device, BuilderOptions { adapters, ..builder });
        }
        let (mut low_rank, mut scaling) = (HashMap::new(), HashMap::new());
        for layer in sketch.parameters().linear_layers().iter().filter(|layer| layer.is_in_block) {
            let (rows, parts) = (layer.rows(), &layer.outputs);
            let ends = [0..parts[0].size, rows - parts[parts.len() - 1].size..rows];
            if self.factors {
                let outputs = ScaledSide::Outputs(ends[1].clone());
                let side = if layer.name.ends_with("w_out") { ScaledSide::Inputs } else { outputs };
                scaling.insert(layer.name.clone(), vec![ScalingOptions { name: "last".to_owned(), side }]);
            }
            let Some(rank) = rank else { continue };
            let update = |(rows, name): (_, &str)| LowRankOptions {
                name: name.to_owned(),
                rows,
                rank,
                scale: 2.0,
                dropout: self.dropout,
                magnitude: self.magnitude,
            };
            // Magnitudes are of other rows each.
            let count = if self.magnitude && ends[0] == ends[1] { 1 } else { 2 };
            let named = ends.into_iter().zip(["first", "last"]).take(count);
            low_rank.insert(layer.name.clone(), named.map(update).collect());
        }
        let adapters = Some(Arc::new(Adapters { low_rank, scaling, ..Adapters::default() }));
        self.built(device, BuilderOptions { adapters, ..builder })
    }

    fn built(&self, device: &Device, builder: BuilderOptions) -> Result<Box<dyn TextModel>, String> {
        let (model, head) = self.golden;
        let text = std::fs::read_to_string(directory(model, head).join("config.json")).unwrap();
        let mut config: Value = serde_json::from_str(&text).unwrap();
        for (name, value) in self.fields.as_object().into_iter().flatten() {
            config[name] = value.clone();
        }
        (self.build)(&config.to_string(), self.dropout, self.recompute, device, self.head, builder)
    }

    /// The golden inputs, of the second micro-batch with their sequences in another order.
    pub fn batch(&self, micro_batch: u32) -> Batch {
        let mut batch = inputs(self.golden.0, self.golden.1);
        if let Some(words) = self.label_words {
            let last = (0..batch.rows).map(|row| {
                let mask = |at: &usize| batch.attention_mask.as_ref().is_none_or(|mask| mask[*at] == 1);
                (row * batch.length..(row + 1) * batch.length).rev().find(mask).unwrap() as i64
            });
            let (label_words, positions) = (words.to_vec(), last.collect());
            batch.verbalizer = Some(VerbalizerBatch { label_words, positions });
            batch.labels = Some(Labels::Classes((0..batch.rows as i64).map(|row| row % 3).collect()));
        }
        if micro_batch > 0 {
            let length = batch.length;
            // A next-token model whose labels are its tokens.
            batch.input_ids.rotate_left(length);
            if let Some(mask) = &mut batch.attention_mask {
                mask.rotate_left(length);
            }
            batch.input_ids.iter_mut().for_each(|id| *id = (*id + 5) % 31);
            let ids = batch.input_ids.clone();
            let mask = batch.attention_mask.clone();
            batch = Batch::next_tokens(length, ids, mask);
        }
        batch
    }
}

/// A gradient of a rank: its part of the full parameter.
pub struct GradientPart {
    elements: usize,
    runs: Vec<(usize, usize, usize)>,
    is_replicated: bool,
    values: Vec<f32>,
}

/// What one rank saw.
pub struct RankRun {
    data_rank: usize,
    tensor_rank: usize,
    /// Of each step and micro-batch of this rank.
    losses: Vec<Vec<f32>>,
    norms: Vec<f32>,
    /// Of the first step, before the optimizer; empty where they are reduced at once.
    gradients: BTreeMap<String, GradientPart>,
    /// Before training.
    logits: Option<Vec<f32>>,
    /// Before training: of the next token after three tokens, and after a fourth, with a KV cache.
    decoded: Vec<f32>,
    /// After training: the number of padded values, and all of them.
    pub padding: (usize, Vec<f32>),
    /// Of each step.
    pub skipped: Vec<bool>,
    pub broken: Option<String>,
    /// Of parameters and optimizer state, after training.
    pub fingerprint: Fingerprint,
    /// Statistics of parameters and gradients, before the first step of the optimizer.
    rows: Vec<SummaryRow>,
}

/// What all ranks saw.
pub struct Run {
    pub ranks: Vec<RankRun>,
}

fn train(job: &Job, groups: &RankGroups) -> RankRun {
    let (device, mesh) = (Device::cpu(1).unwrap(), groups.mesh());
    let (tensor, data) = (Arc::clone(groups.tensor()), Arc::clone(groups.data()));
    let sharding = Sharding { ranks: data, level: job.level, sum: job.sum, prefetch: true };
    let tensor = job.tensor_group(tensor);
    let (dtype, f32_parameters, seed) = (job.dtype, job.f32_parameters, 11);
    let options = BuilderOptions { mesh, tensor, sharding, dtype, f32_parameters, seed, ..Default::default() };
    let model = job.model(&device, options).unwrap();
    let output = model.forward(&job.batch(0), None, &mut Ctx::inference(&device)).unwrap();
    let logits = output.logits.map(|logits| widen(logits.value()).unwrap());
    let decoded = decoded(&device, &*model, job);
    model.parameters().release();
    let mut optim = OptimManager::new(&device, Clip { max_norm: 1.0, ..Clip::default() }).unwrap();
    let groups = ParamGroup::by_decay(model.parameters(), 0.01);
    optim.add(Box::new(Adam::new(groups, AdamOptions::default()).unwrap()), 1e-3);
    if let Some(policy) = job.scale {
        optim.set_scaler(LossScaler::new(policy, 16).unwrap());
    }
    let mut run = RankRun {
        data_rank: mesh.data_rank(),
        tensor_rank: mesh.tensor_rank(),
        losses: Vec::new(),
        norms: Vec::new(),
        gradients: BTreeMap::new(),
        logits,
        decoded,
        padding: (0, Vec::new()),
        skipped: Vec::new(),
        broken: None,
        fingerprint: optim.fingerprint().unwrap(),
        rows: Vec::new(),
    };
    for step in 0..job.steps {
        let mut losses = Vec::new();
        let own = (0..job.micro_batches).filter(|number| *number as usize % mesh.data_size() == mesh.data_rank());
        for micro_batch in own {
            let mut cx = Ctx::training(&device, Randomness { seed: 3, step, micro_batch });
            let loss = model.loss(&job.batch(micro_batch), &mut cx).unwrap().unwrap();
            optim.backward(&loss, job.weight / job.micro_batches as f32, &mut cx).unwrap();
            losses.push(loss.value().item().unwrap());
        }
        if step == 0 && job.level <= ZeroLevel::One && job.sum == GradientSum::Fast {
            run.gradients = model.parameters().iter().filter_map(gradient).collect();
        }
        if step == 0 {
            run.rows = inspect_model(model.parameters(), "*", 1.0).unwrap();
        }
        let info = optim.step().unwrap();
        run.skipped.push(info.skipped);
        run.broken = optim.broken_gradient().map(str::to_owned).or(run.broken);
        run.norms.push(info.grad_norm);
        run.losses.push(losses);
    }
    run.padding = padding(model.as_ref());
    run.fingerprint = optim.fingerprint().unwrap();
    run
}

/// Logits of incremental decoding, of models that generate.
fn decoded(device: &Device, model: &dyn TextModel, job: &Job) -> Vec<f32> {
    let (Head::CausalLm { .. }, None) = (job.head, job.label_words) else { return Vec::new() };
    let source = inputs(job.golden.0, job.golden.1);
    let source = Batch { labels: None, decoder_input_ids: None, decoder_attention_mask: None, ..source };
    let has_encoder = model.info().generates_targets;
    let rows = if has_encoder { source.rows } else { 2 };
    let options = DecodingOptions { source: has_encoder.then_some(&source), expected: 4 };
    let mut cx = Ctx::inference(device);
    let mut decoding = model.decoding(options, &mut cx).unwrap();
    let mut logits = Vec::new();
    for (length, salt) in [(3, 0), (1, 3)] {
        let ids = (0..rows * length).map(|at| (7 * at as i64 + salt) % 30 + 1).collect();
        let tokens = Batch::new(length, ids);
        logits.extend(widen(&decoding.extend(&tokens, &mut cx).unwrap()).unwrap());
    }
    logits
}

fn gradient(param: &Param) -> Option<(String, GradientPart)> {
    let (shape, values) = (param.spec().shape, widen(&param.grad().unwrap()?).unwrap());
    let (elements, runs) = (shape.elements(), param.local_part().runs(shape));
    let is_replicated = param.spec().split == Split::Replicated;
    Some((param.name().to_owned(), GradientPart { elements, runs, is_replicated, values }))
}

/// The values of all parameters that are padding.
fn padding(model: &dyn TextModel) -> (usize, Vec<f32>) {
    let mut values = Vec::new();
    for param in model.parameters() {
        let (all, runs) = (param.read().unwrap(), param.local_part().runs(param.spec().shape));
        let held = |at: &usize| runs.iter().any(|(_, start, len)| (*start..start + len).contains(at));
        values.extend((0..all.len()).filter(|at| !held(at)).map(|at| all[at]));
    }
    (values.len(), values)
}

impl Run {
    /// Logits before training, losses, norms, and parameters and moments after training.
    pub fn check_same_bits(&self, other: &Run) {
        for (ours, theirs) in self.ranks.iter().zip(&other.ranks) {
            assert_eq!((&ours.logits, &ours.decoded), (&theirs.logits, &theirs.decoded));
            assert_eq!((&ours.losses, &ours.norms), (&theirs.losses, &theirs.norms));
            assert_eq!(ours.fingerprint, theirs.fingerprint);
        }
    }

    /// Every rank has the table of one rank, with each value counted once.
    pub fn check_rows(&self, alone: &Run) {
        let scale = |alone: &Moments| alone.deviation() + alone.mean.abs();
        let largest =
            alone.ranks[0].rows.iter().filter_map(|row| row.gradient).map(|all| scale(&all)).fold(0.0, f64::max);
        for rank in &self.ranks {
            assert_eq!(rank.rows.len(), alone.ranks[0].rows.len());
            for (ours, alone) in rank.rows.iter().zip(&alone.ranks[0].rows) {
                assert_eq!((&ours.name, &ours.shape), (&alone.name, &alone.shape));
                assert_eq!(ours.gradient.is_some(), alone.gradient.is_some(), "{}", ours.name);
                // Gradients of other terms, relative to the largest; values are the same and merged in other parts.
                let of_gradient = ours.gradient.zip(alone.gradient).map(|(a, b)| (a, b, 1e-4 * (largest + scale(&b))));
                for (ours_of, alone_of, bound) in [(ours.values, alone.values, 1e-9)].into_iter().chain(of_gradient) {
                    assert_eq!(ours_of.count, alone_of.count, "{}", ours.name);
                    for (a, b) in [
                        (ours_of.mean, alone_of.mean),
                        (ours_of.deviation(), alone_of.deviation()),
                        (ours_of.min, alone_of.min),
                        (ours_of.max, alone_of.max),
                    ] {
                        assert!((a - b).abs() <= bound, "{}: {a} and {b}", ours.name);
                    }
                }
            }
        }
    }
}

/// Trains on `world` rank threads, `tensor` of them to a tensor group.
pub fn on_mesh(job: &Job, world: usize, tensor: usize) -> Run {
    Run { ranks: on_ranks(world, tensor, |groups| train(job, &groups)) }
}

impl Run {
    /// The losses of the micro-batches of each step, in their order over all data-parallel ranks.
    pub fn losses_of_micro_batches(&self) -> Vec<Vec<f32>> {
        let ranks: Vec<&RankRun> = self.ranks.iter().filter(|rank| rank.tensor_rank == 0).collect();
        let of_step = |step: usize| {
            let count = ranks.iter().map(|rank| rank.losses[step].len()).sum();
            (0..count).map(|number| ranks[number % ranks.len()].losses[step][number / ranks.len()]).collect()
        };
        (0..ranks[0].losses.len()).map(of_step).collect()
    }

    /// The bits of the norm of each step; a norm that overflowed is not a number.
    pub fn norms(&self) -> Vec<u32> {
        bits(&self.ranks[0].norms)
    }

    /// The mean loss of each step. Ranks of a tensor group have the same bits.
    pub fn losses(&self) -> Vec<f32> {
        for rank in &self.ranks {
            let first = self.ranks.iter().find(|first| first.data_rank == rank.data_rank).unwrap();
            assert_eq!(rank.losses, first.losses);
            assert_eq!(bits(&rank.norms), self.norms());
        }
        let ranks: Vec<&RankRun> = self.ranks.iter().filter(|rank| rank.tensor_rank == 0).collect();
        let steps = 0..ranks[0].losses.len();
        let of_step = |step: usize| ranks.iter().flat_map(|rank| &rank.losses[step]).copied().collect::<Vec<f32>>();
        steps.map(of_step).map(|losses| losses.iter().sum::<f32>() / losses.len() as f32).collect()
    }

    /// The full gradients of the first step, added over the tensor ranks of the first data rank.
    fn gradients(&self) -> BTreeMap<&str, Vec<f32>> {
        let mut all: BTreeMap<&str, Vec<f32>> = BTreeMap::new();
        for rank in self.ranks.iter().filter(|rank| rank.data_rank == 0) {
            for (name, part) in &rank.gradients {
                if part.is_replicated && rank.tensor_rank > 0 {
                    assert_eq!(all[name.as_str()], part.values, "{name} differs between tensor ranks");
                    continue;
                }
                let sum = all.entry(name).or_insert_with(|| vec![0.0; part.elements]);
                for (global, local, len) in &part.runs {
                    let values = &part.values[*local..local + len];
                    sum[*global..global + len].iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
                }
            }
        }
        all
    }

    /// f32 sums in another order, over a few dozen terms each: differences stay near 1e-7 of the values. Over 20 steps
    /// of Adam they grow, since it divides small gradients by their own size.
    pub fn check_losses_and_norms(&self, alone: &Run) {
        let (losses, expected) = (self.losses(), alone.losses());
        for (step, (loss, expected_loss)) in losses.iter().zip(&expected).enumerate() {
            let error = (loss - expected_loss).abs() / expected[0];
            assert!(error <= 1e-5, "loss of step {step}: {loss}, on one rank {expected_loss}: {error:e}");
        }
        assert!(expected[0] != expected[expected.len() - 1], "nothing was trained: {expected:?}");
        let norms = || self.ranks[0].norms.iter().zip(&alone.ranks[0].norms);
        for (step, (norm, expected)) in norms().enumerate() {
            let (error, bound) = ((norm - expected).abs() / expected, if step == 0 { 1e-6 } else { 1e-5 });
            assert!(error <= bound, "norm of step {step}: {norm}, on one rank {expected}: {error:e}");
        }
        let largest = losses.iter().zip(&expected).map(|(a, b)| (a - b).abs() / expected[0]).fold(0.0, f32::max);
        let apart: Vec<f32> = norms().map(|(a, b)| (a - b).abs() / b).collect();
        let (first, later) = (apart[0], apart[1..].iter().copied().fold(0.0, f32::max));
        eprintln!("losses {largest:.1e} of the first, norm of the first step {first:.1e}, of later ones {later:.1e}");
        print_worst([largest, first, later, 0.0]);
    }
}

/// Print the largest differences of all f32 runs so far: losses, norm of the first step and of later ones, gradients.
fn print_worst(found: [f32; 4]) {
    static WORST: Mutex<[f32; 4]> = Mutex::new([0.0; 4]);
    let mut worst = WORST.lock().unwrap();
    worst.iter_mut().zip(found).for_each(|(worst, found)| *worst = worst.max(found));
    let [losses, first, later, gradients] = *worst;
    eprintln!("\nfigure: losses {losses:.1e}, gradients {gradients:.1e}, norm {first:.1e}, later {later:.1e}");
}

/// One rank against `tensor` of them, without and with sequence sharding.
pub fn check_parity(job: &Job, tensor: usize) {
    let alone = on_mesh(job, 1, 1);
    for sequence in [false, true] {
        eprint!("{:?} tensor {tensor}, sequence sharding {sequence}: ", job.golden);
        check_run(&on_mesh(&Job { sequence, ..job.clone() }, tensor, tensor), &alone);
    }
    // Dropout is on: without it the first loss is another one.
    let plain = on_mesh(&Job { dropout: 0.0, steps: 1, ..job.clone() }, 1, 1);
    assert_ne!(plain.ranks[0].losses[0], alone.ranks[0].losses[0]);
}

fn check_run(run: &Run, alone: &Run) {
    run.check_losses_and_norms(alone);
    let (gradients, expected) = (run.gradients(), alone.gradients());
    assert!(gradients.keys().eq(expected.keys()) && !gradients.is_empty());
    let largest = expected.values().flatten().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let mut worst = 0.0f32;
    for (name, expected) in &expected {
        assert_eq!(gradients[name].len(), expected.len(), "{name}");
        for (at, (value, expected)) in gradients[name].iter().zip(expected).enumerate() {
            let error = (value - expected).abs() / largest;
            assert!(error <= 1e-5, "{name}[{at}]: {value}, on one rank {expected}: {error:e} of the largest");
            worst = worst.max(error);
        }
    }
    print_worst([0.0, 0.0, 0.0, worst]);
    for rank in &run.ranks {
        check_logits(rank.logits.as_deref(), alone.ranks[0].logits.as_deref());
        check_logits(Some(&rank.decoded), Some(&alone.ranks[0].decoded));
    }
    eprintln!("    gradients {worst:.1e} of the largest");
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Sums of a few dozen terms in another order, relative to the largest logit.
pub fn check_logits(logits: Option<&[f32]>, expected: Option<&[f32]>) {
    assert_eq!(logits.map(<[f32]>::len), expected.map(<[f32]>::len));
    let largest = expected.into_iter().flatten().fold(0.0f32, |largest, value| largest.max(value.abs()));
    for (value, expected) in logits.into_iter().flatten().zip(expected.into_iter().flatten()) {
        assert!((value - expected).abs() <= 1e-5 * largest, "logits: {value}, on one rank {expected}");
    }
}
