//! Communication overlaps with compute: with a link that takes half as long as the blocks compute, prefetching hides
//! it, whatever the link costs the parameters outside of blocks. The reason is an order of launches, which is recorded
//! and compared in full. Without prefetching nothing is hidden, reductions neither: a block's gather is launched after
//! the reduction of the block above it on the same lane, and the block waits for both. Where gradients are reduced once
//! a step, the gradients of the last micro-batch are reduced during its backward pass.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "it/ranks/mod.rs"]
mod ranks;

use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::host::{HostOptions, HostRank, Link};
use bmtrain_core::comm::{Collective, Communicator};
use bmtrain_core::{Backend, Ctx, Device, Lane, Segment, Tensor, Var, ops};
use bmtrain_dist::block::{BlockOptions, Recompute};
use bmtrain_dist::nn::{Linear, LinearOptions};
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, ParamGroup};
use bmtrain_dist::param::{BuilderOptions, Init};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use bmtrain_dist::{Block, Builder, OptimManager, Result, TransformerBlockList};
use ranks::on_ranks;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const BLOCKS: usize = 12;
const WIDTH: usize = 64;
/// Time of a block's forward pass, whatever else the machine does.
const COMPUTE: Duration = Duration::from_millis(12);

/// The most measurements.
const ROUNDS: usize = 6;

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

/// The time in which a rank's shard of a block, which is half of it, goes over the link. Forward a block is gathered,
/// which takes one; on the backward pass it is gathered again and its gradients, a whole block, are reduced, which
/// takes three: together half of the time in which it computes forward and again on the backward pass.
fn unit() -> Duration {
    COMPUTE / 4
}

fn link() -> Link {
    let shard = (WIDTH * WIDTH * 4 / 2) as f64;
    Link { latency: Duration::ZERO, bytes_per_second: shard / unit().as_secs_f64() }
}

/// Seconds of a training step on the slower of two ranks; with `root` there is a parameter of a block's size outside of
/// blocks.
fn step_seconds(link: Option<Link>, prefetch: bool, root: bool) -> f64 {
    let options = HostOptions { link, ..HostOptions::default() };
    let seconds = on_ranks(2, options, |comm| {
        let device = Device::cpu(1).unwrap();
        let sharding = Sharding { ranks: Arc::new(comm), level: ZeroLevel::Three, sum: GradientSum::Fast, prefetch };
        let builder = Builder::new(&device, BuilderOptions { sharding, ..BuilderOptions::default() });
        let policy = BlockOptions::from(Recompute::Checkpoint);
        let linear = || LinearOptions::new(WIDTH, WIDTH, false, Init::normal(0.1));
        let blocks = TransformerBlockList::build(&builder, BLOCKS, policy, |_, b| {
            Ok(Slow(Linear::new(&b.at("linear"), linear())?))
        });
        let blocks = blocks.unwrap();
        let head = root.then(|| Linear::new(&builder.at("head"), linear()).unwrap());
        let adam = Adam::new(ParamGroup::all(&builder.finish(), 0.0), AdamOptions::default()).unwrap();
        let mut optim = OptimManager::new(&device, Clip::default()).unwrap();
        optim.add(Box::new(adam), 1e-3);
        let x = Tensor::full_in(&device, [2, WIDTH], bmtrain_core::DType::F32, 0.5, Segment::Data).unwrap();
        let mut seconds = f64::INFINITY;
        for step in 0..3 {
            let begin = Instant::now();
            let mut cx = Ctx::training(&device, Randomness { seed: 1, step, micro_batch: 0 });
            let mut y = blocks.forward(Var::constant(x.clone()), &(), &mut cx).unwrap();
            if let Some(head) = &head {
                y = head.forward(&y, &cx).unwrap();
            }
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
    let link = Some(link());
    let of = |[free, ahead, late, with_root]: [f64; 4]| {
        // The time of the blocks' collectives on the link.
        let all = (4 * BLOCKS) as f64 * unit().as_secs_f64();
        // The first gather forward, the first on the backward pass and the last reduction have nothing to overlap with:
        // 4 units of 48.
        [1.0 - (ahead - free) / all, (late - free) / all, (with_root - ahead) / (3.0 * unit().as_secs_f64())]
    };
    let holds = |[hidden, exposed, root]: [f64; 3]| hidden >= 0.85 && exposed >= 0.85 && root <= 2.0;
    // Other work on the machine makes single steps longer, never shorter.
    let mut least = [f64::INFINITY; 4];
    for _ in 0..ROUNDS {
        let seconds = [(None, true, false), (link, true, false), (link, false, false), (link, true, true)]
            .map(|(link, prefetch, root)| step_seconds(link, prefetch, root));
        least = std::array::from_fn(|at| least[at].min(seconds[at]));
        if holds(of(least)) {
            break;
        }
    }
    let [free, ahead, late, with_root] = least;
    let [hidden, exposed, root] = of(least);
    println!("{free:.4} s without a link, {ahead:.4} s with it, {late:.4} s without prefetching, {with_root:.4} s");
    println!("figure: {:.1}%", 100.0 * hidden);
    assert!(hidden >= 0.85, "only {:.1} % of the communication is hidden", 100.0 * hidden);
    assert!(exposed >= 0.85, "without prefetching only {:.1} % of the communication is exposed", 100.0 * exposed);
    assert!(root <= 2.0, "the parameter outside of blocks takes {root:.1} times the time of its own collectives");
}

/// Launches and computations in their order.
type Trace = Arc<Mutex<Vec<String>>>;

/// A rank that records which block's storage a collective is for, by its length.
#[derive(Debug)]
struct Noting {
    rank: HostRank,
    trace: Trace,
}

impl Communicator for Noting {
    fn rank(&self) -> usize {
        self.rank.rank()
    }

    fn size(&self) -> usize {
        self.rank.size()
    }

    fn is_ordered(&self) -> bool {
        self.rank.is_ordered()
    }

    fn launch(&self, backend: &dyn Backend, collective: Collective<'_>, on: Lane) -> bmtrain_core::Result<()> {
        // Block i is i + 1 times as wide as the first.
        let block = |elements: usize| elements / (2 * WIDTH * WIDTH) - 1;
        let noted = match &collective {
            Collective::AllGather { recv, .. } => format!("gather {}", block(recv.len())),
            Collective::ReduceScatter { send, .. } => format!("reduce {}", block(send.len())),
            other => format!("{}", other.signature()),
        };
        self.trace.lock().unwrap().push(noted);
        self.rank.launch(backend, collective, on)
    }

    fn split(&self, colour: usize, key: usize) -> bmtrain_core::Result<Arc<dyn Communicator>> {
        self.rank.split(colour, key)
    }

    fn barrier(&self) -> bmtrain_core::Result<()> {
        self.rank.barrier()
    }

    fn abort(&self, reason: &str) {
        self.rank.abort(reason);
    }
}

/// A block that notes when it computes.
struct Noted {
    place: usize,
    up: Linear,
    down: Linear,
    trace: Trace,
}

impl Block for Noted {
    type Carry = Var;
    type Shared = ();
    type Cache = ();

    fn forward(&self, x: Var, _: &(), _: Option<&mut ()>, cx: &mut Ctx) -> Result<Var> {
        self.trace.lock().unwrap().push(format!("compute {}", self.place));
        self.down.forward(&self.up.forward(&x, cx)?, cx)
    }
}

/// The order of a forward pass and the backward pass over three blocks.
fn trace(prefetch: bool) -> Vec<String> {
    let mut traces = on_ranks(2, HostOptions::default(), |rank| {
        let (device, trace) = (Device::cpu(1).unwrap(), Trace::default());
        let ranks = Arc::new(Noting { rank, trace: trace.clone() });
        let sharding = Sharding { ranks, level: ZeroLevel::Three, sum: GradientSum::Fast, prefetch };
        let builder = Builder::new(&device, BuilderOptions { sharding, ..BuilderOptions::default() });
        let policy = BlockOptions::from(Recompute::Checkpoint);
        let blocks = TransformerBlockList::build(&builder, 3, policy, |place, b| {
            let linear =
                |name: &str, from, to| Linear::new(&b.at(name), LinearOptions::new(from, to, false, Init::normal(0.1)));
            let inner = (place + 1) * WIDTH;
            let (up, down) = (linear("up", WIDTH, inner)?, linear("down", inner, WIDTH)?);
            Ok(Noted { place, up, down, trace: trace.clone() })
        });
        let blocks = blocks.unwrap();
        let adam = Adam::new(ParamGroup::all(&builder.finish(), 0.0), AdamOptions::default()).unwrap();
        let mut optim = OptimManager::new(&device, Clip::default()).unwrap();
        optim.add(Box::new(adam), 1e-3);
        let x = Tensor::full_in(&device, [2, WIDTH], bmtrain_core::DType::F32, 0.5, Segment::Data).unwrap();
        let mut cx = Ctx::training(&device, Randomness { seed: 1, step: 0, micro_batch: 0 });
        let y = blocks.forward(Var::constant(x), &(), &mut cx).unwrap();
        let loss = ops::mean(&cx, &y).unwrap();
        optim.backward(&loss, 1.0, &mut cx).unwrap();
        device.sync().unwrap();
        std::mem::take(&mut *trace.lock().unwrap())
    });
    let first = traces.remove(0);
    assert!(traces.iter().all(|other| *other == first), "ranks differ: {first:?}, {traces:?}");
    first
}

#[test]
fn the_next_block_is_gathered_before_this_one_computes_and_reduced_before_the_one_below_does() {
    let ahead = [
        "gather 0",
        "gather 1",
        "compute 0",
        "gather 2",
        "compute 1",
        "compute 2", // forward
        "gather 2",
        "gather 1",
        "compute 2",
        "reduce 2",
        "gather 0",
        "compute 1",
        "reduce 1",
        "compute 0",
        "reduce 0",
    ];
    assert_eq!(trace(true), ahead);
    let late = [
        "gather 0",
        "compute 0",
        "gather 1",
        "compute 1",
        "gather 2",
        "compute 2", // forward
        "gather 2",
        "compute 2",
        "reduce 2",
        "gather 1",
        "compute 1",
        "reduce 1",
        "gather 0",
        "compute 0",
        "reduce 0",
    ];
    assert_eq!(trace(false), late, "without prefetching");
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

/// Reductions that had been launched when each of three blocks ran, forward and again on the backward pass, and at the
/// end of it.
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
        let policy = BlockOptions::from(Recompute::Checkpoint);
        let blocks = TransformerBlockList::build(&builder, 3, policy, |_, b| {
            let linear = Linear::new(&b.at("linear"), LinearOptions::new(WIDTH, WIDTH, false, Init::normal(0.1)))?;
            Ok(Looking { linear, reductions: Rc::clone(&reductions), seen: Rc::clone(&seen) })
        });
        let blocks = blocks.unwrap();
        let adam = Adam::new(ParamGroup::all(&builder.finish(), 0.0), AdamOptions::default()).unwrap();
        let mut optim = OptimManager::new(&device, Clip::default()).unwrap();
        optim.add(Box::new(adam), 1e-3);
        let x = Tensor::full_in(&device, [2, WIDTH], bmtrain_core::DType::F32, 0.5, Segment::Data).unwrap();
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
