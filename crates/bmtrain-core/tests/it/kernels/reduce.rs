//! Reductions and softmax against plain loops in doubles.

use super::{FLOATS, assert_close, device, filled, numbers, rounding, sampled, tensor, values, with_any_threads};
use bmtrain_core::dtype::DType;
use bmtrain_core::exact::{Sum, WORDS};
use bmtrain_core::kernel::*;
use bmtrain_core::pool::Segment;
use bmtrain_core::tensor::Tensor;

const SHAPES: [(usize, usize); 7] = [(0, 5), (1, 1), (3, 33), (35, 1025), (4, 2500), (1000, 7), (2100, 130)];

#[test]
fn column_sums_agree_with_doubles() {
    for (rows, columns) in SHAPES {
        for (from, to) in FLOATS.into_iter().flat_map(|from| FLOATS.map(|to| (from, to))) {
            for add in [false, true] {
                let [x, old, out] = with_any_threads(|device| {
                    let x = sampled(device, from, rows * columns, 1);
                    let [old, mut out] = [(); 2].map(|()| sampled(device, to, columns, 2));
                    device.launch(ColumnSum { rows, columns, x: x.view()?, out: out.dest(add)? })?;
                    Ok([x, old, out])
                });
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
    let mut before = [i64::MAX; WORDS];
    if let Some(old) = old {
        let mut sum = Sum::ZERO;
        sum.add(f64::from(old));
        before = if order == NormOrder::Two {
            sum.words()
        } else {
            std::array::from_fn(|i| if i == 0 { i64::from(old.to_bits()) } else { 0 })
        };
    }
    let words = [1, 2, 3].map(|threads| {
        let device = device(threads);
        let mut out = Tensor::from_slice_in(&device, [WORDS], &before, Segment::Data).unwrap();
        let dest = out.dest(old.is_some()).unwrap();
        device.launch(GradNorm { order, xs: vec![tensor(&device, dtype, x).view().unwrap()], out: dest }).unwrap();
        out.to_vec::<i64>().unwrap()
    });
    assert!(words.windows(2).all(|pair| pair[0] == pair[1]), "threads do not matter");
    match order {
        NormOrder::Two => Sum::from_words(std::array::from_fn(|i| words[0][i])).to_f64(),
        NormOrder::Infinity => f64::from(f32::from_bits(words[0][0] as u32)),
    }
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
fn parts_cut_at_chunks_give_the_bits_of_the_whole_in_any_order() {
    // With all their digits, so that sums in another order round to something else.
    let x: Vec<f32> = values(10_000, 1).iter().map(|x| x * 1.012_345_7).collect();
    let device = device(2);
    let words = |parts: &[std::ops::Range<usize>]| {
        let mut out = Tensor::from_slice_in(&device, [WORDS], &[0i64; WORDS], Segment::Data).unwrap();
        for part in parts {
            let x = tensor(&device, DType::F32, &x[part.clone()]);
            let dest = out.dest(true).unwrap();
            device.launch(GradNorm { order: NormOrder::Two, xs: vec![x.view().unwrap()], out: dest }).unwrap();
        }
        out.to_vec::<i64>().unwrap()
    };
    let whole = words(std::slice::from_ref(&(0..10_000)));
    assert_eq!(words(&[0..128, 128..5120, 5120..10_000]), whole);
    assert_eq!(words(&[7680..10_000, 0..2560, 2560..7680]), whole);
    assert_ne!(words(&[0..100, 100..10_000]), whole, "not so for parts cut elsewhere");
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
                let mut flag = Tensor::from_slice_in(&device, [1], &[start], Segment::Data).unwrap();
                device.launch(NonFinite { x: x.view().unwrap(), flag: flag.view_mut().unwrap() }).unwrap();
                assert_eq!(flag.to_vec::<i32>().unwrap(), [if bad == 0.0 { start } else { 1 }]);
            }
        }
    }
}

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
            let [x, dy, y, dx, added] = with_any_threads(|device| {
                // Rising, so that later tiles hold larger values than earlier ones.
                let x: Vec<f32> = values(len, 1).iter().enumerate().map(|(i, x)| 3.0 * x + i as f32 / 500.0).collect();
                let (x, dy) = (tensor(device, dtype, &x), sampled(device, dtype, len, 2));
                let mut y = filled(device, dtype, len, 0.0);
                device.launch(Softmax { rows, columns, log, x: x.view()?, y: y.view_mut()? })?;
                let [mut dx, mut added] = [(); 2].map(|()| filled(device, dtype, len, 0.5));
                for (dx, add) in [(&mut dx, false), (&mut added, true)] {
                    let (y, dy, dx) = (y.view()?, dy.view()?, dx.dest(add)?);
                    device.launch(SoftmaxBackward { rows, columns, log, y, dy, dx })?;
                }
                Ok([x, dy, y, dx, added])
            });
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
