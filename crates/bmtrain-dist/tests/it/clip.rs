//! Clipping of an optimizer's gradients by a norm of their own.

use crate::ranks::{Mixers, on_ranks};
use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::{Communicator, Solo};
use bmtrain_core::kernel::NormOrder;
use bmtrain_core::{Ctx, Device, Segment, Tensor};
use bmtrain_dist::block::BlockOptions;
use bmtrain_dist::optim::{Adam, AdamOffload, AdamOptions, Clip, Fingerprint, ParamGroup};
use bmtrain_dist::param::BuilderOptions;
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use bmtrain_dist::{OptimManager, Param};
use std::sync::Arc;

const STEPS: u32 = 3;

fn clip(max_norm: f32) -> Clip {
    Clip { order: NormOrder::Two, max_norm }
}

/// Norms of each step, together and apart, and what the run comes to. Blocks are clipped at 0.05, their biases at 0.01
/// in their largest element, the rest together at 0.2. A loss is multiplied by `factor` in the second step.
fn train(ranks: Arc<dyn Communicator>, level: ZeroLevel, factor: f32) -> (Vec<[u32; 3]>, Vec<bool>, Fingerprint) {
    let (device, rank, size) = (Device::cpu(1).unwrap(), ranks.rank(), ranks.size());
    let sharding = Sharding { ranks, level, sum: GradientSum::Elastic, prefetch: true };
    let options = BuilderOptions { seed: 7, sharding, ..BuilderOptions::default() };
    let model = Mixers::new(&device, [3, 24], &[], BlockOptions::default(), options).unwrap();
    let mut optim = OptimManager::new(&device, clip(0.2)).unwrap();
    let of = |wanted: fn(&str) -> bool| {
        let params: Vec<&Param> = model.parameters.iter().filter(|param| wanted(param.name())).collect();
        ParamGroup::all(params, 0.01)
    };
    let (table, weights, biases) = (
        of(|n| n.starts_with("table")),
        of(|n| n.starts_with("b") && n.ends_with("weight")),
        of(|n| n.ends_with("bias")),
    );
    optim.add(Box::new(Adam::new(table, AdamOptions::default()).unwrap()), 0.01);
    optim.add(Box::new(AdamOffload::new(weights, AdamOptions::default()).unwrap()), 0.01);
    optim.add(Box::new(Adam::new(biases, AdamOptions::default()).unwrap()), 0.01);
    optim.clip_apart(1, clip(0.05)).unwrap();
    optim.clip_apart(2, Clip { order: NormOrder::Infinity, max_norm: 0.01 }).unwrap();
    let (mut norms, mut skips) = (Vec::new(), Vec::new());
    for step in 0..STEPS {
        for index in (rank..4).step_by(size) {
            let ids =
                |salt: usize| -> Vec<i64> { (0..6).map(|row| ((row * 5 + index * 3 + salt) % 13) as i64).collect() };
            let tensor = |salt| Tensor::from_slice_in(&device, [6], &ids(salt), Segment::Data).unwrap();
            let randomness = Randomness { seed: 3, step, micro_batch: index as u32 };
            let mut cx = Ctx::training(&device, randomness);
            let loss = model.loss(&tensor(1), &tensor(4), &mut cx).unwrap();
            optim.backward(&loss, if step == 1 { factor / 4.0 } else { 0.25 }, &mut cx).unwrap();
        }
        let info = optim.step().unwrap();
        assert_eq!(info.apart_norms.iter().map(|(optimizer, _)| *optimizer).collect::<Vec<_>>(), [1, 2]);
        norms.push([info.grad_norm, info.apart_norms[0].1, info.apart_norms[1].1].map(f32::to_bits));
        skips.push(info.skipped);
    }
    (norms, skips, optim.fingerprint().unwrap())
}

#[test]
fn norms_apart_are_those_of_managers_apart_on_any_number_of_ranks() {
    let expected = train(Arc::new(Solo), ZeroLevel::Zero, 1.0);
    assert_eq!(expected.1, [false; 3]);
    let [together, weights, biases] = expected.0[0].map(f32::from_bits);
    // Each clip has to matter.
    assert!(together > 0.2 && weights > 0.05 && biases > 0.01, "{together} {weights} {biases}");
    for level in [ZeroLevel::Zero, ZeroLevel::One, ZeroLevel::Three] {
        for got in on_ranks(2, Default::default(), |rank| train(Arc::new(rank), level, 1.0)) {
            assert_eq!(got, expected, "{level:?}");
        }
    }
}

#[test]
fn a_norm_that_is_not_finite_keeps_every_optimizer_from_its_step() {
    let (_, skips, broken) = train(Arc::new(Solo), ZeroLevel::Zero, f32::INFINITY);
    assert_eq!(skips, [false, true, false]);
    assert_eq!(train(Arc::new(Solo), ZeroLevel::Zero, f32::INFINITY).2, broken);
}

/// One parameter in each optimizer, with these gradients: which of them moved.
fn moved(gradients: [f32; 2]) -> [bool; 2] {
    use bmtrain_core::{Segment, Var, ops};
    use bmtrain_dist::param::{Init, Split};
    let device = Device::cpu(1).unwrap();
    let b = bmtrain_dist::Builder::new(&device, BuilderOptions::default());
    let params = ["a", "b"].map(|name| b.param(name, [4], Init::ONES, Split::Replicated, false).unwrap());
    let mut optim = OptimManager::new(&device, clip(1.0)).unwrap();
    for param in &params {
        optim.add(Box::new(Adam::new(ParamGroup::all([param], 0.0), AdamOptions::default()).unwrap()), 0.1);
    }
    optim.clip_apart(1, clip(1.0)).unwrap();
    let mut cx = Ctx::gradients(&device);
    let terms = [0, 1].map(|at| {
        let factor = Tensor::full_in(&device, [4], bmtrain_core::DType::F32, gradients[at], Segment::Data).unwrap();
        ops::sum(&cx, &ops::mul(&cx, &params[at].var(&cx).unwrap(), &Var::constant(factor)).unwrap()).unwrap()
    });
    let loss = ops::add(&cx, &terms[0], &terms[1]).unwrap();
    optim.backward(&loss, 1.0, &mut cx).unwrap();
    let info = optim.step().unwrap();
    let moved = params.map(|param| param.read().unwrap() != [1.0; 4]);
    assert_eq!(info.skipped, !moved[0]);
    moved
}

#[test]
fn one_gradient_that_is_not_finite_keeps_the_other_optimizer_from_its_step() {
    assert_eq!(moved([2.0, 3.0]), [true, true]);
    for broken in [f32::INFINITY, f32::NAN] {
        assert_eq!(moved([2.0, broken]), [false, false]);
        assert_eq!(moved([broken, 3.0]), [false, false]);
    }
}

#[test]
fn clips_that_cannot_be_are_refused() {
    let device = Device::cpu(1).unwrap();
    let mut optim = OptimManager::new(&device, clip(1.0)).unwrap();
    let refused = |optim: &mut OptimManager, at, bound| optim.clip_apart(at, clip(bound)).unwrap_err().to_string();
    assert_eq!(refused(&mut optim, 0, 1.0), "clip: optimizer 0 of 0: add it first");
    optim.add(Box::new(Adam::new(Vec::new(), AdamOptions::default()).unwrap()), 0.1);
    assert_eq!(refused(&mut optim, 0, 0.0), "clip: norm bound 0 must be above 0");
    optim.clip_apart(0, clip(1.0)).unwrap();
    assert_eq!(refused(&mut optim, 0, 1.0), "clip: optimizer 0 has a clip of its own already");
}
