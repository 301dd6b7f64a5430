//! Products in 8 bits: which factors ops round to which format, and what NaN becomes.

use bmtrain_core::autograd::Randomness;
use bmtrain_core::fp8::Fp8Factors;
use bmtrain_core::kernel::{Activation, Gemm, Matrix};
use bmtrain_core::ops::{self, ProductInput, ProductPrecision, ProductWeight};
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor, Var};

const ROWS: usize = 24;
const INPUTS: usize = 32;
const OUTPUTS: usize = 48;

fn tensor(device: &Device, shape: [usize; 2], salt: usize) -> Tensor {
    let value = |at: usize| ((at * 37 + salt * 101) % 113) as f32 / 113.0 - 0.4;
    let values: Vec<f32> = (0..shape[0] * shape[1]).map(value).collect();
    Tensor::from_slice_in(device, shape, &values, Segment::Activations).unwrap()
}

fn product(device: &Device, shape: [usize; 3], a: Matrix<'_>, b: Matrix<'_>, fp8: Fp8Factors) -> Vec<f32> {
    let [m, n, _] = shape;
    let mut c = Tensor::empty_in(device, [m, n], DType::F32, Segment::Activations).unwrap();
    let dest = c.dest(false).unwrap();
    device.launch(Gemm { fp8: Some(fp8), ..Gemm::single(shape, a, b, dest) }).unwrap();
    c.to_vec().unwrap()
}

#[test]
fn forward_products_are_of_e4m3_and_gradients_of_e5m2() {
    let device = Device::cpu(2).unwrap();
    let (x, weight) = (tensor(&device, [ROWS, INPUTS], 1), tensor(&device, [OUTPUTS, INPUTS], 2));
    let dy = tensor(&device, [ROWS, OUTPUTS], 3);
    let cx = Ctx::training(&device, Randomness::default());
    let tape = cx.tape().unwrap();
    let (x_var, weight_var) = (tape.input(x.clone()), tape.input(weight.clone()));
    let input = ProductInput::from(&x_var).with_precision(ProductPrecision::Fp8);
    let y = ops::linear(&cx, input, &weight_var, None, None).unwrap();
    let (forward, backward) = (Fp8Factors::FORWARD, Fp8Factors::BACKWARD);
    let of_x = || Matrix::plain(x.view().unwrap(), INPUTS);
    let expected =
        product(&device, [ROWS, OUTPUTS, INPUTS], of_x(), Matrix::transposed(weight.view().unwrap(), INPUTS), forward);
    assert_eq!(y.value().to_vec::<f32>().unwrap(), expected);
    let grads = tape.backward(&device, vec![(y, dy.clone())], &[&x_var, &weight_var]).unwrap();
    let grads: Vec<Vec<f32>> = grads.iter().map(|grad| grad.as_ref().unwrap().to_vec().unwrap()).collect();
    let (of_dy, of_weight) =
        (Matrix::plain(dy.view().unwrap(), OUTPUTS), Matrix::plain(weight.view().unwrap(), INPUTS));
    assert_eq!(grads[0], product(&device, [ROWS, INPUTS, OUTPUTS], of_dy, of_weight, backward));
    let turned = Matrix::transposed(dy.view().unwrap(), OUTPUTS);
    assert_eq!(grads[1], product(&device, [OUTPUTS, INPUTS, ROWS], turned, of_x(), backward));
}

/// Both layers of a feed-forward, each by its own setting.
#[test]
fn a_feed_forward_layer_rounds_the_factors_of_the_products_that_are_asked_for() {
    let device = Device::cpu(2).unwrap();
    let x = tensor(&device, [ROWS, INPUTS], 1);
    let (w_in, w_out) = (tensor(&device, [OUTPUTS, INPUTS], 2), tensor(&device, [INPUTS, OUTPUTS], 3));
    let run = |[first, second]: [ProductPrecision; 2], fused: bool| -> Vec<Vec<f32>> {
        let cx = Ctx::training(&device, Randomness::default());
        let tape = cx.tape().unwrap();
        let vars = [&x, &w_in, &w_out].map(|tensor: &Tensor| tape.input(tensor.clone()));
        let input = ProductInput::from(&vars[0]).with_precision(first);
        let activation = Activation::GeluTanh;
        let y = if fused {
            let output = ProductWeight::from(&vars[2]).with_precision(second);
            ops::feed_forward(&cx, input, &vars[1], None, activation, output, None).unwrap()
        } else {
            let hidden = ops::linear(&cx, input, &vars[1], None, Some(activation)).unwrap();
            let hidden = ProductInput::from(&hidden).with_precision(second);
            ops::linear(&cx, hidden, &vars[2], None, None).unwrap()
        };
        let value = y.value().to_vec().unwrap();
        let seed = tensor(&device, [ROWS, INPUTS], 4);
        let grads = tape.backward(&device, vec![(y, seed)], &vars.each_ref()).unwrap();
        let grads = grads.iter().map(|grad| grad.as_ref().unwrap().to_vec().unwrap());
        std::iter::once(value).chain(grads).collect()
    };
    let (full, fp8) = (ProductPrecision::Full, ProductPrecision::Fp8);
    let all = [[full, full], [fp8, full], [full, fp8], [fp8, fp8]];
    let results = all.map(|precisions| run(precisions, true));
    for (precisions, fused) in all.iter().zip(&results) {
        assert_eq!(*fused, run(*precisions, false), "{precisions:?}");
    }
    for (at, one) in results.iter().enumerate() {
        assert!(results.iter().skip(at + 1).all(|other| other != one));
    }
}

#[test]
fn what_is_no_number_stays_visible() {
    let device = Device::cpu(1).unwrap();
    let weight = tensor(&device, [OUTPUTS, INPUTS], 2);
    for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut values = vec![0.5; ROWS * INPUTS];
        values[5] = wrong;
        let x = Tensor::from_slice_in(&device, [ROWS, INPUTS], &values, Segment::Activations).unwrap();
        let cx = Ctx::inference(&device);
        let (x, weight) = (Var::constant(x), Var::constant(weight.clone()));
        let input = ProductInput::from(&x).with_precision(ProductPrecision::Fp8);
        let y = ops::linear(&cx, input, &weight, None, None).unwrap().value().to_vec::<f32>().unwrap();
        assert!(y[..OUTPUTS].iter().all(|value| value.is_nan()), "{wrong}");
    }
}
