//! Masks of dropout against the generator, initial values against their definitions and distributions.

use super::{FLOATS, assert_close, device, multiplier, numbers, rounding, sampled, tensor, with_any_threads};
use bmtrain_core::conformance::reference::normal_cdf;
use bmtrain_core::dtype::DType;
use bmtrain_core::error::Error;
use bmtrain_core::kernel::*;
use bmtrain_core::philox::{self, Key};

fn example(probability: f32) -> Dropout {
    Dropout::new(probability, Key::new(5, "site"), 7, 3).unwrap().unwrap()
}

#[test]
fn dropout_applies_the_mask_of_the_unsharded_tensor() {
    let shapes = [(1, 1), (3, 33), (7, 2050), (33, 3000)];
    for (rows, columns) in shapes {
        for (from, to) in FLOATS.into_iter().flat_map(|from| FLOATS.map(|to| (from, to))) {
            for (offset, row_stride) in [(0, 0), (10, 0), (5, 2 * columns as u64 + 1)] {
                let dropout = Dropout { offset, row_stride, ..example(0.1) };
                let len = rows * columns;
                let [x, old, plain, added, in_place] = with_any_threads(|device| {
                    let x = sampled(device, from, len, 1);
                    let [old, mut plain, mut added, mut in_place] = [(); 4].map(|()| sampled(device, to, len, 2));
                    let launch = |x, y| device.launch(DropoutApply { dropout, rows, columns, x, y });
                    launch(Some(x.view()?), plain.dest(false)?)?;
                    launch(Some(x.view()?), added.dest(true)?)?;
                    launch(None, in_place.dest(false)?)?;
                    Ok([x, old, plain, added, in_place])
                });
                let factors: Vec<f64> = (0..len)
                    .map(|i| dropout.row((i / columns) as u64, columns as u64) + (i % columns) as u64)
                    .map(|element| f64::from(multiplier(&dropout, element)))
                    .collect();
                let expected = |x: &[f64], old: Option<&[f64]>| -> Vec<f64> {
                    (0..len).map(|i| x[i] * factors[i] + old.map_or(0.0, |old| old[i])).collect()
                };
                assert_close("plain", &plain, &expected(&x, None), rounding(to));
                assert_close("added", &added, &expected(&x, Some(&old)), rounding(to));
                assert_close("in place", &in_place, &expected(&old, None), rounding(to));
            }
        }
    }
}

fn filled_with(distribution: Distribution, offset: u64, len: usize, threads: usize) -> Vec<f64> {
    let device = device(threads);
    let mut out = tensor(&device, DType::F32, &vec![f32::NAN; len]);
    let key = Key::new(1, "weight");
    device.launch(FillRandom { distribution, key, offset, out: out.view_mut().unwrap() }).unwrap();
    numbers(&out)
}

const DISTRIBUTIONS: [Distribution; 3] =
    [Distribution::Normal(1.0, 2.0), Distribution::Uniform(-3.0, 5.0), Distribution::TruncatedNormal(0.5, 0.1)];

#[test]
fn values_depend_on_their_address_alone() {
    for distribution in DISTRIBUTIONS {
        let whole = filled_with(distribution, 0, 70_000, 1);
        assert_eq!(whole, filled_with(distribution, 0, 70_000, 2));
        for (offset, len) in [(1, 1), (3, 70), (5, 64), (62, 129), (32_769, 1000)] {
            let part = filled_with(distribution, offset as u64, len, 1);
            assert_eq!(part, whole[offset..offset + len], "{distribution:?} from {offset}");
        }
    }
}

#[test]
fn normal_values_are_those_of_box_and_muller() {
    let values = filled_with(Distribution::Normal(0.0, 1.0), 0, 4000, 1);
    for (i, value) in values.iter().enumerate() {
        let words = philox::block(Key::new(1, "weight"), [i as u32 / 4, 0, 0, 0]);
        let unit = |word: u32| (f64::from(word) + 0.5) / 4_294_967_296.0;
        let (radius, angle) = (unit(words[(i % 4) & 2]), std::f64::consts::TAU * unit(words[(i % 4) | 1]));
        let turn = if i % 2 == 0 { angle.cos() } else { angle.sin() };
        let expected = (-2.0 * radius.ln()).sqrt() * turn;
        // One rounding to f32.
        assert!((value - expected).abs() <= 6e-8 * expected.abs() + 1e-14, "{i}: {value} and {expected}");
    }
}

#[test]
fn values_have_their_distribution() {
    // Largest distance between the empirical and the true distribution function, times sqrt(n): above 1.95 with a
    // probability of 1 in 1000 for a correct generator; the key is fixed.
    let kolmogorov = |mut values: Vec<f64>, cdf: &dyn Fn(f64) -> f64| {
        values.sort_by(f64::total_cmp);
        let n = values.len() as f64;
        let far = values.iter().enumerate().map(|(i, x)| (cdf(*x) - (i as f64 + 0.5) / n).abs()).fold(0.0, f64::max);
        far * n.sqrt()
    };
    let n = 200_000;
    assert!(kolmogorov(filled_with(DISTRIBUTIONS[0], 0, n, 2), &|x| normal_cdf((x - 1.0) / 2.0)) < 1.95);
    assert!(kolmogorov(filled_with(DISTRIBUTIONS[1], 0, n, 2), &|x| (x + 3.0) / 8.0) < 1.95);
    let cut = normal_cdf(-2.0);
    let truncated = filled_with(DISTRIBUTIONS[2], 0, n, 2);
    assert!(truncated.iter().all(|x| (x - 0.5).abs() <= 0.2 + 1e-7));
    assert!(kolmogorov(truncated, &|x| (normal_cdf((x - 0.5) / 0.1) - cut) / (1.0 - 2.0 * cut)) < 1.95);
}

#[test]
fn sixteen_bit_values_are_the_rounded_ones() {
    let device = device(1);
    let exact: Vec<f32> = filled_with(DISTRIBUTIONS[0], 9, 3000, 1).iter().map(|x| *x as f32).collect();
    for dtype in [DType::F16, DType::BF16] {
        let mut out = tensor(&device, dtype, &vec![0.0; 3000]);
        let (distribution, key) = (DISTRIBUTIONS[0], Key::new(1, "weight"));
        device.launch(FillRandom { distribution, key, offset: 9, out: out.view_mut().unwrap() }).unwrap();
        assert_eq!(numbers(&out), numbers(&tensor(&device, dtype, &exact)));
    }
}

#[test]
fn a_mask_in_place_cannot_be_added() {
    let device = device(1);
    let mut y = tensor(&device, DType::F32, &[1.0]);
    let dest = y.dest(true).unwrap();
    let error =
        device.launch(DropoutApply { dropout: example(0.5), rows: 1, columns: 1, x: None, y: dest }).unwrap_err();
    assert!(matches!(error, Error::Argument { .. }), "{error}");
}
