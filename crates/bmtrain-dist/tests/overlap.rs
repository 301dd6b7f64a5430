//! Exchange behind compute: with a link that takes half as long as the blocks compute, fetching ahead hides it. Where gradients
//! are exchanged once a step, those of the last micro-batch go while the way back is still under way.
#![allow(missing_docs, clippy::unwrap_used)]

mod ranks;

use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::Communicator;
use bmtrain_core::comm::host::{HostOptions, Link};
use bmtrain_core::{Ctx, Device, Lane, Segment, Tensor, Var, ops};
use bmtrain_dist::block::{BlockOptions, Recompute};
use bmtrain_dist::nn::{Linear, LinearOptions};
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, ParamGroup};
use bmtrain_dist::param::{BuilderOptions, Init};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use bmtrain_dist::{Block, Builder, OptimManager, Result, TransformerBlockList};
use ranks::on_ranks;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BLOCKS: usize = 12;
const WIDTH: usize = 64;
/// What a block's forward pass takes, whatever else the machine does.
const COMPUTE: Duration = Duration::from_millis(12);

/// A block that takes its time without taking the processor's.
struct Slow(Linear);

impl Block for Slow {
    type Carry = Var;
    type Shared = ();
    type Cache = ();

    fn forward(&self, x: Var, _: &(), _: Option<&mut ()>, cx: &mut Ctx) -> Result<Var> {
        std::thread::sleep(COMPUTE);
        self.0.forward(&x, cx)
    }
}

/// Seconds of a training step on the slower of two ranks.
fn step_seconds(link: Option<Link>, prefetch: bool) -> f64 {
    let options = HostOptions { link, ..HostOptions::default() };
    let seconds = on_ranks(2, options, |comm| {
        let device = Device::cpu(1).unwrap();
        let sharding = Sharding { ranks: Arc::new(comm), level: ZeroLevel::Three, sum: GradientSum::Fast, prefetch };
        let builder = Builder::new(&device, BuilderOptions { sharding, ..BuilderOptions::default() });
        let policy = BlockOptions { recompute: Recompute::Checkpoint };
        let blocks = TransformerBlockList::build(&builder, BLOCKS, policy, |_, b| {
            let options = LinearOptions::new(WIDTH, WIDTH, false, Init::normal(0.1));
            Ok(Slow(Linear::new(&b.at("linear"), options)?))
        });
        let blocks = blocks.unwrap();
        let adam = Adam::new(ParamGroup::all(&builder.finish(), 0.0), AdamOptions::default()).unwrap();
        let mut optim = OptimManager::new(&device, Clip::default()).unwrap();
        optim.add(Box::new(adam), 1e-3);
        let x = Tensor::full(&device, [2, WIDTH], bmtrain_core::DType::F32, 0.5, Segment::Data).unwrap();
        let mut seconds = f64::INFINITY;
        for step in 0..3 {
            let begin = Instant::now();
            let mut cx = Ctx::training(&device, Randomness { seed: 1, step, micro_batch: 0 });
            let y = blocks.forward(Var::constant(x.clone()), &(), &mut cx).unwrap();
            let loss = ops::mean(&cx, &y).unwrap();
            optim.backward(&loss, 1.0, &mut cx).unwrap();
            // Until the last gradient has arrived; the optimizer is not looked at.
            device.backend().sync(Lane::Zero).unwrap();
            seconds = seconds.min(begin.elapsed().as_secs_f64());
            optim.step().unwrap();
        }
        seconds
    });
    seconds.into_iter().fold(0.0, f64::max)
}

#[test]
fn fetching_ahead_hides_most_of_the_exchange() {
    // Forward: one gather for each block. Way back: one gather and one reduction for each block, in the time in which the
    // block is computed again. A shard is half a block, a reduction gives away a whole one.
    let shard = (WIDTH * WIDTH * 4 / 2) as f64;
    let link = Link { latency: Duration::ZERO, bytes_per_second: shard / (COMPUTE.as_secs_f64() / 6.0) };
    let (free, ahead, late) =
        (step_seconds(None, true), step_seconds(Some(link), true), step_seconds(Some(link), false));
    // Of the first block's gather and the last block's reduction nothing can be behind.
    let (visible, all) = (ahead - free, late - free);
    let hidden = 1.0 - visible / all;
    println!("{free:.4} s without a link, {ahead:.4} s with it, {late:.4} s without fetching ahead");
    println!("figure: {:.1}%", 100.0 * hidden);
    assert!(all > 0.5 * (12.0 * 2.0) * COMPUTE.as_secs_f64() / 6.0, "the link is felt at all: {all}");
    assert!(hidden >= 0.85, "only {:.1} % of the exchange is hidden", 100.0 * hidden);
}

/// A block that looks, whenever it runs, how many reductions have been launched so far.
struct Looking {
    linear: Linear,
    reductions: Rc<dyn Fn() -> u64>,
    seen: Rc<RefCell<Vec<u64>>>,
}

impl Block for Looking {
    type Carry = Var;
    type Shared = ();
    type Cache = ();

    fn forward(&self, x: Var, _: &(), _: Option<&mut ()>, cx: &mut Ctx) -> Result<Var> {
        cx.device().backend().sync(Lane::Zero)?;
        self.seen.borrow_mut().push((self.reductions)());
        self.linear.forward(&x, cx)
    }
}

/// Reductions that had been launched when each of three blocks ran, forward and again on the way back, and at the end of it.
fn reductions_seen(level: ZeroLevel, announce: bool) -> Vec<u64> {
    let seen = on_ranks(2, HostOptions::default(), |comm| {
        let (comm, device) = (Arc::new(comm), Device::cpu(1).unwrap());
        let ranks: Arc<dyn Communicator> = comm.clone();
        let sharding = Sharding { ranks, level, sum: GradientSum::Fast, prefetch: true };
        let builder = Builder::new(&device, BuilderOptions { sharding, ..BuilderOptions::default() });
        let name = if level == ZeroLevel::Zero { "all_reduce" } else { "reduce_scatter" };
        let reductions: Rc<dyn Fn() -> u64> =
            Rc::new(move || comm.traffic().iter().find(|(known, _)| *known == name).map_or(0, |(_, t)| t.calls));
        let seen = Rc::<RefCell<Vec<u64>>>::default();
        let policy = BlockOptions { recompute: Recompute::Checkpoint };
        let blocks = TransformerBlockList::build(&builder, 3, policy, |_, b| {
            let linear = Linear::new(&b.at("linear"), LinearOptions::new(WIDTH, WIDTH, false, Init::normal(0.1)))?;
            Ok(Looking { linear, reductions: Rc::clone(&reductions), seen: Rc::clone(&seen) })
        });
        let blocks = blocks.unwrap();
        let adam = Adam::new(ParamGroup::all(&builder.finish(), 0.0), AdamOptions::default()).unwrap();
        let mut optim = OptimManager::new(&device, Clip::default()).unwrap();
        optim.add(Box::new(adam), 1e-3);
        let x = Tensor::full(&device, [2, WIDTH], bmtrain_core::DType::F32, 0.5, Segment::Data).unwrap();
        let mut cx = Ctx::training(&device, Randomness { seed: 1, step: 0, micro_batch: 0 });
        let y = blocks.forward(Var::constant(x), &(), &mut cx).unwrap();
        let loss = ops::mean(&cx, &y).unwrap();
        match announce {
            true => optim.backward_last(&loss, 1.0, &mut cx).unwrap(),
            false => optim.backward(&loss, 1.0, &mut cx).unwrap(),
        }
        device.backend().sync(Lane::Zero).unwrap();
        seen.borrow_mut().push(reductions());
        optim.step().unwrap();
        seen.take()
    });
    assert_eq!(seen[0], seen[1]);
    seen[0].clone()
}

#[test]
fn the_last_micro_batch_exchanges_a_block_before_the_one_below_runs_again() {
    for level in [ZeroLevel::Zero, ZeroLevel::One] {
        assert_eq!(reductions_seen(level, true), [0, 0, 0, 0, 1, 2, 3], "{level:?}");
        assert_eq!(reductions_seen(level, false), [0; 7], "{level:?}: else at the step");
    }
    assert_eq!(reductions_seen(ZeroLevel::Three, false), [0, 0, 0, 0, 1, 2, 3], "every micro-batch anyway");
}
