//! Elementwise kernels against plain loops in doubles.

use super::{FLOATS, assert_close, device, integers, numbers, rounding, sampled, tensor, with_any_threads};
use bmtrain_core::conformance::reference::activation as exact;
use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::*;
use bmtrain_core::pool::Segment;
use bmtrain_core::tensor::Tensor;

/// Around a vector, around a tile, several pieces.
const LENGTHS: [usize; 6] = [0, 1, 31, 1025, 4097, 70_001];

/// Every length for f32, two for each combination of the other types.
fn cases() -> impl Iterator<Item = (usize, DType, DType)> {
    let all = LENGTHS.into_iter().map(|len| (len, DType::F32, DType::F32));
    let mixed = FLOATS.into_iter().flat_map(|x| FLOATS.into_iter().flat_map(move |out| [(33, x, out), (2051, x, out)]));
    all.chain(mixed)
}

fn zip(a: &[f64], b: &[f64], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| f(*a, *b)).collect()
}

#[test]
fn scaled_sums_agree_with_doubles() {
    for (len, from, to) in cases() {
        let [a, b, old, both, in_place, alone] = with_any_threads(|device| {
            let (a, b) = (sampled(device, from, len, 1), sampled(device, to, len, 2));
            let [old, mut both, mut in_place, mut alone] = [(); 4].map(|()| sampled(device, to, len, 3));
            let launch = |beta, b, out| device.launch(AddScaled { alpha: 0.5, a: a.view()?, beta, b, out });
            launch(-1.5, Some(b.view()?), both.view_mut()?)?;
            launch(-1.5, None, in_place.view_mut()?)?;
            launch(0.0, None, alone.view_mut()?)?;
            Ok([a, b, old, both, in_place, alone])
        });
        let tolerance = rounding(to);
        assert_close("both", &both, &zip(&a, &b, |a, b| 0.5 * a - 1.5 * b), tolerance);
        assert_close("in place", &in_place, &zip(&a, &old, |a, b| 0.5 * a - 1.5 * b), tolerance);
        assert_close("alone", &alone, &zip(&a, &a, |a, _| 0.5 * a), tolerance);
    }
}

#[test]
fn a_factor_of_zero_leaves_the_old_content_unread() {
    let device = device(1);
    let (a, mut out) =
        (tensor(&device, DType::F32, &[1.0, 2.0]), tensor(&device, DType::F32, &[f32::NAN, f32::INFINITY]));
    device
        .launch(AddScaled { alpha: 2.0, a: a.view().unwrap(), beta: 0.0, b: None, out: out.view_mut().unwrap() })
        .unwrap();
    assert_eq!(numbers(&out), [2.0, 4.0]);
}

#[test]
fn products_agree_with_doubles() {
    for (len, from, to) in cases() {
        let [a, b, old, plain, added, in_place] = with_any_threads(|device| {
            let (a, b) = (sampled(device, from, len, 1), sampled(device, to, len, 2));
            let [old, mut plain, mut added, mut in_place] = [(); 4].map(|()| sampled(device, to, len, 3));
            device.launch(Multiply { a: a.view()?, b: Some(b.view()?), out: plain.dest(false)? })?;
            device.launch(Multiply { a: a.view()?, b: Some(b.view()?), out: added.dest(true)? })?;
            device.launch(Multiply { a: a.view()?, b: None, out: in_place.dest(false)? })?;
            Ok([a, b, old, plain, added, in_place])
        });
        let (product, tolerance) = (zip(&a, &b, |a, b| a * b), rounding(to));
        assert_close("plain", &plain, &product, tolerance);
        assert_close("added", &added, &zip(&product, &old, |p, o| p + o), tolerance);
        assert_close("in place", &in_place, &zip(&a, &old, |a, o| a * o), tolerance);
    }
}

#[test]
fn activations_and_their_gradients_agree_with_doubles() {
    for activation in Activation::ALL {
        for (len, from, to) in cases().filter(|case| case.0 != 4097) {
            let [x, dy, old, y, dx, added, again, in_place] = with_any_threads(|device| {
                let (x, dy) = (sampled(device, from, len, 1), sampled(device, to, len, 2));
                let [old, mut y, mut dx, mut added] = [(); 4].map(|()| sampled(device, to, len, 3));
                let (x_view, dy_view) = (x.view()?, dy.view()?);
                device.launch(ActivationForward { activation, x: x_view, y: y.view_mut()? })?;
                for (dx, add) in [(&mut dx, false), (&mut added, true)] {
                    device.launch(ActivationBackward { activation, x: x_view, dy: dy_view, dx: dx.dest(add)? })?;
                }
                let (mut again, mut in_place) = (sampled(device, from, len, 1), sampled(device, to, len, 2));
                device.launch(ActivationInPlace { activation, x: again.view_mut()?, dy: in_place.view_mut()? })?;
                Ok([x, dy, old, y, dx, added, again, in_place])
            });
            let values: Vec<f64> = x.iter().map(|x| exact(activation, *x).0).collect();
            let slopes: Vec<f64> = x.iter().map(|x| exact(activation, *x).1).collect();
            let (gradient, tolerance) = (zip(&slopes, &dy, |s, dy| s * dy), rounding(to));
            assert_close("value", &y, &values, tolerance);
            assert_close("gradient", &dx, &gradient, tolerance);
            assert_close("added gradient", &added, &zip(&gradient, &old, |g, o| g + o), tolerance);
            assert_close("value in place", &again, &values, rounding(from));
            assert_close("gradient in place", &in_place, &gradient, tolerance);
        }
    }
}

#[test]
fn gated_activations_and_their_gradients_agree_with_doubles() {
    for activation in Activation::ALL {
        let shapes = [(1, 1), (3, 33), (5, 1500), (40, 1000)];
        for (rows, columns, dtype) in shapes.into_iter().flat_map(|(r, c)| FLOATS.map(|dtype| (r, c, dtype))) {
            let (len, wide) = (rows * columns, 2 * columns);
            let [x, dy, old, y, dx, added, in_place, again] = with_any_threads(|device| {
                let [x, mut in_place] = [(); 2].map(|()| sampled(device, dtype, 2 * len, 1));
                let [dy, mut again] = [(); 2].map(|()| sampled(device, dtype, len, 2));
                let [old, mut dx, mut added] = [(); 3].map(|()| sampled(device, dtype, 2 * len, 3));
                let mut y = sampled(device, DType::F32, len, 3);
                let span = (rows - 1) * wide + columns;
                let (gate, up) = (x.view()?.part(0, span)?, x.view()?.part(columns, span)?);
                device.launch(GatedForward { activation, rows, columns, ld: wide, gate, up, y: y.view_mut()? })?;
                for (dx, add) in [(&mut dx, false), (&mut added, true)] {
                    let (x, dy, dx) = (x.view()?, dy.view()?, dx.dest(add)?);
                    device.launch(GatedBackward { activation, rows, columns, x, dy, dx })?;
                }
                let (of_x, of_dy) = (in_place.view_mut()?, again.view_mut()?);
                device.launch(GatedInPlace { activation, rows, columns, x: of_x, dy: of_dy })?;
                Ok([x, dy, old, y, dx, added, in_place, again])
            });
            let (mut expected, mut gradient) = (vec![0.0; len], vec![0.0; 2 * len]);
            for (i, expected) in expected.iter_mut().enumerate() {
                let (row, column) = (i / columns, i % columns);
                let (gate, up) = (row * wide + column, row * wide + columns + column);
                let (value, slope) = exact(activation, x[gate]);
                *expected = value * x[up];
                (gradient[gate], gradient[up]) = (dy[i] * x[up] * slope, dy[i] * value);
            }
            assert_close("value", &y, &expected, rounding(DType::F32));
            assert_close("gradient", &dx, &gradient, rounding(dtype));
            assert_close("added gradient", &added, &zip(&gradient, &old, |g, o| g + o), rounding(dtype));
            assert_close("value in place", &again, &expected, rounding(dtype));
            assert_close("gradient in place", &in_place, &gradient, rounding(dtype));
        }
    }
}

#[test]
fn casts_round_once_to_nearest_even() {
    for (len, from, to) in cases() {
        for add in [false, true] {
            let [x, old, out] = with_any_threads(|device| {
                let x = sampled(device, from, len, 1);
                let [old, mut out] = [(); 2].map(|()| sampled(device, to, len, 2));
                device.launch(Cast { x: x.view()?, out: out.dest(add)? })?;
                Ok([x, old, out])
            });
            let sums: Vec<f32> =
                zip(&x, &old, |x, old| if add { x + old } else { x }).iter().map(|x| *x as f32).collect();
            // The sum of two numbers of these types rounds to f32 once here and once there.
            assert_eq!(out, numbers(&tensor(&device(1), to, &sums)), "{from} to {to}");
        }
    }
}

#[test]
fn integers_become_the_nearest_float_even_where_two_roundings_would_not() {
    // 2^24 + 2^15 + 2^16 * 2^8 + 1: f32 drops the 1, after which bf16 sees a tie that is none.
    let whole =
        [0, 1, -1, 255, -257, 65_504, (1 << 32) + (1 << 24) + 1, -(1 << 32) - (1 << 24) - 1, i64::MAX, i64::MIN];
    let device = device(1);
    let x = integers(&device, &whole);
    for (dtype, bits) in [(DType::F32, 24), (DType::BF16, 8)] {
        let mut out = tensor(&device, dtype, &[0.0; 10]);
        device.launch(Cast { x: x.view().unwrap(), out: out.dest(false).unwrap() }).unwrap();
        for (got, whole) in numbers(&out).into_iter().zip(whole) {
            // In exact integers: the distance to the result is at most half the spacing of results there.
            let spacing = 1i128 << (128 - (i128::from(whole).unsigned_abs()).leading_zeros()).saturating_sub(bits);
            let distance = (got as i128 - i128::from(whole)).abs();
            assert!(2 * distance <= spacing, "{whole} became {got} in {dtype}");
        }
    }
    let bytes = Tensor::from_slice_in(&device, [3], &[0u8, 7, 255], Segment::Data).unwrap();
    let mut out = tensor(&device, DType::F16, &[1.0; 3]);
    device.launch(Cast { x: bytes.view().unwrap(), out: out.dest(true).unwrap() }).unwrap();
    assert_eq!(numbers(&out), [1.0, 8.0, 256.0]);
}

#[test]
fn fills_convert_to_the_type_and_saturate() {
    let device = device(2);
    let len = 70_001;
    for dtype in FLOATS {
        let filled = Tensor::full_in(&device, [len], dtype, 1.5, Segment::Activations).unwrap();
        assert!(numbers(&filled).iter().all(|x| *x == 1.5));
    }
    let whole = Tensor::full_in(&device, [5], DType::I64, -3.7, Segment::Data).unwrap();
    assert_eq!(whole.to_vec::<i64>().unwrap(), [-3; 5]);
    let bytes = Tensor::full_in(&device, [5], DType::U8, 300.0, Segment::Data).unwrap();
    assert_eq!(bytes.to_vec::<u8>().unwrap(), [255; 5]);
}
