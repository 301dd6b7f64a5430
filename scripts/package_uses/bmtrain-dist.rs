//! Depends on bmtrain-dist alone: a linear map learns to add.

use bmtrain_dist::bmtrain_core::autograd::Randomness;
use bmtrain_dist::bmtrain_core::{Ctx, Device, Segment, Tensor, Var, ops};
use bmtrain_dist::nn::{Linear, LinearOptions};
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, ParamGroup};
use bmtrain_dist::param::{BuilderOptions, Init};
use bmtrain_dist::{Builder, OptimManager, Result};

#[test]
fn a_linear_layer_learns_to_add() -> Result<()> {
    let device = Device::cpu(1)?;
    let builder = Builder::new(&device, BuilderOptions::default());
    let linear = Linear::new(&builder.at("sum"), LinearOptions::new(2, 1, true, Init::normal(0.02)))?;
    let adam = Adam::new(ParamGroup::by_decay(&builder.finish(), 0.0), AdamOptions::default())?;
    let mut optim = OptimManager::new(&device, Clip::default())?;
    optim.add(Box::new(adam), 0.05);
    let x = Tensor::from_slice_in(&device, [4, 2], &[0.0f32, 1.0, 1.0, 0.0, 2.0, 1.0, -1.0, 3.0], Segment::Data)?;
    let targets = Tensor::from_slice_in(&device, [4], &[1.0f32, 1.0, 3.0, 2.0], Segment::Data)?;
    let mut losses = Vec::new();
    for step in 0..200 {
        let mut cx = Ctx::training(&device, Randomness { seed: 1, step, micro_batch: 0 });
        let y = linear.forward(&Var::constant(x.clone()), &cx)?;
        let loss = ops::squared_error(&cx, &y.reshape([4])?, &targets)?;
        losses.push(loss.value().item()?);
        optim.backward(&loss, 1.0, &mut cx)?;
        optim.step()?;
    }
    let (first, last) = (losses[0], losses[199]);
    assert!(last < 0.01 * first, "loss went from {first} to {last}");
    Ok(())
}
