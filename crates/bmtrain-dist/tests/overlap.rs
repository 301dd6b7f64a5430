//! Exchange behind compute: with a link that takes a part of what the blocks compute, fetching ahead hides it, and so does the
//! last micro-batch of a step where gradients are exchanged once a step.
#![allow(missing_docs, clippy::unwrap_used)]

mod ranks;

use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::host::{HostOptions, Link};
use bmtrain_core::{Ctx, Device, Segment, Tensor, Var, ops};
use bmtrain_dist::block::{BlockOptions, Recompute};
use bmtrain_dist::nn::{Linear, LinearOptions};
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, ParamGroup};
use bmtrain_dist::param::{BuilderOptions, Init};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use bmtrain_dist::{Block, Builder, OptimManager, Result, TransformerBlockList};
use ranks::on_ranks;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const BLOCKS: usize = 12;
const WIDTH: usize = 64;
/// What a block's forward pass takes, whatever else the machine does.
const COMPUTE: Duration = Duration::from_millis(12);

/// What is timed is timed alone.
static TURN: Mutex<()> = Mutex::new(());

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

/// Seconds of a training step on the slower of two ranks: until its gradients have arrived. With `announce` the micro-batch is
/// known to be the last one.
fn step_seconds(link: Option<Link>, level: ZeroLevel, prefetch: bool, announce: bool) -> f64 {
    let options = HostOptions { link, ..HostOptions::default() };
    let seconds = on_ranks(2, options, |comm| {
        let device = Device::cpu(1).unwrap();
        let sharding = Sharding { ranks: Arc::new(comm), level, sum: GradientSum::Fast, prefetch };
        let builder = Builder::new(&device, BuilderOptions { sharding, ..BuilderOptions::default() });
        let policy = BlockOptions { recompute: Recompute::Checkpoint };
        let blocks = TransformerBlockList::build(&builder, BLOCKS, policy, |_, b| {
            let options = LinearOptions::new(WIDTH, WIDTH, false, Init::normal(0.1));
            Ok(Slow(Linear::new(&b.at("linear"), options)?))
        });
        let blocks = blocks.unwrap();
        let parameters = builder.finish();
        let adam = Adam::new(ParamGroup::all(&parameters, 0.0), AdamOptions::default()).unwrap();
        let mut optim = OptimManager::new(&device, Clip::default()).unwrap();
        optim.add(Box::new(adam), 1e-3);
        let x = Tensor::full(&device, [2, WIDTH], bmtrain_core::DType::F32, 0.5, Segment::Data).unwrap();
        let mut seconds = f64::INFINITY;
        for step in 0..3 {
            let begin = Instant::now();
            let mut cx = Ctx::training(&device, Randomness { seed: 1, step, micro_batch: 0 });
            let y = blocks.forward(Var::constant(x.clone()), &(), &mut cx).unwrap();
            let loss = ops::mean(&cx, &y).unwrap();
            match announce {
                true => optim.backward_last(&loss, 1.0, &mut cx).unwrap(),
                false => optim.backward(&loss, 1.0, &mut cx).unwrap(),
            }
            if level < ZeroLevel::Two {
                // What the step begins with.
                parameters.flats().iter().for_each(|flat| flat.finish_step().unwrap());
            }
            // Until the last gradient has arrived; the optimizer is not looked at.
            device.backend().sync(bmtrain_core::Lane::Zero).unwrap();
            seconds = seconds.min(begin.elapsed().as_secs_f64());
            optim.step().unwrap();
        }
        seconds
    });
    seconds.into_iter().fold(0.0, f64::max)
}

#[test]
fn fetching_ahead_hides_most_of_the_exchange() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // Forward: one gather for each block. Way back: one gather and one reduction for each block, in the time in which the
    // block is computed again. A shard is half a block, a reduction gives away a whole one.
    let shard = (WIDTH * WIDTH * 4 / 2) as f64;
    let link = Link { latency: Duration::ZERO, bytes_per_second: shard / (COMPUTE.as_secs_f64() / 6.0) };
    let step = |link, prefetch| step_seconds(link, ZeroLevel::Three, prefetch, false);
    let (free, ahead, late) = (step(None, true), step(Some(link), true), step(Some(link), false));
    // Of the first block's gather and the last block's reduction nothing can be behind.
    let (visible, all) = (ahead - free, late - free);
    let hidden = 1.0 - visible / all;
    println!("{free:.4} s without a link, {ahead:.4} s with it, {late:.4} s without fetching ahead");
    println!("figure: {:.1}%", 100.0 * hidden);
    assert!(all > 0.5 * (12.0 * 2.0) * COMPUTE.as_secs_f64() / 6.0, "the link is felt at all: {all}");
    assert!(hidden >= 0.85, "only {:.1} % of the exchange is hidden", 100.0 * hidden);
}

#[test]
fn the_last_micro_batch_hides_the_exchange_of_a_step() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let whole = (WIDTH * WIDTH * 4) as f64;
    let link = Link { latency: Duration::ZERO, bytes_per_second: whole / (COMPUTE.as_secs_f64() / 3.0) };
    for level in [ZeroLevel::Zero, ZeroLevel::One] {
        let step = |link, announce| step_seconds(link, level, true, announce);
        let (free, during, behind) = (step(None, true), step(Some(link), true), step(Some(link), false));
        // Of the first block's exchange, the last one on the way back, nothing can be behind.
        let hidden = 1.0 - (during - free) / (behind - free);
        println!(
            "{level:?}: {free:.4} s without a link, {during:.4} s announced, {behind:.4} s not: {hidden:.3} hidden"
        );
        assert!(behind - free > 0.5 * BLOCKS as f64 * COMPUTE.as_secs_f64() / 3.0, "the link is felt: {behind} {free}");
        assert!(hidden >= 0.75, "{level:?}: only {:.1} % of the exchange is hidden", 100.0 * hidden);
    }
}
