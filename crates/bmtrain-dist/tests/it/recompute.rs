//! `Recompute::Auto` keeps what fits into the memory that gradients take later: how many blocks run again, how much
//! memory that takes, and that no bit depends on it.

use bmtrain_core::autograd::Randomness;
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor, Var, ops};
use bmtrain_dist::block::{BlockPolicy, Recompute};
use bmtrain_dist::nn::{Linear, LinearOptions};
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, ParamGroup};
use bmtrain_dist::param::{BuilderOptions, Init};
use bmtrain_dist::{Block, Builder, OptimManager, Result, TransformerBlockList};
use std::cell::Cell;
use std::rc::Rc;

const BLOCKS: usize = 4;
const WIDTH: usize = 64;

/// Two products, with a count of forward passes. Its gradients have 64 KiB, what it saves 768 bytes a row.
struct Counted {
    up: Linear,
    down: Linear,
    runs: Rc<Cell<usize>>,
}

impl Block for Counted {
    type Carry = Var;
    type Shared = ();
    type Cache = ();

    fn forward(&self, x: Var, _: &(), _: Option<&mut ()>, cx: &mut Ctx) -> Result<Var> {
        self.runs.set(self.runs.get() + 1);
        self.down.forward(&self.up.forward(&x, cx)?, cx)
    }
}

/// Measurements of the second step of a training run, in which optimizer state is there from the beginning.
#[derive(Debug, PartialEq)]
struct Step {
    /// Blocks that ran again in each micro-batch.
    again: Vec<usize>,
    peak: usize,
    /// Bits of all parameters after it.
    values: Vec<Vec<u32>>,
}

fn second_step(recompute: impl Into<BlockPolicy>, rows: usize, micro_batches: usize) -> Step {
    let device = Device::cpu(1).unwrap();
    let builder = Builder::new(&device, BuilderOptions::default());
    let runs = Rc::new(Cell::new(0));
    let blocks = TransformerBlockList::build(&builder, BLOCKS, recompute, |_, b| {
        let linear =
            |name: &str, from, to| Linear::new(&b.at(name), LinearOptions::new(from, to, false, Init::normal(0.1)));
        let (up, down) = (linear("up", WIDTH, 2 * WIDTH)?, linear("down", 2 * WIDTH, WIDTH)?);
        Ok(Counted { up, down, runs: Rc::clone(&runs) })
    });
    let (blocks, parameters) = (blocks.unwrap(), builder.finish());
    parameters.initialize_missing().unwrap();
    let adam = Adam::new(ParamGroup::all(&parameters, 0.0), AdamOptions::default()).unwrap();
    let mut optim = OptimManager::new(&device, Clip::default()).unwrap();
    optim.add(Box::new(adam), 1e-2);
    let x = Tensor::full_in(&device, [rows, WIDTH], DType::F32, 0.5, Segment::Data).unwrap();
    let mut again = Vec::new();
    for step in 0..2 {
        device.reset_peaks();
        again.clear();
        for micro_batch in 0..micro_batches as u32 {
            runs.set(0);
            let mut cx = Ctx::training(&device, Randomness { seed: 1, step, micro_batch });
            let y = blocks.forward(Var::constant(x.clone()), &(), &mut cx).unwrap();
            let loss = ops::mean(&cx, &y).unwrap();
            drop(y);
            optim.backward(&loss, 1.0 / micro_batches as f32, &mut cx).unwrap();
            again.push(runs.get() - BLOCKS);
        }
        optim.step().unwrap();
    }
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect();
    let values = parameters.iter().map(|param| bits(param.read().unwrap())).collect();
    Step { again, peak: device.memory().total.peak, values }
}

#[test]
fn blocks_run_again_as_far_as_gradients_leave_no_room_at_no_higher_peak() {
    // All gradients have 256 KiB; a row takes 768 bytes of them in a block that is kept, and 256 in another.
    for (rows, again) in [(32, 0), (80, 0), (96, 1), (120, 2), (160, 3), (200, 4), (400, 4)] {
        let [kept, checkpointed, auto] =
            [Recompute::Keep, Recompute::Checkpoint, Recompute::Auto].map(|recompute| second_step(recompute, rows, 1));
        assert_eq!((&kept.again, &checkpointed.again), (&vec![0], &vec![BLOCKS]));
        assert_eq!(auto.again, [again], "{rows} rows");
        assert!(auto.values == kept.values && checkpointed.values == kept.values, "{rows} rows");
        assert!(auto.peak <= checkpointed.peak, "{rows} rows: {} above {}", auto.peak, checkpointed.peak);
    }
}

#[test]
fn micro_batches_that_find_gradients_run_all_blocks_again() {
    let [kept, checkpointed, auto] =
        [Recompute::Keep, Recompute::Checkpoint, Recompute::Auto].map(|recompute| second_step(recompute, 160, 3));
    assert_eq!(auto.again, [3, BLOCKS, BLOCKS]);
    assert!(auto.values == kept.values && auto.peak <= checkpointed.peak, "{} {}", auto.peak, checkpointed.peak);
}

#[test]
fn blocks_of_a_segment_run_again_together_and_keep_one_input() {
    // What a further block keeps, from lists whose first pass is over before any gradient takes memory.
    let rows = 2000;
    let kept = second_step(Recompute::Keep, rows, 1);
    let [one, two, four] = [1, 2, 4].map(|blocks| second_step(Recompute::Every(blocks), rows, 1));
    for step in [&one, &two, &four] {
        assert_eq!(step.again, [BLOCKS]);
        assert!(step.values == kept.values);
    }
    // An input has 256 bytes a row; all that a block keeps, beside it, 768.
    let (input, all) = (256 * rows, 768 * rows);
    assert!(two.peak.abs_diff(one.peak + all - 2 * input) < input / 4, "{} and {}", one.peak, two.peak);
    assert!(one.peak < two.peak && two.peak < four.peak && four.peak <= kept.peak + input);
}

#[test]
fn a_policy_may_differ_by_block() {
    let by_index =
        |index: usize| [Recompute::Keep, Recompute::Every(2), Recompute::Every(2), Recompute::Checkpoint][index].into();
    let mixed = second_step(BlockPolicy::by_index(by_index), 96, 2);
    assert_eq!(mixed.again, [BLOCKS - 1; 2]);
    assert!(mixed.values == second_step(Recompute::Keep, 96, 2).values);
}
