//! A model whose blocks take a fixed time for each part of their work, and steps of it over pipeline stages and
//! data-parallel ranks: for measuring schedules. `model-center` compares its simulator with the same steps.
// Each of the tests needs a part of it.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use bmtrain_core::autograd::{Backward, BackwardCtx, Grads, Randomness};
use bmtrain_core::comm::Communicator;
use bmtrain_core::comm::host::{HostGroup, HostOptions, HostRank};
use bmtrain_core::pool::Report;
use bmtrain_core::{Ctx, DType, Device, Error as CoreError, Result as CoreResult, Segment, Tensor, Var, ops};
use bmtrain_dist::block::{BlockOptions, Recompute, RunOptions};
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, ParamGroup};
use bmtrain_dist::param::{BuilderOptions, Init, Param, Split};
use bmtrain_dist::pipeline::{BlockCosts, Edge, MicroBatch, Partition, Pipeline, Schedule, StageGroup, WorkTimes};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use bmtrain_dist::{
    Block, Builder, ControlGroup, Mesh, Model, Module, OptimManager, Parameters, RankGroup, Result,
    TransformerBlockList,
};
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Steps of a model of sleeping blocks.
#[derive(Debug, Clone)]
pub struct SleepRun {
    pub schedule: Schedule,
    /// Times of each block.
    pub blocks: Vec<WorkTimes>,
    /// Elements of the hidden states, which every block keeps for its backward pass.
    pub elements: usize,
    /// Values of each block's weight.
    pub values: usize,
    pub data: usize,
    pub level: ZeroLevel,
    pub recompute: Recompute,
    pub options: HostOptions,
}

/// Measurements of a rank in a step after the first.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Seconds from a moment when all ranks were ready to the end of the optimizer step.
    pub step: f64,
    /// Idle time over compute time, between the beginning of its first work and the end of its last.
    pub bubble: f64,
    pub memory: Report,
}

/// Begin, end and working time of a stage.
#[derive(Debug, Clone, Copy, Default)]
struct Worked {
    span: Option<(Instant, Instant)>,
    busy: Duration,
}

/// Takes a fixed time for its forward pass, for the gradient of its input and for the gradient of its weight.
struct Sleeper {
    weight: Param,
    times: WorkTimes,
    worked: Rc<Cell<Worked>>,
}

fn work(seconds: f64, worked: &Cell<Worked>) {
    let begin = Instant::now();
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let (end, Worked { span, busy }) = (Instant::now(), worked.get());
    worked.set(Worked { span: Some((span.map_or(begin, |(first, _)| first), end)), busy: busy + (end - begin) });
}

impl Block for Sleeper {
    type Carry = Var;
    type Shared = ();
    type Cache = ();

    fn forward(&self, x: Var, _: &(), _: Option<&mut ()>, cx: &mut Ctx) -> Result<Var> {
        // The input has arrived.
        x.value().to_vec::<f32>()?;
        work(self.times.forward, &self.worked);
        let y = ops::scale(&Ctx::inference(cx.device()), &x, 1.0)?.into_value();
        let kept = x.value().clone();
        let (times, values) = (self.times, self.weight.spec().shape.elements());
        let worked = Rc::clone(&self.worked);
        Ok(cx.record(y, &[&x, &self.weight.var(cx)?], || Box::new(SleeperBackward { kept, times, values, worked })))
    }
}

#[derive(Debug)]
struct SleeperBackward {
    kept: Tensor,
    times: WorkTimes,
    values: usize,
    worked: Rc<Cell<Worked>>,
}

impl Backward for SleeperBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> CoreResult<()> {
        let SleeperBackward { kept, times, values, worked } = *self;
        let missing = || CoreError::argument("sleeper", "no gradient");
        let dy = dy.into_iter().next().flatten().ok_or_else(missing)?;
        dy.to_vec::<f32>()?;
        work(times.input_gradient, &worked);
        cx.give(0, dy)?;
        cx.later([1], move |cx, [weight]| {
            work(times.weight_gradient, &worked);
            let gradient = Tensor::full_in(cx.device(), [values], DType::F32, 0.0, Segment::Activations)?;
            drop(kept);
            cx.give(weight, gradient)
        })
    }
}

struct Sleepers {
    weight: Param,
    blocks: TransformerBlockList<Sleeper>,
    parameters: Parameters,
}

impl Module for Sleepers {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }
}

impl Model for Sleepers {
    type Batch = Tensor;
    type Flow = Var;
    type Output = Var;

    fn embed(&self, x: &Tensor, cx: &mut Ctx) -> Result<Var> {
        let x = Var::constant(x.clone());
        Ok(ops::add(cx, &x, &ops::scale(cx, &self.weight.var(cx)?, 0.0)?)?)
    }

    fn stacks(&self) -> Vec<usize> {
        vec![self.blocks.len()]
    }

    fn run_stack(&self, _: usize, range: Range<usize>, x: Var, _: &Tensor, cx: &mut Ctx) -> Result<Var> {
        let options = RunOptions { range, caches: None, return_hidden: false };
        Ok(self.blocks.run(x, &(), options, cx)?.carry)
    }

    fn receive(&self, _: usize, x: &Tensor, edge: &mut Edge<'_>) -> Result<Var> {
        edge.var("states", x.shape(), DType::F32)
    }

    fn head(&self, x: Var, target: &Tensor, cx: &mut Ctx) -> Result<Var> {
        Ok(ops::squared_error(cx, &x, target)?)
    }

    fn forward(&self, batch: &Tensor, cx: &mut Ctx) -> Result<Var> {
        let x = self.embed(batch, cx)?;
        self.head(self.run_stack(0, 0..self.blocks.len(), x, batch, cx)?, batch, cx)
    }
}

/// Measurements of every rank, the blocks divided evenly among the places of the schedule.
pub fn measure(run: &SleepRun) -> Vec<Measured> {
    let world = run.schedule.stages() * run.data;
    let group = HostGroup::threads(world, run.options).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = group.into_iter().map(|rank| scope.spawn(|| measure_rank(run, rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A rank's part of the model.
struct Rank {
    device: Device,
    stages: StageGroup,
    worked: Rc<Cell<Worked>>,
    model: Sleepers,
}

fn rank_of(run: &SleepRun, world: &HostRank) -> Rank {
    let (device, schedule) = (Device::cpu(1).unwrap(), &run.schedule);
    let mesh = Mesh::new(world.rank(), world.size(), schedule.stages(), 1).unwrap();
    let group = |kind| -> Arc<dyn Communicator> {
        let (colour, key) = mesh.colour_and_key(kind);
        world.split(colour, key).unwrap()
    };
    let partition = Partition::even(run.blocks.len(), schedule.places()).unwrap();
    let stages = StageGroup::new(group(RankGroup::Pipe), partition, schedule).unwrap();
    let ranks = group(RankGroup::TensorZero);
    let sharding = Sharding { ranks, level: run.level, sum: GradientSum::Fast, prefetch: true };
    let options = BuilderOptions { mesh, sharding, stages: stages.clone(), ..BuilderOptions::default() };
    let b = Builder::new(&device, options);
    let worked = Rc::new(Cell::new(Worked::default()));
    let weight = b.param("weight", [run.elements], Init::ZEROS, Split::Replicated, false).unwrap();
    let policy = BlockOptions::from(run.recompute);
    let blocks = TransformerBlockList::build(&b.at("blocks"), run.blocks.len(), policy, |number, b| {
        let weight = b.param("weight", [run.values], Init::ZEROS, Split::Replicated, false)?;
        Ok(Sleeper { weight, times: run.blocks[number], worked: Rc::clone(&worked) })
    });
    let model = Sleepers { weight, blocks: blocks.unwrap(), parameters: b.finish() };
    Rank { device, stages, worked, model }
}

/// The times of all blocks as the ranks measure them and agree on.
pub fn measure_costs(run: &SleepRun) -> Vec<BlockCosts> {
    let group = HostGroup::threads(run.schedule.stages(), run.options).unwrap();
    let costs = |world: HostRank| {
        let Rank { device, model, .. } = rank_of(run, &world);
        let batch = Tensor::full(&device, [run.elements], DType::F32, 1.0).unwrap();
        let own = BlockCosts::measure(&device, &model, &batch, Ok).unwrap();
        own.agree(&ControlGroup::new(Arc::new(world), &device)).unwrap()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = group.into_iter().map(|rank| scope.spawn(|| costs(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn measure_rank(run: &SleepRun, world: HostRank) -> Measured {
    let Rank { device, stages, worked, model } = rank_of(run, &world);
    let mut optim = OptimManager::new(&device, Clip::default()).unwrap();
    let groups = ParamGroup::all(model.parameters(), 0.0);
    optim.add(Box::new(Adam::new(groups, AdamOptions::default()).unwrap()), 0.0);
    let pipeline = Pipeline::new(&device, &stages, run.schedule.clone()).unwrap();
    let load = |_| {
        let batch = Tensor::full(&device, [run.elements], DType::F32, 1.0)?;
        Ok::<_, bmtrain_dist::Error>(MicroBatch { batch, randomness: Randomness::default(), weight: 1.0 })
    };
    let mut step = 0.0;
    for _ in 0..2 {
        worked.set(Worked::default());
        world.barrier().unwrap();
        let begin = Instant::now();
        pipeline.forward_backward(&model, &optim, load, Ok).unwrap().to_vec::<f32>().unwrap();
        optim.step().unwrap();
        step = begin.elapsed().as_secs_f64();
    }
    let Worked { span, busy } = worked.get();
    let (begin, end) = span.unwrap();
    let idle = (end - begin).saturating_sub(busy);
    Measured { step, bubble: idle.as_secs_f64() / busy.as_secs_f64(), memory: device.memory() }
}
