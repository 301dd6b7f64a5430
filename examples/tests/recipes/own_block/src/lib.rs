//! A block of one's own, trained by as many ranks as there are: the maths of one device, and one crate to depend on.
//!
//! Defines [`Widen`], the block, and [`train`], what one rank does; the test runs it on one rank and on two. [`layout`]
//! has the same block over tensor-parallel ranks and pipeline stages.

pub mod layout;

use bmtrain_dist::optim::Fingerprint;
use bmtrain_dist::prelude::*;
use std::sync::Arc;

/// `y = x + down(gelu(up(x)))`, where up makes rows four times as wide.
pub struct Widen {
    up: Linear,
    down: Linear,
}

impl Widen {
    fn new(b: &Builder, size: usize) -> Result<Self> {
        let linear = |name, from, to, split| {
            Linear::new(&b.at(name), LinearOptions::new(from, to, true, Init::normal(0.1)).split(split))
        };
        let up = linear("up", size, 4 * size, TensorSplit::Columns)?;
        Ok(Widen { up, down: linear("down", 4 * size, size, TensorSplit::Rows)? })
    }
}

impl Block for Widen {
    type Carry = Var;
    type Shared = ();
    type Cache = ();

    fn forward(&self, x: Var, _: &(), _: Option<&mut ()>, cx: &mut Ctx) -> Result<Var> {
        let wide = self.up.forward_activated(&x, Activation::Gelu, cx)?; // [R, 4 D]
        Ok((&x + &self.down.forward(&wide, cx)?)?) // [R, D]
    }
}

/// V, tokens of the vocabulary.
const VOCABULARY: usize = 17;
/// Rows of a micro-batch.
const ROWS: usize = 8;
/// Micro-batches of a step, over all ranks.
const MICRO_BATCHES: usize = 4;

/// What a rank returns.
#[derive(Debug, Clone, PartialEq)]
pub struct Trained {
    /// Losses of this rank's micro-batches, by their index in the run.
    pub losses: Vec<(usize, f32)>,
    /// Of all weights and of the optimizer's state.
    pub fingerprint: Fingerprint,
}

/// Tokens and the tokens that follow them, of a micro-batch by its index in the run.
fn batch(device: &Device, number: usize) -> Result<[Tensor; 2]> {
    let token = |row: usize| ((number * ROWS + row) * 5 % VOCABULARY) as i64;
    let tokens: Vec<i64> = (0..ROWS).map(token).collect();
    let next: Vec<i64> = tokens.iter().map(|token| (3 * token + 1) % VOCABULARY as i64).collect();
    Ok([Tensor::from_slice(device, [ROWS], &tokens)?, Tensor::from_slice(device, [ROWS], &next)?])
}

/// What one rank does: an embedding, four blocks and a head learn to predict the next token.
pub fn train(ranks: Arc<dyn Communicator>, steps: usize) -> Result<Trained> {
    let (rank, size, device) = (ranks.rank(), ranks.size(), Device::cpu(1)?);
    let sharding = Sharding { ranks, level: ZeroLevel::Three, sum: GradientSum::Elastic, prefetch: true };
    let b = Builder::new(&device, BuilderOptions { seed: 1, sharding, ..BuilderOptions::default() });
    let table = EmbeddingOptions { entries: VOCABULARY, size: 16, init: Init::normal(0.5), padding_index: None };
    let table = Embedding::new(&b.at("table"), table)?;
    let policy = BlockOptions::from(Recompute::Checkpoint);
    let blocks = TransformerBlockList::build(&b.at("blocks"), 4, policy, |_, b| Widen::new(b, 16))?;
    let head = Linear::new(&b.at("head"), LinearOptions::new(16, VOCABULARY, true, Init::normal(0.1)))?;

    let mut optim = OptimManager::new(&device, Clip::default())?;
    optim.add(Box::new(Adam::new(ParamGroup::by_decay(&b.finish(), 0.01), AdamOptions::default())?), 1e-2);
    let mut losses = Vec::new();
    for step in 0..steps {
        for index in (rank..MICRO_BATCHES).step_by(size) {
            let number = step * MICRO_BATCHES + index;
            let [tokens, next] = batch(&device, number)?; // [R], [R]
            let address = Randomness { seed: 2, step: step as u32, micro_batch: index as u32 };
            let mut cx = Ctx::training(&device, address);
            let x = table.forward(&tokens, &cx)?; // [R, D]
            let x = blocks.forward(x, &(), &mut cx)?; // [R, D]
            let logits = head.forward(&x, &cx)?; // [R, V]
            let loss = ops::cross_entropy(&cx, &logits, &next, &ops::CrossEntropy::default())?;
            optim.backward(&loss, 1.0 / MICRO_BATCHES as f32, &mut cx)?;
            losses.push((number, loss.value().item()?));
        }
        optim.step()?;
    }
    Ok(Trained { losses, fingerprint: optim.fingerprint()? })
}
