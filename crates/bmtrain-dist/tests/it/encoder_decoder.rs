//! A toy encoder–decoder under the block list: right gradients, the same bits kept, recomputed, in two stages and late.

use crate::toy;

use bmtrain_core::autograd::Randomness;
use bmtrain_core::wrap::Deferred;
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor, Var, cpu};
use bmtrain_dist::block::{BlockOptions, Recompute};
use bmtrain_dist::{Bundle, Model, Module};
use std::sync::Arc;
use toy::{BATCH, Flow, LENGTH, Toy, ToyBatch, ids};

const RANDOMNESS: Randomness = Randomness { seed: 9, step: 3, micro_batch: 1 };

fn device() -> Device {
    Device::cpu(1).unwrap()
}

fn with(device: &Device, recompute: Recompute) -> Toy {
    Toy::new(device, BlockOptions::from(recompute)).unwrap()
}

fn batch(device: &Device) -> ToyBatch {
    let tensor = |salt| Tensor::from_slice_in(device, [BATCH, LENGTH], &ids(salt), Segment::Data).unwrap();
    ToyBatch { source: tensor(1), target: tensor(3), labels: tensor(4) }
}

fn one(device: &Device) -> Tensor {
    Tensor::full_in(device, [1], DType::F32, 1.0, Segment::Activations).unwrap()
}

fn gradients(model: &Toy) -> Vec<(String, Vec<f32>)> {
    let read = |grad: Option<Tensor>| grad.map(|grad| grad.to_vec::<f32>().unwrap()).unwrap_or_default();
    model.parameters().iter().map(|param| (param.name().into(), read(param.grad().unwrap()))).collect()
}

/// Loss and all gradients of one pass with dropout.
fn pass(device: &Device, recompute: Recompute) -> (f32, Vec<(String, Vec<f32>)>) {
    let model = with(device, recompute);
    let batch = batch(device);
    let mut cx = Ctx::training(device, RANDOMNESS);
    let loss = model.forward(&batch, &mut cx).unwrap();
    let tape = cx.take_tape().unwrap();
    tape.backward(device, vec![(loss.clone(), one(device))], &[]).unwrap();
    (loss.value().item().unwrap(), gradients(&model))
}

/// Bit for bit, naming the first difference only.
fn assert_same(a: &(f32, Vec<(String, Vec<f32>)>), b: &(f32, Vec<(String, Vec<f32>)>), what: &str) {
    assert_eq!(a.0.to_bits(), b.0.to_bits(), "{what}: loss");
    for ((name, a), (_, b)) in a.1.iter().zip(&b.1) {
        assert!(a == b, "{what}: {name}");
    }
}

fn loss_of(device: &Device, model: &Toy, batch: &ToyBatch) -> f64 {
    // Recorded, so that the same dropout applies; the tape is dropped unused.
    let mut cx = Ctx::training(device, RANDOMNESS);
    f64::from(model.forward(batch, &mut cx).unwrap().value().item().unwrap())
}

#[test]
fn gradients_kept_and_recomputed_agree_with_finite_differences() {
    for recompute in [Recompute::Keep, Recompute::Checkpoint] {
        let device = device();
        let (_, grads) = pass(&device, recompute);
        let model = with(&device, recompute);
        let batch = batch(&device);
        for (param, (name, grad)) in model.parameters().iter().zip(&grads) {
            assert_eq!(grad.len(), param.spec().shape.elements(), "{name} has no gradient");
            let values = param.read().unwrap();
            let norm = grad.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
            if norm < 1e-6 {
                // A key bias has no gradient in exact arithmetic.
                continue;
            }
            // Along the gradient itself the derivative is its norm.
            let step = 2e-3;
            let along = |sign: f64| {
                let moved: Vec<f32> =
                    values.iter().zip(grad).map(|(v, g)| v + (sign * step * f64::from(*g) / norm) as f32).collect();
                param.load(&moved).unwrap();
                loss_of(&device, &model, &batch)
            };
            let slope = (along(1.0) - along(-1.0)) / (2.0 * step);
            param.load(&values).unwrap();
            // f32 losses near 2.4 have a spacing of 2.4e-7, so the slope is good to 2.4e-7 / 2e-3 = 1.2e-4 absolute and
            // a curvature term of the order of step^2.
            assert!((slope - norm).abs() < 5e-4 + 5e-3 * norm, "{name} {recompute:?}: slope {slope}, norm {norm}");
        }
    }
}

#[test]
fn recomputing_gives_the_same_bits_as_keeping() {
    let device = device();
    assert_same(&pass(&device, Recompute::Keep), &pass(&device, Recompute::Checkpoint), "recomputed");
}

#[test]
fn lanes_run_late_in_random_order_give_the_same_bits() {
    let expected = pass(&device(), Recompute::Keep);
    for seed in 0..4 {
        let late = Device::new(Arc::new(Deferred::new(Arc::new(cpu::CpuBackend::new(1).unwrap()), seed)));
        assert_same(&pass(&late, Recompute::Keep), &expected, &format!("seed {seed}"));
    }
}

#[test]
fn two_stages_give_the_same_bits_as_one() {
    let device = device();
    let expected = pass(&device, Recompute::Keep);
    for cut in 1..4 {
        let model = with(&device, Recompute::Keep);
        let batch = batch(&device);
        let mut first = Ctx::training(&device, RANDOMNESS);
        let flow = model.embed(&batch, &mut first).unwrap();
        let sent = model.run_blocks(0..cut, flow, &batch, &mut first).unwrap();
        // The other stage receives values, and sends gradients of them back.
        let mut second = Ctx::training(&device, RANDOMNESS);
        let tape = second.tape().unwrap().clone();
        let received: Flow = sent.rebuild(&mut sent.vars().into_iter().map(|var| tape.input(var.into_value())));
        let flow = model.run_blocks(cut..4, received.clone(), &batch, &mut second).unwrap();
        let loss = model.head(flow, &batch, &mut second).unwrap();
        let inputs = received.vars();
        let wanted: Vec<&Var> = inputs.iter().collect();
        let grads = second.take_tape().unwrap().backward(&device, vec![(loss.clone(), one(&device))], &wanted).unwrap();
        let seeds = sent.vars().into_iter().zip(grads).filter_map(|(var, grad)| Some((var, grad?))).collect();
        first.take_tape().unwrap().backward(&device, seeds, &[]).unwrap();
        assert_eq!(loss.value().item().unwrap(), expected.0);
        for ((name, one_stage), (_, two_stages)) in expected.1.iter().zip(gradients(&model)) {
            assert!(*one_stage == two_stages, "{name}, cut after block {cut}");
        }
    }
}

#[test]
fn a_model_observed_block_by_block_gives_the_same_loss() {
    let device = device();
    let model = with(&device, Recompute::Keep);
    let batch = batch(&device);
    let whole = model.forward(&batch, &mut Ctx::inference(&device)).unwrap().value().item().unwrap();
    let mut seen = Vec::new();
    let observed = model.forward_observed(&batch, &mut Ctx::inference(&device), &mut |block, _| {
        seen.push(block);
        Ok(())
    });
    assert_eq!(observed.unwrap().value().item().unwrap(), whole);
    assert_eq!(seen, [0, 1, 2, 3, 4]);
}

#[test]
fn frozen_blocks_get_no_gradient_and_pass_the_others_on_unchanged() {
    let device = device();
    let expected = pass(&device, Recompute::Keep).1;
    for recompute in [Recompute::Keep, Recompute::Checkpoint] {
        let model = with(&device, recompute);
        let frozen = |name: &str| name.starts_with("encoder.1") || name.starts_with("decoder.0");
        for param in model.parameters().iter().filter(|param| frozen(param.name())) {
            param.set_trainable(false);
        }
        let batch = batch(&device);
        let mut cx = Ctx::training(&device, RANDOMNESS);
        let loss = model.forward(&batch, &mut cx).unwrap();
        cx.take_tape().unwrap().backward(&device, vec![(loss, one(&device))], &[]).unwrap();
        for ((name, before), (_, after)) in expected.iter().zip(gradients(&model)) {
            let wanted = if frozen(name) { &Vec::new() } else { before };
            assert!(*wanted == after, "{name}");
        }
    }
}
