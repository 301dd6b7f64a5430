//! Savings of memory change no bit: policies by block, inputs on the host, parameters on the host, a block without a
//! list. Where something moves to the host, the device's memory is not the host's and its lanes run late.

mod offloading;

use crate::ranks::{Mixer, Setting, beside_host, on_ranks, peak, run};
use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::{Communicator, Solo};
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor, Var, ops};
use bmtrain_dist::block::{BlockOptions, CheckpointBlock, InputStore, Recompute, checkpoint};
use bmtrain_dist::param::BuilderOptions;
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use bmtrain_dist::{Block, Builder, Result, TransformerBlockList};
use std::sync::Arc;

fn mixed_recompute(index: usize) -> BlockOptions {
    let all = [Recompute::Every(2), Recompute::Every(2), Recompute::Keep, Recompute::Every(3), Recompute::Checkpoint];
    all[index % all.len()].into()
}

fn mixed_levels(index: usize) -> BlockOptions {
    let levels = [ZeroLevel::Three, ZeroLevel::Zero, ZeroLevel::Two, ZeroLevel::One];
    BlockOptions { zero: Some(levels[index % 4]), ..mixed_recompute(index) }
}

fn every_three(_: usize) -> BlockOptions {
    Recompute::Every(3).into()
}

fn inputs_on_the_host(index: usize) -> BlockOptions {
    let recompute = if index < 3 { Recompute::Every(2) } else { Recompute::Checkpoint };
    BlockOptions { recompute, inputs: InputStore::Host, ..BlockOptions::default() }
}

fn base() -> Setting {
    Setting { blocks: 5, ..Setting::default() }
}

#[test]
fn policies_and_levels_by_block_change_no_bit_on_any_number_of_ranks() {
    let expected = run(&base());
    for policy in [mixed_recompute as fn(usize) -> BlockOptions, mixed_levels, every_three] {
        assert_eq!(run(&Setting { policy: Some(policy), ..base() }), expected);
        for (level, prefetch) in [(ZeroLevel::Three, true), (ZeroLevel::Three, false), (ZeroLevel::Two, true)] {
            let setting = Setting { policy: Some(policy), ranks: 2, level, prefetch, ..base() };
            assert_eq!(run(&setting), expected, "{level:?}, prefetch {prefetch}");
            assert_eq!(run(&Setting { order: &[], dtype: DType::F32, announce: true, ..setting }), expected);
        }
    }
    // Blocks at several places, and frozen ones.
    let order: &[usize] = &[0, 0, 3, 1, 3, 4];
    for frozen in [&[][..], &["blocks.0.*", "table.*"]] {
        let base = Setting { order, frozen, ..base() };
        let expected = run(&base);
        for policy in [mixed_levels as fn(usize) -> BlockOptions, every_three] {
            let shared = Setting { policy: Some(policy), ranks: 2, level: ZeroLevel::Three, ..base.clone() };
            assert_eq!(run(&shared), expected, "{frozen:?}");
        }
    }
}

#[test]
fn inputs_on_the_host_change_no_bit_under_any_order_of_the_lanes() {
    for dtype in [DType::F32, DType::BF16] {
        let expected = run(&Setting { dtype, ..base() });
        let policy = Some(inputs_on_the_host as fn(usize) -> BlockOptions);
        // On the CPU nothing moves.
        assert_eq!(run(&Setting { dtype, policy, ..base() }), expected);
        for seed in 0..6 {
            let setting = Setting { dtype, policy, beside_host: Some(seed), ..base() };
            assert_eq!(run(&setting), expected, "seed {seed}");
            assert_eq!(run(&Setting { ranks: 2, level: ZeroLevel::Three, ..setting }), expected, "seed {seed}");
        }
    }
}

/// Peak of the activations, and of what is on the host, in a pass through blocks with this policy.
fn peaks(device: &Device, blocks: usize, options: BlockOptions) -> (usize, usize) {
    const ROWS: usize = 256;
    const SIZE: usize = 32;
    let b = Builder::new(device, BuilderOptions::default());
    let list = TransformerBlockList::build(&b, blocks, options, |_, b| Mixer::new(b, SIZE)).unwrap();
    let x = Tensor::full_in(device, [ROWS, SIZE], DType::F32, 0.5, Segment::Data).unwrap();
    device.reset_peaks();
    let mut cx = Ctx::training(device, Randomness::default());
    let tape = cx.tape().unwrap().clone();
    let y = list.forward(Var::constant(x), &(), &mut cx).unwrap();
    let loss = ops::mean(&cx, &y).unwrap();
    drop(y);
    cx.take_tape();
    let one = Tensor::full_in(device, [1], DType::F32, 1.0, Segment::Activations).unwrap();
    tape.backward(device, vec![(loss, one)], &[]).unwrap();
    let report = device.memory();
    (peak(&report, Segment::Activations), peak(&report, Segment::Offload))
}

#[test]
fn inputs_on_the_host_take_no_memory_of_the_device() {
    let input = 256 * 32 * 4;
    let host = BlockOptions { inputs: InputStore::Host, ..Recompute::Checkpoint.into() };
    let grows = |device: &dyn Fn() -> Device, options| {
        let [(few, on_host), (many, more_on_host)] = [4, 12].map(|blocks| peaks(&device(), blocks, options));
        (many.saturating_sub(few), more_on_host - on_host)
    };
    let (cpu, late) = (|| Device::cpu(1).unwrap(), || beside_host(Some(3)));
    assert_eq!(grows(&cpu, Recompute::Checkpoint.into()), (8 * input, 0));
    assert_eq!(grows(&cpu, host), (8 * input, 0), "the CPU's memory is the host's");
    let (device, on_host) = grows(&late, host);
    assert_eq!(on_host, 8 * input);
    // An element each in place of the values.
    assert!(device <= 8 * 512, "{device} bytes");
}

#[test]
fn policies_that_do_not_fit_are_refused() {
    let device = Device::cpu(1).unwrap();
    let refused = |options: BlockOptions| {
        let b = Builder::new(&device, BuilderOptions::default());
        TransformerBlockList::build(&b, 1, options, |_, b| Mixer::new(b, 8)).unwrap_err().to_string()
    };
    let checkpoint = BlockOptions::from(Recompute::Checkpoint);
    for (options, reason) in [
        (Recompute::Every(0).into(), "inputs of every 0th block: the number must be at least 1"),
        (
            BlockOptions { inputs: InputStore::Host, ..BlockOptions::default() },
            "where inputs are kept has no effect on blocks that are not recomputed",
        ),
        (
            BlockOptions { inputs: InputStore::Sharded, ..checkpoint },
            "inputs sharded over tensor-parallel ranks, and there is one",
        ),
    ] {
        assert_eq!(refused(options), format!("block list: {reason}"));
    }
}

/// A block without a list, twice in a row, and a list of it.
fn single(ranks: Arc<dyn Communicator>, level: ZeroLevel, recompute: Recompute) -> Vec<(String, Vec<f32>)> {
    let device = Device::cpu(1).unwrap();
    let sharding = Sharding { ranks, level, sum: GradientSum::Fast, prefetch: true };
    let b = Builder::new(&device, BuilderOptions { seed: 5, sharding, ..BuilderOptions::default() });
    let block = CheckpointBlock::build(&b.at("mixer"), recompute, |b| Mixer::new(b, 16)).unwrap();
    let parameters = b.finish();
    let x = Tensor::full_in(&device, [4, 16], DType::F32, 0.5, Segment::Data).unwrap();
    let mut cx = Ctx::training(&device, Randomness { seed: 2, step: 1, micro_batch: 0 });
    let tape = cx.tape().unwrap().clone();
    let y = cx.at("first", |cx| block.forward(Var::constant(x), &(), cx)).unwrap();
    let y = cx.at("second", |cx| block.forward(y, &(), cx)).unwrap();
    let loss = ops::mean(&cx, &y).unwrap();
    let one = Tensor::full_in(&device, [1], DType::F32, 1.0, Segment::Activations).unwrap();
    tape.backward(&device, vec![(loss, one)], &[]).unwrap();
    parameters.flats().iter().for_each(|flat| flat.finish_step().unwrap());
    let gradient = |param: &bmtrain_dist::Param| {
        let (flat, index) = param.place().unwrap();
        let whole = flat.gather_state(&flat.reduced().unwrap()).unwrap();
        let span = flat.layout().spans()[index];
        let values: Vec<f32> = whole.tensor(span.start, [span.len]).unwrap().to_vec().unwrap();
        let ranks = flat.sharding().ranks.size() as f32;
        (param.name().to_owned(), values.into_iter().map(|value| value / ranks).collect())
    };
    parameters.iter().map(gradient).collect()
}

#[test]
fn a_block_without_a_list_is_recomputed_and_sharded() {
    let expected = single(Arc::new(Solo), ZeroLevel::Zero, Recompute::Keep);
    assert_eq!(expected[0].0, "mixer.norm.weight");
    assert!(expected.iter().any(|(_, values)| values.iter().any(|value| *value != 0.0)));
    assert_eq!(single(Arc::new(Solo), ZeroLevel::Zero, Recompute::Checkpoint), expected);
    for level in [ZeroLevel::Two, ZeroLevel::Three] {
        for got in on_ranks(2, Default::default(), |rank| single(Arc::new(rank), level, Recompute::Checkpoint)) {
            assert_eq!(got, expected, "{level:?}");
        }
    }
}

/// A mixer that keeps the input of its second half alone.
struct Halved(Mixer);

impl Block for Halved {
    type Carry = Var;
    type Shared = Var;
    type Cache = ();

    fn forward(&self, x: Var, factor: &Var, _: Option<&mut ()>, cx: &mut Ctx) -> Result<Var> {
        let x = self.0.forward(x, &(), None, cx)?;
        let half = |inputs: &[Var], cx: &mut Ctx| -> Result<Var> {
            let scaled = ops::mul(cx, &inputs[0], &inputs[1])?;
            let dropout = cx.dropout("half", 0.3)?;
            Ok(ops::dropout(cx, &scaled, dropout)?)
        };
        if cx.recomputes_attention() { checkpoint(&[&x, factor], cx, half) } else { half(&[x, factor.clone()], cx) }
    }
}

#[test]
fn a_part_of_a_block_that_runs_again_has_the_same_gradients() {
    let gradients = |recompute: Recompute| {
        let device = Device::cpu(1).unwrap();
        let b = Builder::new(&device, BuilderOptions { seed: 5, ..BuilderOptions::default() });
        let list = TransformerBlockList::build(&b, 3, recompute, |_, b| Ok(Halved(Mixer::new(b, 16)?))).unwrap();
        let full = |value| Tensor::full_in(&device, [4, 16], DType::F32, value, Segment::Data).unwrap();
        let mut cx = Ctx::training(&device, Randomness { seed: 2, step: 1, micro_batch: 0 });
        let tape = cx.tape().unwrap().clone();
        let (x, factor) = (tape.input(full(0.5)), tape.input(full(1.5)));
        let y = list.forward(x.clone(), &factor, &mut cx).unwrap();
        let loss = ops::mean(&cx, &y).unwrap();
        let one = Tensor::full_in(&device, [1], DType::F32, 1.0, Segment::Activations).unwrap();
        let saved = tape.saved_bytes();
        let of_inputs = tape.backward(&device, vec![(loss, one)], &[&x, &factor]).unwrap();
        let of_inputs = of_inputs.into_iter().map(|grad| grad.unwrap().to_vec::<f32>().unwrap());
        let parameters = b.finish();
        let of_params = parameters.iter().map(|param| param.grad().unwrap().unwrap().to_vec::<f32>().unwrap());
        (of_inputs.chain(of_params).collect::<Vec<_>>(), saved)
    };
    let (expected, all) = gradients(Recompute::Keep);
    let (got, less) = gradients(Recompute::Attention);
    assert!(got == expected);
    assert!(less <= all, "{less} of {all} bytes");
}
