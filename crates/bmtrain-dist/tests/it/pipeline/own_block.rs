//! A user's own block on two pipeline stages: the example of `docs/sharding.md`.

use crate::ranks::on_ranks;
use bmtrain_core::comm::Solo;
use bmtrain_core::comm::host::HostOptions;
use bmtrain_dist::optim::Fingerprint;
use bmtrain_dist::pipeline::{Edge, MicroBatch, ModelPart, Partition, Pipeline, Schedule, ScheduleKind, StageGroup};
use bmtrain_dist::prelude::*;
use bmtrain_dist::{Mesh, Model};
use std::ops::Range;
use std::sync::Arc;

const SIZE: usize = 16;
const VOCABULARY: usize = 17;
const ROWS: usize = 8;
const MICRO_BATCHES: usize = 4;

/// `y = x + down(gelu(up(x)))`.
struct Widen {
    up: Linear,
    down: Linear,
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

/// An embedding, blocks and a head that predict the next token.
struct Widened {
    table: Embedding,
    blocks: TransformerBlockList<Widen>,
    head: Linear,
    parameters: Parameters,
}

impl Widened {
    fn new(device: &Device, options: BuilderOptions) -> Result<Self> {
        let b = Builder::new(device, options);
        let linear = |b: &Builder, from, to| Linear::new(b, LinearOptions::new(from, to, true, Init::normal(0.1)));
        let table = EmbeddingOptions { entries: VOCABULARY, size: SIZE, init: Init::normal(0.5), padding_index: None };
        let table = Embedding::new(&b.part(ModelPart::Embed).at("table"), table)?;
        let blocks = TransformerBlockList::build(&b.at("blocks"), 4, BlockOptions::default(), |_, b| {
            Ok(Widen { up: linear(&b.at("up"), SIZE, 4 * SIZE)?, down: linear(&b.at("down"), 4 * SIZE, SIZE)? })
        })?;
        let head = linear(&b.part(ModelPart::Head).at("head"), SIZE, VOCABULARY)?;
        Ok(Widened { table, blocks, head, parameters: b.finish() })
    }
}

impl Module for Widened {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }
}

impl Model for Widened {
    type Batch = [Tensor; 2];
    type Flow = Var;
    type Output = Var;

    fn embed(&self, [tokens, _]: &[Tensor; 2], cx: &mut Ctx) -> Result<Var> {
        self.table.forward(tokens, cx) // [R, D]
    }

    fn stacks(&self) -> Vec<usize> {
        vec![self.blocks.len()]
    }

    fn run_stack(&self, _: usize, range: Range<usize>, x: Var, _: &[Tensor; 2], cx: &mut Ctx) -> Result<Var> {
        let options = bmtrain_dist::block::RunOptions { range, caches: None, return_hidden: false };
        Ok(self.blocks.run(x, &(), options, cx)?.carry) // [R, D]
    }

    fn receive(&self, _: usize, [tokens, _]: &[Tensor; 2], edge: &mut Edge<'_>) -> Result<Var> {
        let [rows] = tokens.dims("receive")?;
        edge.var("states", [rows, SIZE], DType::F32) // [R, D]
    }

    fn head(&self, x: Var, [_, next]: &[Tensor; 2], cx: &mut Ctx) -> Result<Var> {
        let logits = self.head.forward(&x, cx)?; // [R, V]
        Ok(ops::cross_entropy(cx, &logits, next, &ops::CrossEntropy::default())?) // [1]
    }

    fn forward(&self, batch: &[Tensor; 2], cx: &mut Ctx) -> Result<Var> {
        let x = self.embed(batch, cx)?; // [R, D]
        self.head(self.run_stack(0, 0..self.blocks.len(), x, batch, cx)?, batch, cx)
    }
}

fn batch(device: &Device, number: usize) -> Result<[Tensor; 2]> {
    let tokens: Vec<i64> = (0..ROWS).map(|row| ((number * ROWS + row) * 5 % VOCABULARY) as i64).collect();
    let next: Vec<i64> = tokens.iter().map(|token| (3 * token + 1) % VOCABULARY as i64).collect();
    Ok([Tensor::from_slice(device, [ROWS], &tokens)?, Tensor::from_slice(device, [ROWS], &next)?])
}

fn train(ranks: Arc<dyn Communicator>) -> Result<(Vec<f32>, Fingerprint)> {
    let (device, mesh) = (Device::cpu(1)?, Mesh::new(ranks.rank(), ranks.size(), ranks.size(), 1)?);
    let schedule = Schedule::new(ScheduleKind::OneForwardOneBackward, ranks.size(), 1, MICRO_BATCHES)?;
    let stages = StageGroup::new(ranks, Partition::even(4, schedule.places())?, &schedule)?;
    let options = BuilderOptions { mesh, stages: stages.clone(), ..BuilderOptions::default() };
    let model = Widened::new(&device, options)?;
    let pipeline = Pipeline::new(&device, &stages, schedule)?;

    let mut optim = OptimManager::new(&device, Clip::default())?;
    optim.add(Box::new(Adam::new(ParamGroup::by_decay(model.parameters(), 0.01), AdamOptions::default())?), 1e-2);
    let mut all = Vec::new();
    for step in 0..40 {
        let load = |number: usize| {
            let randomness = Randomness { seed: 3, step, micro_batch: number as u32 };
            let batch = batch(&device, step as usize * MICRO_BATCHES + number)?;
            Ok::<_, Error>(MicroBatch { batch, randomness, weight: 1.0 / MICRO_BATCHES as f32 })
        };
        let losses = pipeline.forward_backward(&model, &optim, load, Ok)?; // [micro-batches]
        optim.step()?;
        all.extend(losses.to_vec::<f32>()?);
    }
    Ok((all, optim.fingerprint()?))
}

#[test]
fn a_block_of_ones_own_on_two_stages_is_one_stage_bit_for_bit() {
    let (losses, fingerprint) = train(Arc::new(Solo)).unwrap();
    let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
    assert!(mean(&losses[156..]) < 0.3 * mean(&losses[..4]), "the loss falls");
    for found in on_ranks(2, HostOptions::default(), |rank| train(Arc::new(rank)).unwrap()) {
        assert_eq!(found, (losses.clone(), fingerprint.clone()));
    }
}
