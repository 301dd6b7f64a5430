//! A whole training step on lanes that run late, in random order: the same bits as on the plain CPU, as long as no
//! wait is missing.

use crate::toy;

use bmtrain_core::autograd::Randomness;
use bmtrain_core::kernel::{Fill, NormOrder};
use bmtrain_core::wrap::Deferred;
use bmtrain_core::{Backend, Ctx, DType, Device, Lane, Segment, Storage, Tensor, cpu::CpuBackend};
use bmtrain_dist::block::{BlockOptions, Recompute};
use bmtrain_dist::optim::{
    Adam, AdamOffload, AdamOptions, Clip, Fingerprint, Optimizer, ParamGroup, Schedule, ScheduleKind, Scheduler,
    StepArgs, Warmup,
};
use bmtrain_dist::{Model, Module, OptimManager, Result};
use std::sync::Arc;
use toy::{BATCH, LENGTH, Toy, ToyBatch, ids};

const STEPS: u32 = 3;
const MICRO_BATCHES: u32 = 2;

/// All that a run comes to.
#[derive(Debug, PartialEq)]
struct Outcome {
    losses: Vec<u32>,
    norms: Vec<u32>,
    state: Fingerprint,
}

/// Whether the compute lane waits for the lane that brings the batches.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Uploads {
    AwaitedByCompute,
    Forgotten,
}

/// Memory of the optimizer's state.
#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    OnDevice,
    OnHost,
}

/// Ids on their way to the device on the copy lane.
fn upload(device: &Device, salt: u32) -> Result<Tensor> {
    let ids = ids(5 * salt as usize);
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_ne_bytes()).collect();
    let storage = Storage::empty_on(device, ids.len(), DType::I64, Segment::Data, Lane::Copy)?;
    device.backend().upload(&bytes, storage.view_mut_on(0..ids.len(), Lane::Copy)?, Lane::Copy)?;
    Ok(storage.tensor(0, [BATCH, LENGTH])?)
}

/// The batch of one micro-batch, numbered through all steps.
fn batch(device: &Device, number: u32, uploads: Uploads) -> Result<ToyBatch> {
    let [source, target, labels] = [0, 1, 2].map(|part| upload(device, 3 * number + part));
    let batch = ToyBatch { source: source?, target: target?, labels: labels? };
    if uploads == Uploads::AwaitedByCompute {
        let backend = device.backend();
        backend.wait(Lane::Compute, backend.mark(Lane::Copy)?)?;
    }
    Ok(batch)
}

/// Steps of two micro-batches each: upload, forward, backward, clip, Adam, with dropout and a schedule. The host looks
/// at nothing but the norms before all is over.
fn train(device: &Device, recompute: Recompute, uploads: Uploads, state: State) -> Result<Outcome> {
    let model = Toy::new(device, BlockOptions::from(recompute))?;
    let (groups, options) = (ParamGroup::by_decay(model.parameters(), 0.1), AdamOptions::default());
    let adam: Box<dyn Optimizer> = match state {
        State::OnDevice => Box::new(Adam::new(groups, options)?),
        State::OnHost => Box::new(AdamOffload::new(groups, options)?),
    };
    let mut optim = OptimManager::new(device, Clip { order: NormOrder::Two, max_norm: 0.5 })?;
    let schedule = Schedule::new(ScheduleKind::Linear, 0.05, Warmup::Steps(1), u64::from(STEPS) + 2, 0.0)?;
    optim.add_scheduled(adam, Scheduler::new(schedule));
    let (mut losses, mut norms) = (Vec::new(), Vec::new());
    for step in 0..STEPS {
        for micro_batch in 0..MICRO_BATCHES {
            let batch = batch(device, step * MICRO_BATCHES + micro_batch, uploads)?;
            let mut cx = Ctx::training(device, Randomness { seed: 9, step, micro_batch });
            let loss = model.forward(&batch, &mut cx)?;
            optim.backward(&loss, 1.0 / MICRO_BATCHES as f32, &mut cx)?;
            losses.push(loss.into_value());
        }
        let info = optim.step()?;
        assert!(uploads == Uploads::Forgotten || (!info.skipped && info.grad_norm > 0.5), "clipping has to matter");
        norms.push(info.grad_norm.to_bits());
    }
    let losses = losses.iter().map(|loss| Ok(loss.item()?.to_bits())).collect::<Result<_>>()?;
    Ok(Outcome { losses, norms, state: optim.fingerprint()? })
}

fn plain(recompute: Recompute) -> Outcome {
    train(&Device::cpu(1).unwrap(), recompute, Uploads::AwaitedByCompute, State::OnDevice).unwrap()
}

fn late(seed: u64) -> Device {
    Device::new(Arc::new(Deferred::new(Arc::new(CpuBackend::new(1).unwrap()), seed)) as Arc<dyn Backend>)
}

#[test]
fn training_on_late_lanes_gives_the_same_bits_under_every_order() {
    let expected = plain(Recompute::Keep);
    let mut distinct = expected.losses.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), (STEPS * MICRO_BATCHES) as usize, "batches and steps have to differ");
    assert!(plain(Recompute::Checkpoint) == expected);
    for seed in 0..24 {
        let recompute = if seed % 2 == 0 { Recompute::Keep } else { Recompute::Checkpoint };
        let outcome = train(&late(seed), recompute, Uploads::AwaitedByCompute, State::OnDevice).unwrap();
        assert_eq!(outcome, expected, "seed {seed}, {recompute:?}");
    }
}

#[test]
fn updates_on_the_host_are_awaited_by_every_user_of_the_parameters_under_every_order() {
    let expected = plain(Recompute::Keep);
    for seed in 0..24 {
        let recompute = if seed % 2 == 0 { Recompute::Keep } else { Recompute::Checkpoint };
        let outcome = train(&late(seed), recompute, Uploads::AwaitedByCompute, State::OnHost).unwrap();
        assert_eq!(outcome, expected, "seed {seed}, {recompute:?}");
    }
}

#[test]
fn the_factor_of_a_step_on_the_host_is_read_before_the_next_one_is_written() {
    for seed in 0..8 {
        let device = late(seed);
        let model = Toy::new(&device, BlockOptions::from(Recompute::Keep)).unwrap();
        let mut adam = AdamOffload::new(ParamGroup::all(model.parameters(), 0.1), AdamOptions::default()).unwrap();
        let mut cx = Ctx::training(&device, Randomness { seed: 9, step: 0, micro_batch: 0 });
        let loss = model.forward(&batch(&device, 0, Uploads::AwaitedByCompute).unwrap(), &mut cx).unwrap();
        OptimManager::new(&device, Clip::default()).unwrap().backward(&loss, 1.0, &mut cx).unwrap();
        model.parameters().flats().iter().try_for_each(|flat| flat.finish_step()).unwrap();
        let mut factor = Tensor::full_in(&device, [1], DType::F32, 1.0, Segment::Optimizer).unwrap();
        let before: Vec<_> = model.parameters().iter().map(|param| param.read().unwrap()).collect();
        adam.step(StepArgs { lr: 0.1, factor: &factor }).unwrap();
        device.launch(Fill { value: f32::NAN, out: factor.view_mut().unwrap() }).unwrap();
        device.backend().sync(Lane::Compute).unwrap();
        for (param, before) in model.parameters().iter().zip(before) {
            assert_ne!(param.read().unwrap(), before, "seed {seed}: {}", param.name());
        }
    }
}

#[test]
fn training_without_the_wait_behind_an_upload_gives_other_bits_or_an_error_under_some_order() {
    let expected = plain(Recompute::Keep);
    // On lanes that run at once it would have no effect.
    let at_once = train(&Device::cpu(1).unwrap(), Recompute::Keep, Uploads::Forgotten, State::OnDevice).unwrap();
    assert_eq!(at_once, expected);
    let noticed =
        (0..24).filter(|&seed| match train(&late(seed), Recompute::Keep, Uploads::Forgotten, State::OnDevice) {
            Ok(outcome) => outcome != expected,
            Err(_) => true,
        });
    assert!(noticed.count() > 0, "no order was harmful: the test above proves nothing");
}
