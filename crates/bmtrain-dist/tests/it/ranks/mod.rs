//! A small model, ranks on threads that train it, and what they came to: for tests that compare ways of sharing the
//! work.
#![allow(dead_code)]

use bmtrain_core::autograd::Randomness;
use bmtrain_core::backend::{Backend, Kernels};
use bmtrain_core::comm::host::{HostGroup, HostOptions, HostRank};
use bmtrain_core::comm::{Communicator, Solo};
use bmtrain_core::kernel::Kernel;
use bmtrain_core::kernel::{Activation, NormOrder, UpdateRule};
use bmtrain_core::pool::Report;
use bmtrain_core::wrap::Deferred;
use bmtrain_core::{Ctx, DType, Device, Lane, Segment, Tensor, Var, cpu::CpuBackend, ops};
use bmtrain_dist::block::{BlockOptions, BlockPolicy, Recompute};
use bmtrain_dist::nn::{Embedding, EmbeddingOptions, Linear, LinearOptions, Norm, NormOptions};
use bmtrain_dist::optim::{
    Adafactor, AdafactorOptions, Adam, Adam8bit, Adam8bitOptions, AdamOffload, AdamOptions, AverageForm, Clip, Delta,
    Elementwise, ElementwiseOffload, ElementwiseOptions, Fingerprint, LossScaler, Muon, MuonOptions, Optimizer,
    ParamGroup, ScalePolicy, Schedule, ScheduleKind, Scheduler, Warmup, WeightAverage,
};
use bmtrain_dist::param::{BuilderOptions, F32Parameters, Fusion, FusionTable, Init, NamePatterns};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use bmtrain_dist::{Block, Builder, OptimManager, Param, Parameters, Result, TransformerBlockList};
use std::sync::Arc;

pub const VOCABULARY: usize = 13;
pub const ROWS: usize = 6;

/// A user's own block: the maths of one device, and nothing about ranks.
pub struct Mixer {
    norm: Norm,
    up: Linear,
    down: Linear,
}

impl Mixer {
    pub fn new(b: &Builder, size: usize) -> Result<Self> {
        let linear =
            |name: &str, from, to| Linear::new(&b.at(name), LinearOptions::new(from, to, true, Init::normal(0.3)));
        let norm = Norm::new(&b.at("norm"), NormOptions::layer(size, 1e-5))?;
        Ok(Mixer { norm, up: linear("up", size, 2 * size)?, down: linear("down", 2 * size, size)? })
    }
}

impl Block for Mixer {
    type Carry = Var;
    type Shared = ();
    type Cache = ();

    fn forward(&self, x: Var, _: &(), _: Option<&mut ()>, cx: &mut Ctx) -> Result<Var> {
        let inner = self.up.forward_activated(&self.norm.forward(&x, cx)?, Activation::Gelu, cx)?;
        let dropout = cx.dropout("mixer", 0.1)?;
        let inner = ops::dropout(cx, &inner, dropout)?;
        Ok(ops::add(cx, &x, &self.down.forward(&inner, cx)?)?)
    }
}

/// An embedding table, mixers, and the table again as the head.
pub struct Mixers {
    pub table: Embedding,
    pub blocks: TransformerBlockList<Mixer>,
    /// Dtype of hidden states.
    pub dtype: DType,
    pub parameters: Parameters,
}

impl Mixers {
    pub fn new(
        device: &Device,
        [blocks, size]: [usize; 2],
        order: &[usize],
        policy: impl Into<BlockPolicy>,
        options: BuilderOptions,
    ) -> Result<Self> {
        let b = Builder::new(device, options);
        let table = EmbeddingOptions { entries: VOCABULARY, size, init: Init::normal(0.5), padding_index: None };
        let table = Embedding::new(&b.at("table").in_f32(b.options().f32_parameters.embeddings), table)?;
        let mut blocks = TransformerBlockList::build(&b.at("blocks"), blocks, policy, |_, b| Mixer::new(b, size))?;
        if !order.is_empty() {
            blocks = blocks.in_order(order)?;
        }
        Ok(Mixers { table, blocks, dtype: b.options().dtype, parameters: b.finish() })
    }

    pub fn loss(&self, words: &Tensor, labels: &Tensor, cx: &mut Ctx) -> Result<Var> {
        let x = ops::cast(cx, &self.table.forward(words, cx)?, self.dtype)?;
        let x = self.blocks.forward(x, &(), cx)?;
        let logits = self.table.project(&x, None, cx)?;
        Ok(ops::cross_entropy(cx, &logits, labels, &ops::CrossEntropy::default())?)
    }
}

/// Parallelism and options of a run.
#[derive(Debug, Clone)]
pub struct Setting {
    pub ranks: usize,
    pub level: ZeroLevel,
    pub sum: GradientSum,
    pub prefetch: bool,
    pub recompute: Recompute,
    /// In its place: the policy of each block by its index.
    pub policy: Option<fn(usize) -> BlockOptions>,
    /// Whether parameters at rest are in the host's memory.
    pub offload_parameters: bool,
    /// On a device whose memory is not the host's. The lanes of one rank alone run late, in an order by this seed;
    /// ranks would wait for each other on lanes that are drained one after the other.
    pub beside_host: Option<u64>,
    pub dtype: DType,
    pub f32_parameters: F32Parameters,
    /// Micro-batches of a step, over all ranks.
    pub micro_batches: usize,
    pub steps: usize,
    /// Number of blocks.
    pub blocks: usize,
    /// Their order in the list, if not each once.
    pub order: &'static [usize],
    /// Whether each `up` has three tensors in one, which begin inside blocks of 256 elements.
    pub fused: bool,
    /// Patterns of the parameters that are born frozen.
    pub frozen: &'static [&'static str],
    /// Width of the model.
    pub size: usize,
    /// Whether the last micro-batch of a step is announced as such.
    pub announce: bool,
    /// Policy of the loss scale.
    pub scale: Option<ScalePolicy>,
    /// A step whose loss is multiplied by infinity on one rank.
    pub broken: Option<usize>,
    pub optimizer: Which,
    pub adam: AdamOptions,
    pub options: HostOptions,
}

/// Optimizers of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Which {
    /// One, with its state on the device.
    Adam,
    /// One, with its state on the host.
    Offload,
    /// One on the host for weights that decay, one on the device for the rest of the same storages.
    Both,
    /// One of other formulas.
    Rule(UpdateRule),
    /// An update rule with its state on the host.
    RuleOffload(UpdateRule),
    /// Muon for the matrices of the blocks, Adam for the rest.
    Muon,
    /// Adafactor.
    Adafactor(AdafactorOptions),
    /// Adam with moments in 8 bits.
    Adam8bit,
    /// Adam, and averages of the weights.
    Averaged(AverageForm),
}

/// Those that are not of one formula for each element.
pub const OTHERS: [Which; 6] = [
    Which::Muon,
    Which::Adafactor(ADAFACTOR),
    Which::Adafactor(AdafactorOptions { scale_parameter: true, ..ADAFACTOR }),
    Which::Adam8bit,
    Which::Averaged(AverageForm::Exponential { decay: 0.75 }),
    Which::Averaged(AverageForm::Uniform { from: 3 }),
];

const ADAFACTOR: AdafactorOptions = AdafactorOptions {
    epsilon: 1e-30,
    least_scale: 1e-3,
    clip_threshold: 1.0,
    decay_rate: -0.8,
    scale_parameter: false,
};

/// Every rule, with each of the states that it may have.
pub const RULES: [UpdateRule; 13] = [
    UpdateRule::Sgd { momentum: 0.0, dampening: 0.0, nesterov: false },
    UpdateRule::Sgd { momentum: 0.9, dampening: 0.25, nesterov: false },
    UpdateRule::Sgd { momentum: 0.9, dampening: 0.0, nesterov: true },
    UpdateRule::Adagrad { lr_decay: 0.01, epsilon: 1e-10 },
    UpdateRule::RmsProp { rho: 0.99, epsilon: 1e-8, momentum: 0.0, centered: false },
    UpdateRule::RmsProp { rho: 0.9, epsilon: 1e-8, momentum: 0.5, centered: false },
    UpdateRule::RmsProp { rho: 0.99, epsilon: 1e-8, momentum: 0.0, centered: true },
    UpdateRule::RmsProp { rho: 0.99, epsilon: 1e-8, momentum: 0.5, centered: true },
    UpdateRule::Adadelta { rho: 0.9, epsilon: 1e-6 },
    UpdateRule::Adamax { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 },
    UpdateRule::NAdam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, momentum_decay: 4e-3 },
    UpdateRule::RAdam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 },
    UpdateRule::Lion { beta1: 0.9, beta2: 0.99 },
];

impl Which {
    /// The optimizers over these parameters.
    pub fn make(self, parameters: &Parameters, adam: AdamOptions) -> Result<Vec<Box<dyn Optimizer>>> {
        let mut groups = ParamGroup::by_decay(parameters, 0.01);
        Ok(match self {
            Which::Adam => vec![Box::new(Adam::new(groups, adam)?)],
            Which::Offload => vec![Box::new(AdamOffload::new(groups, adam)?)],
            Which::Muon => {
                let is_matrix = |param: &Param| param.spec().shape.dims().len() == 2 && param.name().contains("blocks");
                let (matrices, rest): (Vec<Param>, _) = parameters.iter().cloned().partition(is_matrix);
                let muon = Muon::new(ParamGroup::all(&matrices, 0.01), MuonOptions::default())?;
                vec![Box::new(muon), Box::new(Adam::new(ParamGroup::all(&rest, 0.0), adam)?)]
            }
            Which::Rule(rule) | Which::RuleOffload(rule) => {
                let record_delta = adam.record_delta;
                let initial = if matches!(rule, UpdateRule::Adagrad { .. }) { 0.1 } else { 0.0 };
                let options = ElementwiseOptions { record_delta, initial, ..ElementwiseOptions::new(rule) };
                match self {
                    Which::RuleOffload(_) => vec![Box::new(ElementwiseOffload::new(groups, options)?)],
                    _ => vec![Box::new(Elementwise::new(groups, options)?)],
                }
            }
            Which::Adafactor(options) => vec![Box::new(Adafactor::new(groups, options)?)],
            Which::Averaged(form) => vec![Box::new(WeightAverage::new(Box::new(Adam::new(groups, adam)?), form)?)],
            Which::Adam8bit => vec![Box::new(Adam8bit::new(groups, Adam8bitOptions { adam })?)],
            Which::Both => {
                let rest = groups.split_off(1);
                vec![Box::new(AdamOffload::with_threads(groups, adam, 2)?), Box::new(Adam::new(rest, adam)?)]
            }
        })
    }
}

impl Default for Setting {
    fn default() -> Self {
        Setting {
            ranks: 1,
            level: ZeroLevel::Zero,
            sum: GradientSum::Elastic,
            prefetch: true,
            recompute: Recompute::Keep,
            policy: None,
            offload_parameters: false,
            beside_host: None,
            dtype: DType::F32,
            f32_parameters: F32Parameters::default(),
            micro_batches: 4,
            steps: 5,
            blocks: 3,
            order: &[],
            fused: false,
            frozen: &[],
            size: 24,
            announce: false,
            scale: None,
            broken: None,
            optimizer: Which::Adam,
            adam: AdamOptions::default(),
            options: HostOptions::default(),
        }
    }
}

/// Results of one rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// Bits of the loss of each of this rank's micro-batches, by its number in the run.
    pub losses: Vec<(usize, u32)>,
    pub norms: Vec<u32>,
    pub skips: Vec<usize>,
    pub scales: Vec<f32>,
    pub deltas: Vec<Delta>,
    pub fingerprint: Fingerprint,
}

/// Device, model and optimizer of one rank.
pub struct Rank {
    pub device: Device,
    pub model: Mixers,
    pub optim: OptimManager,
}

impl Rank {
    pub fn new(comm: Arc<dyn Communicator>, setting: &Setting) -> Result<Self> {
        let device = match setting.beside_host {
            Some(seed) => beside_host((comm.size() == 1).then_some(seed)),
            None => Device::cpu(1)?,
        };
        let sharding = Sharding { ranks: comm, level: setting.level, sum: setting.sum, prefetch: setting.prefetch };
        let frozen = NamePatterns::new(setting.frozen.iter().copied());
        let options = BuilderOptions {
            seed: 7,
            dtype: setting.dtype,
            f32_parameters: setting.f32_parameters,
            sharding,
            frozen,
            offload_parameters: setting.offload_parameters,
            fusion: if setting.fused { fusion_of_ups() } else { FusionTable::default() },
            ..BuilderOptions::default()
        };
        let alike = BlockOptions::from(setting.recompute);
        let policy = setting.policy.map_or_else(|| alike.into(), BlockPolicy::by_index);
        let model = Mixers::new(&device, [setting.blocks, setting.size], setting.order, policy, options)?;
        let mut optim = OptimManager::new(&device, Clip { order: NormOrder::Two, max_norm: 0.5 })?;
        let schedule = Schedule::new(ScheduleKind::Linear, 0.01, Warmup::Steps(2), setting.steps as u64 + 5, 0.0)?;
        for optimizer in setting.optimizer.make(&model.parameters, setting.adam)? {
            optim.add_scheduled(optimizer, Scheduler::new(schedule));
        }
        if let Some(policy) = setting.scale {
            optim.set_scaler(LossScaler::new(policy, 8)?);
        }
        Ok(Rank { device, model, optim })
    }

    /// Token ids and labels of a micro-batch: a function of its number in the run.
    pub fn batch(&self, number: usize) -> Result<[Tensor; 2]> {
        let ids = |salt: usize| -> Vec<i64> {
            (0..ROWS).map(|row| ((row * 5 + number * 11 + salt * (number + 3)) % VOCABULARY) as i64).collect()
        };
        let tensor = |salt| Tensor::from_slice_in(&self.device, [ROWS], &ids(salt), Segment::Data);
        Ok([tensor(1)?, tensor(2)?])
    }

    /// Forward and backward of micro-batch `index` of step `step`; the bits of its loss.
    pub fn micro_batch(&mut self, step: usize, index: usize, of: usize, factor: f32) -> Result<u32> {
        self.micro_batch_as(false, [step, index, of], factor)
    }

    /// The same, announced as the last one of this rank or not.
    pub fn micro_batch_as(&mut self, last: bool, [step, index, of]: [usize; 3], factor: f32) -> Result<u32> {
        let [words, labels] = self.batch(step * of + index)?;
        let address = Randomness { seed: 3, step: step as u32, micro_batch: index as u32 };
        let mut cx = Ctx::training(&self.device, address);
        let loss = self.model.loss(&words, &labels, &mut cx)?;
        match last {
            true => self.optim.backward_last(&loss, factor / of as f32, &mut cx)?,
            false => self.optim.backward(&loss, factor / of as f32, &mut cx)?,
        }
        Ok(loss.value().item()?.to_bits())
    }
}

/// Half of the rows of each `up`, a third and a sixth.
fn fusion_of_ups() -> FusionTable {
    FusionTable::new(|name, shape| match shape.dims().first() {
        Some(rows) if name.contains(".up.") => Fusion { rows: vec![rows / 2, rows / 3, rows / 6], transposed: false },
        _ => Fusion::default(),
    })
}

/// The CPU as a device of its own: what moves to the host moves.
#[derive(Debug)]
struct BesideHost {
    inner: Arc<dyn Backend>,
}

impl Kernels for BesideHost {
    fn launch(&self, kernel: Kernel<'_>, on: Lane) -> bmtrain_core::Result<()> {
        self.inner.launch(kernel, on)
    }
}

impl Backend for BesideHost {
    bmtrain_core::forward_to_inner!(name id memory upload download copy on_host mark wait sync);
}

/// A device whose memory is not the host's, with lanes that run late in an order by this seed.
pub fn beside_host(seed: Option<u64>) -> Device {
    let cpu = Arc::new(CpuBackend::new(1).unwrap());
    let inner: Arc<dyn Backend> = match seed {
        Some(seed) => Arc::new(Deferred::new(cpu, seed)),
        None => cpu,
    };
    Device::new(Arc::new(BesideHost { inner }))
}

/// Train on this rank: global micro-batch j runs on rank j mod R at local step j div R.
pub fn train(comm: Arc<dyn Communicator>, setting: &Setting) -> Result<Seen> {
    let (rank, ranks) = (comm.rank(), comm.size());
    let mut this = Rank::new(comm, setting)?;
    let (mut losses, mut norms, mut skips, mut scales) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for step in 0..setting.steps {
        for index in (rank..setting.micro_batches).step_by(ranks) {
            let is_broken = setting.broken == Some(step) && index == setting.micro_batches - 1;
            let factor = if is_broken { f32::INFINITY } else { 1.0 };
            let is_last = setting.announce && index + ranks >= setting.micro_batches;
            let loss = this.micro_batch_as(is_last, [step, index, setting.micro_batches], factor)?;
            losses.push((step * setting.micro_batches + index, loss));
        }
        let info = this.optim.step()?;
        norms.push(info.grad_norm.to_bits());
        scales.push(info.scale);
        if info.skipped {
            skips.push(step);
        }
    }
    let most = this.model.parameters.most_gathered_blocks();
    let whole_in_turn = ranks > 1 && setting.level == ZeroLevel::Three;
    let expected = if setting.prefetch { setting.blocks.min(2) } else { 1 };
    let expected = if whole_in_turn { expected } else { 0 };
    match setting.policy.is_some() || setting.offload_parameters {
        true => assert!(most <= 2, "{setting:?}: {most} blocks whole at once"),
        false => assert_eq!(most, expected, "{setting:?}: blocks whole at once"),
    }
    let mut deltas = this.optim.deltas()?;
    deltas.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Seen { losses, norms, skips, scales, deltas, fingerprint: this.optim.fingerprint()? })
}

/// Run `body` on every rank of a group, each on its own thread, and return what they return in the order of the ranks.
pub fn on_ranks<T: Send>(ranks: usize, options: HostOptions, body: impl Fn(HostRank) -> T + Sync) -> Vec<T> {
    let group = HostGroup::threads(ranks, options).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = group.into_iter().map(|rank| scope.spawn(|| body(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Results of a whole run: the losses of all ranks in the order of the micro-batches, and what all agree on.
pub fn run(setting: &Setting) -> Seen {
    let seen = match setting.ranks {
        1 => vec![train(Arc::new(Solo), setting).unwrap()],
        ranks => on_ranks(ranks, setting.options, |rank| train(Arc::new(rank), setting).unwrap()),
    };
    let mut losses: Vec<(usize, u32)> = seen.iter().flat_map(|seen| seen.losses.clone()).collect();
    losses.sort_unstable();
    for other in &seen[1..] {
        assert_eq!(other.norms, seen[0].norms, "{setting:?}: ranks disagree on a norm");
        assert_eq!(other.skips, seen[0].skips, "{setting:?}: ranks disagree on a skip");
        assert_eq!(other.deltas, seen[0].deltas, "{setting:?}: ranks disagree on what moved");
        assert_eq!(other.fingerprint, seen[0].fingerprint, "{setting:?}: ranks hold different models");
    }
    Seen { losses, ..seen[0].clone() }
}

/// Peak of a rank's memory in use by segment.
pub fn peak(report: &Report, segment: Segment) -> usize {
    report.segments.iter().find(|(known, _)| *known == segment).map_or(0, |(_, usage)| usage.peak)
}
