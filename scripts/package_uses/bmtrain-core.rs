//! Depends on bmtrain-core alone: the gradient of a softmax by the tape.

use bmtrain_core::{Ctx, Device, Result, Segment, Tensor, ops};

#[test]
fn the_sum_of_a_softmax_has_no_slope() -> Result<()> {
    let device = Device::cpu(2)?;
    let cx = Ctx::gradients(&device);
    let tape = cx.tape().expect("this context records").clone();
    let x = tape.input(Tensor::from_slice_in(&device, [2, 3], &[1.0f32, 2.0, 3.0, -1.0, 0.0, 1.0], Segment::Data)?);
    let y = ops::softmax(&cx, &x)?;
    let seed = Tensor::from_slice_in(&device, [2, 3], &[1.0f32; 6], Segment::Data)?;
    let grads = tape.backward(&device, vec![(y, seed)], &[&x])?;
    // Probabilities always add up to one, so their sum has no slope.
    let slope = grads[0].as_ref().expect("x has a gradient").to_vec::<f32>()?;
    assert!(slope.iter().all(|value| value.abs() < 1e-6), "{slope:?}");
    Ok(())
}
