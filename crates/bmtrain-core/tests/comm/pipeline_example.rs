//! The example of `docs/collectives.md`: a pipeline stage that receives, computes and sends.

use bmtrain_core::comm::Communicator;
use bmtrain_core::comm::host::{HostGroup, HostOptions};
use bmtrain_core::{Ctx, Device, Error, Result, Segment, Tensor, Var, ops};
use std::sync::Arc;

/// Forward and backward of one micro-batch on one of several stages; the gradient of the stage's weight.
fn micro_batch(ranks: &Arc<dyn Communicator>, device: &Device, input: Tensor, weight: Tensor) -> Result<Tensor> {
    let (stage, last) = (ranks.rank(), ranks.size() - 1);
    let cx = Ctx::gradients(device);
    let tape = cx.tape().ok_or_else(|| Error::argument("stage", "nothing is recorded"))?;
    let weight = tape.input(weight);
    let x = if stage == 0 { Var::constant(input) } else { ops::recv(&cx, ranks, stage - 1)? };
    let y = ops::mul(&cx, &x, &weight)?;
    let seeds = match stage == last {
        true => vec![(y.clone(), Tensor::full_in(device, y.shape(), y.dtype(), 1.0, Segment::Activations)?)],
        false => vec![],
    };
    if stage < last {
        ops::send(&cx, ranks, &y, stage + 1)?;
    }
    let dweight = tape.backward(device, seeds, &[&weight])?.into_iter().flatten().next();
    dweight.ok_or_else(|| Error::argument("stage", "no gradient came back"))
}

#[test]
fn each_stage_gets_the_gradient_of_the_product_of_all_weights() {
    let ranks = HostGroup::threads(3, HostOptions::default()).unwrap();
    let found: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let run = |rank: bmtrain_core::comm::host::HostRank| {
            let (ranks, device): (Arc<dyn Communicator>, _) = (Arc::new(rank), Device::cpu(1).unwrap());
            let tensor = |values: [f32; 2]| Tensor::from_slice_in(&device, [2], &values, Segment::Activations).unwrap();
            let weight = [2.0, 3.0, 5.0][ranks.rank()];
            let gradient = micro_batch(&ranks, &device, tensor([1.0, 10.0]), tensor([weight, weight])).unwrap();
            device.sync().unwrap();
            ranks.barrier().unwrap();
            gradient.to_vec().unwrap()
        };
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(found, [[15.0, 150.0], [10.0, 100.0], [6.0, 60.0]]);
}
