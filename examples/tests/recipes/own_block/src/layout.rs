//! The block over tensor-parallel ranks, pipeline stages and data-parallel ranks: the model declares its parts and what
//! crosses an edge between two stages, and the library does the rest.

use super::{MICRO_BATCHES, VOCABULARY, Widen, batch};
use bmtrain_dist::block::RunOptions;
use bmtrain_dist::optim::Fingerprint;
use bmtrain_dist::param::TensorGroup;
use bmtrain_dist::pipeline::{Edge, MicroBatch, ModelPart, Partition, Pipeline, Schedule, ScheduleKind, StageGroup};
use bmtrain_dist::prelude::*;
use bmtrain_dist::{Model, RankGroup, RankGroups};
use std::ops::Range;
use std::sync::Arc;

/// D, length of a row.
const SIZE: usize = 16;
/// Blocks of the model.
const BLOCKS: usize = 4;

/// An embedding, blocks and a head that predict the next token.
pub struct Widened {
    table: Embedding,
    blocks: TransformerBlockList<Widen>,
    head: Linear,
    parameters: Parameters,
}

impl Widened {
    fn new(device: &Device, options: BuilderOptions) -> Result<Self> {
        let b = Builder::new(device, options);
        let table = EmbeddingOptions { entries: VOCABULARY, size: SIZE, init: Init::normal(0.5), padding_index: None };
        let table = Embedding::new(&b.part(ModelPart::Embed).at("table"), table)?;
        let policy = BlockOptions::from(Recompute::Checkpoint);
        let blocks = TransformerBlockList::build(&b.at("blocks"), BLOCKS, policy, |_, b| Widen::new(b, SIZE))?;
        let head = LinearOptions::new(SIZE, VOCABULARY, true, Init::normal(0.1));
        let head = Linear::new(&b.part(ModelPart::Head).at("head"), head)?;
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
        let options = RunOptions { range, caches: None, return_hidden: false };
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

/// What a rank returns: the losses of its micro-batches, and the fingerprint of the whole model.
pub type Run = (Vec<f32>, Fingerprint);

/// What one of `stages` x `tensor` x data ranks does.
pub fn train(ranks: Arc<dyn Communicator>, stages: usize, tensor: usize, steps: usize) -> Result<Run> {
    let (device, groups) = (Device::cpu(1)?, RankGroups::split(Arc::clone(&ranks), stages, tensor)?);
    let mesh = groups.mesh();
    let (colour, key) = mesh.colour_and_key(RankGroup::Pipe);
    let micro_batches = MICRO_BATCHES / mesh.data_size();
    let schedule = Schedule::new(ScheduleKind::OneForwardOneBackward, stages, 1, micro_batches)?;
    let stages = StageGroup::new(ranks.split(colour, key)?, Partition::even(BLOCKS, stages)?, &schedule)?;
    let tensor = TensorGroup { ranks: Arc::clone(groups.tensor()), ..TensorGroup::default() };
    let sharding = Sharding { ranks: Arc::clone(groups.data()), level: ZeroLevel::One, ..Sharding::solo() };
    let options = BuilderOptions { seed: 1, mesh, tensor, stages, sharding, ..BuilderOptions::default() };
    let (model, stages) = (Widened::new(&device, options.clone())?, options.stages);
    let pipeline = Pipeline::new(&device, &stages, schedule)?;

    let mut optim = OptimManager::new(&device, Clip::default())?;
    optim.add(Box::new(Adam::new(ParamGroup::by_decay(model.parameters(), 0.01), AdamOptions::default())?), 1e-2);
    let mut losses = Vec::new();
    for step in 0..steps {
        let load = |number: usize| {
            let index = number * mesh.data_size() + mesh.data_rank();
            let randomness = Randomness { seed: 2, step: step as u32, micro_batch: index as u32 };
            let batch = batch(&device, step * MICRO_BATCHES + index)?;
            Ok::<_, Error>(MicroBatch { batch, randomness, weight: 1.0 / MICRO_BATCHES as f32 })
        };
        losses.extend(pipeline.forward_backward(&model, &optim, load, Ok)?.to_vec::<f32>()?);
        optim.step()?;
    }
    Ok((losses, optim.fingerprint()?))
}
