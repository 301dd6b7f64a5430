//! Tiny models and a few steps of their training: what two devices have to agree on.

use super::shape::{Family, Shape};
use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::Communicator;
use bmtrain_core::kernel::NormOrder;
use bmtrain_core::philox::{self, Key};
use bmtrain_core::{Ctx, DType, Device};
use bmtrain_dist::OptimManager;
use bmtrain_dist::block::{BlockOptions, InputStore, Recompute};
use bmtrain_dist::optim::{Adam, AdamOffload, AdamOptions, Clip, Optimizer, ParamGroup};
use bmtrain_dist::param::BuilderOptions;
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use model_center::model::{Batch, Labels, TextModel};
use model_center::{Error, Result};
use std::sync::Arc;

/// Rows of a step, over all ranks.
const ROWS: usize = 4;
/// Not a multiple of any tile.
const LENGTH: usize = 11;
const VOCABULARY: usize = 50;

/// What is in the host's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offload {
    /// Nothing.
    Nothing,
    /// Optimizer state.
    Optimizer,
    /// Optimizer state, parameters at rest and the inputs of recomputed blocks.
    Everything,
}

/// One training run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Job {
    /// GPT-2, with every token a label; otherwise BERT, with a class for each row.
    pub gpt2: bool,
    /// Dtype of the parameters.
    pub dtype: DType,
    /// What ranks hold shards of.
    pub level: ZeroLevel,
    /// What is in the host's memory; everything takes ZeRO-3.
    pub offload: Offload,
    /// Steps.
    pub steps: u32,
}

/// What a rank saw: the loss of every step, and a hash of weights and optimizer state at the end.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// Of the rank's rows.
    pub losses: Vec<f32>,
    /// As text, for comparison.
    pub state: String,
}

/// Train on a device, sharing every batch among ranks.
pub fn train(job: Job, device: &Device, ranks: Arc<dyn Communicator>) -> Result<Seen> {
    let model = model(job, device, Arc::clone(&ranks))?;
    let mut optim = OptimManager::new(device, Clip { order: NormOrder::Two, max_norm: 1.0 })?;
    let (groups, options) = (ParamGroup::by_decay(model.parameters(), 0.01), AdamOptions::default());
    let adam: Box<dyn Optimizer> = match job.offload {
        Offload::Nothing => Box::new(Adam::new(groups, options)?),
        Offload::Optimizer | Offload::Everything => Box::new(AdamOffload::new(groups, options)?),
    };
    optim.add(adam, 2e-3);
    let losses = (0..job.steps).map(|step| {
        let randomness = Randomness { seed: 3, step, micro_batch: ranks.rank() as u32 };
        let mut cx = Ctx::training(device, randomness);
        let missing = || Error::data("a tiny model", "its batch has no labels", "make it with labels");
        let loss = model.loss(&batch(job, &*ranks), &mut cx)?.ok_or_else(missing)?;
        optim.backward_last(&loss, 1.0 / ranks.size() as f32, &mut cx)?;
        let (_, read) = optim.step_and_read(&[loss.value()])?;
        read.first().copied().ok_or_else(missing)
    });
    let losses = losses.collect::<Result<Vec<f32>>>()?;
    Ok(Seen { losses, state: format!("{:?}", optim.fingerprint()?) })
}

/// How far losses may be apart, relative to the first. In f32 both sides round sums of some hundred terms in another
/// order, about 1e-6 of a loss near one, and in some steps of Adam that grows a little; in bf16 a value that is
/// between two numbers may be rounded to the other one, 4e-3 of itself, but few are.
pub fn tolerance(dtype: DType) -> f32 {
    if dtype == DType::F32 { 1e-5 } else { 5e-3 }
}

/// The largest distance of two runs' losses, relative to the first loss; not a number where one of them is none,
/// infinite where they have not the same number of steps.
pub fn distance(got: &Seen, expected: &Seen) -> f32 {
    if got.losses.len() != expected.losses.len() || expected.losses.is_empty() {
        return f32::INFINITY;
    }
    let apart = got.losses.iter().zip(&expected.losses).map(|(a, b)| (a - b).abs() / expected.losses[0]);
    // Unlike `f32::max` this keeps what is not a number.
    apart.fold(0.0, |worst, apart| if worst.is_nan() || apart <= worst { worst } else { apart })
}

/// Whether the ranks' losses together have fallen by a tenth.
pub fn learns(ranks: &[Seen]) -> bool {
    let of_all = |step: usize| ranks.iter().filter_map(|seen| seen.losses.get(step)).sum::<f32>();
    let steps = ranks.first().map_or(0, |seen| seen.losses.len());
    steps > 1 && of_all(steps - 1) < 0.9 * of_all(0)
}

fn model(job: Job, device: &Device, ranks: Arc<dyn Communicator>) -> Result<Box<dyn TextModel>> {
    let sharding = Sharding { ranks, level: job.level, sum: GradientSum::Fast, prefetch: true };
    let offload_parameters = job.offload == Offload::Everything;
    let builder = BuilderOptions { dtype: job.dtype, sharding, offload_parameters, ..BuilderOptions::default() };
    let inputs = if offload_parameters { InputStore::Host } else { InputStore::Device };
    let blocks = BlockOptions { inputs, ..BlockOptions::from(Recompute::Checkpoint) };
    // Heads of 32, which tensor cores work on in 16-bit types.
    let (num_layers, dim_model, num_heads, dim_ff, vocab_size) = (2, 64, 2, 96, VOCABULARY);
    let family = if job.gpt2 { Family::Gpt2 } else { Family::Bert };
    Shape { family, num_layers, dim_model, num_heads, dim_ff, vocab_size }.build(device, blocks, builder)
}

/// A rank's rows of a batch, all but the first padded. Every step has the same tokens: fresh random tokens are nothing
/// that a language model could learn.
fn batch(job: Job, ranks: &dyn Communicator) -> Batch {
    let random =
        |index: usize, bound: usize| philox::block(Key::new(5, "words"), [index as u32, 0, 0, 0])[0] as usize % bound;
    let rows = ROWS / ranks.size();
    let own = rows * ranks.rank()..rows * (ranks.rank() + 1);
    let places = own.clone().flat_map(|row| (0..LENGTH).map(move |column| (row, column)));
    let ids = places.clone().map(|(row, column)| random(row * LENGTH + column, VOCABULARY) as i64).collect();
    let mask = places.map(|(row, column)| u8::from(column < LENGTH - row)).collect();
    let words = Batch::next_tokens(LENGTH, ids, Some(mask));
    if job.gpt2 {
        return words;
    }
    let classes = own.map(|row| (row % 2) as i64).collect();
    Batch { labels: Some(Labels::Classes(classes)), ..words }
}
