//! Reductions and softmax against plain loops in doubles.

use crate::cpu::testing::{FLOATS, assert_close, device, numbers, rounding, tensor, values, with_any_threads};
use crate::dtype::DType;
use crate::kernel::*;
use crate::pool::Segment;
use crate::tensor::Tensor;

const SHAPES: [(usize, usize); 7] = [(0, 5), (1, 1), (3, 33), (35, 1025), (4, 2500), (1000, 7), (2100, 130)];

#[test]
fn column_sums_agree_with_doubles() {
    for (rows, columns) in SHAPES {
        for (from, to) in FLOATS.into_iter().flat_map(|from| FLOATS.map(|to| (from, to))) {
            for add in [false, true] {
                let results = with_any_threads(|device| {
                    let (x, mut out) =
                        (tensor(device, from, &values(rows * columns, 1)), tensor(device, to, &values(columns, 2)));
                    let old = numbers(&out);
                    let dest = Dest { view: out.view_mut().unwrap(), add };
                    device.launch(ColumnSum { rows, columns, x: x.view().unwrap(), out: dest }).unwrap();
                    vec![numbers(&x), old, numbers(&out)]
                });
                let [x, old, out] = results.try_into().unwrap();
                let sum = |c: usize| x.iter().skip(c).step_by(columns).sum::<f64>() + if add { old[c] } else { 0.0 };
                let expected: Vec<f64> = (0..columns).map(sum).collect();
                // The error of a sum grows with the root of the number of rows.
                let tolerance = rounding(to) + 3e-7 * (rows as f64).sqrt();
                assert_close(&format!("{rows} x {columns} {from} {to}"), &out, &expected, tolerance);
            }
        }
    }
}

fn norm(order: NormOrder, dtype: DType, x: &[f32], old: Option<f32>) -> f64 {
    let results = with_any_threads(|device| {
        let (x, mut out) = (tensor(device, dtype, x), tensor(device, DType::F32, &[old.unwrap_or(f32::NAN)]));
        let dest = Dest { view: out.view_mut().unwrap(), add: old.is_some() };
        device.launch(GradNorm { order, x: x.view().unwrap(), out: dest }).unwrap();
        vec![numbers(&out)]
    });
    results[0][0]
}

#[test]
fn norms_agree_with_doubles_and_accumulate() {
    for dtype in FLOATS {
        for len in [0, 1, 17, 1030, 65_537, 200_001] {
            let x = values(len, 1);
            let exact = numbers(&tensor(&device(1), dtype, &x));
            let squares: f64 = exact.iter().map(|x| x * x).sum();
            // Doubles until one rounding to f32.
            let close =
                |got: f64, expected: f64| assert!((got - expected).abs() <= 1.2e-7 * expected, "{got} {expected}");
            close(norm(NormOrder::Two, dtype, &x, None), squares);
            close(norm(NormOrder::Two, dtype, &x, Some(3.0)), squares + 3.0);
            let largest = exact.iter().fold(0.0f64, |a, b| a.max(b.abs()));
            assert_eq!(norm(NormOrder::Infinity, dtype, &x, None), largest);
            assert_eq!(norm(NormOrder::Infinity, dtype, &x, Some(3.0)), largest.max(3.0));
        }
    }
}

#[test]
fn not_a_number_and_infinity_win_wherever_they_are() {
    for order in [NormOrder::Two, NormOrder::Infinity] {
        for len in [1, 40, 70_000] {
            for at in [0, len / 2, len - 1] {
                let mut x = values(len, 1);
                x[at] = f32::NEG_INFINITY;
                assert_eq!(norm(order, DType::F32, &x, Some(1.0)), f64::INFINITY);
                x[len - 1 - at] = f32::NAN;
                assert!(norm(order, DType::F32, &x, Some(1.0)).is_nan());
                assert!(norm(order, DType::F32, &values(len, 1), Some(f32::NAN)).is_nan());
            }
        }
    }
}

#[test]
fn squares_that_an_f32_cannot_hold_still_count() {
    let tiny = norm(NormOrder::Two, DType::F32, &[1e-22; 1 << 16], None);
    assert!((tiny - 1e-44 * 65_536.0).abs() < 1e-44, "{tiny:e}");
}

#[test]
fn the_flag_is_set_by_anything_that_is_not_finite_and_by_nothing_else() {
    for dtype in FLOATS {
        for (len, bad) in [(1, f32::NAN), (70_000, f32::INFINITY), (200_000, f32::NEG_INFINITY), (33, 0.0)] {
            for start in [0, 1] {
                let device = device(2);
                let mut x = values(len, 1);
                x[len - 1] = bad;
                let x = tensor(&device, dtype, &x);
                let mut flag = Tensor::from_slice(&device, [1], &[start], Segment::Data).unwrap();
                device.launch(NonFinite { x: x.view().unwrap(), flag: flag.view_mut().unwrap() }).unwrap();
                assert_eq!(flag.to_vec::<i32>().unwrap(), [if bad == 0.0 { start } else { 1 }]);
            }
        }
    }
}

/// Exact softmax, or its logarithm.
fn exact(x: &[f64], columns: usize, log: bool) -> Vec<f64> {
    let mut y = Vec::new();
    for row in x.chunks(columns) {
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|x| (x - largest).exp()).sum();
        y.extend(row.iter().map(|x| if log { x - largest - sum.ln() } else { (x - largest).exp() / sum }));
    }
    y
}

#[test]
fn softmax_and_its_gradient_agree_with_doubles() {
    for (rows, columns) in SHAPES {
        for (dtype, log) in FLOATS.into_iter().flat_map(|dtype| [(dtype, false), (dtype, true)]) {
            let len = rows * columns;
            let results = with_any_threads(|device| {
                // Rising, so that later tiles hold larger values than earlier ones.
                let x: Vec<f32> = values(len, 1).iter().enumerate().map(|(i, x)| 3.0 * x + i as f32 / 500.0).collect();
                let (x, dy) = (tensor(device, dtype, &x), tensor(device, dtype, &values(len, 2)));
                let mut y = tensor(device, dtype, &vec![0.0; len]);
                device.launch(Softmax { rows, columns, log, x: x.view().unwrap(), y: y.view_mut().unwrap() }).unwrap();
                let mut results = [&x, &dy, &y].map(numbers).to_vec();
                for add in [false, true] {
                    let mut dx = tensor(device, dtype, &vec![0.5; len]);
                    let (y, dy) = (y.view().unwrap(), dy.view().unwrap());
                    let dest = Dest { view: dx.view_mut().unwrap(), add };
                    device.launch(SoftmaxBackward { rows, columns, log, y, dy, dx: dest }).unwrap();
                    results.push(numbers(&dx));
                }
                results
            });
            let [x, dy, y, dx, added] = results.try_into().unwrap();
            assert_close("softmax", &y, &exact(&x, columns, log), rounding(dtype));
            let mut expected = Vec::new();
            for (y, dy) in y.chunks(columns.max(1)).zip(dy.chunks(columns.max(1))) {
                let sum: f64 = y.iter().zip(dy).map(|(y, dy)| if log { *dy } else { y * dy }).sum();
                expected.extend(y.iter().zip(dy).map(|(y, dy)| if log { dy - y.exp() * sum } else { y * (dy - sum) }));
            }
            // The sum of up to 2500 gradients is as large as 50 of them.
            let tolerance = rounding(dtype) + 1e-5;
            assert_close("gradient", &dx, &expected, tolerance);
            let expected: Vec<f64> = expected.iter().map(|x| x + 0.5).collect();
            assert_close("added gradient", &added, &expected, tolerance);
        }
    }
}

#[test]
fn softmax_takes_rows_that_would_overflow_and_masked_entries() {
    let device = device(1);
    let x = tensor(&device, DType::F32, &[1e30, 1e30, f32::NEG_INFINITY, -1e30, 0.0, f32::NEG_INFINITY]);
    let mut y = tensor(&device, DType::F32, &[0.0; 6]);
    let (rows, columns, log) = (2, 3, false);
    device.launch(Softmax { rows, columns, log, x: x.view().unwrap(), y: y.view_mut().unwrap() }).unwrap();
    assert_eq!(numbers(&y), [0.5, 0.5, 0.0, 0.0, 1.0, 0.0]);
}
