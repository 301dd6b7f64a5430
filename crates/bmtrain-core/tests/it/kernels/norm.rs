//! Norms and their gradients against plain loops in doubles.

use super::{FLOATS, assert_close, device, filled, multiplier, numbers, rounding, sampled, tensor, with_any_threads};
use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::*;
use bmtrain_core::philox::Key;

const EPSILON: f32 = 1e-5;

/// Below and above a vector, a tile, several groups of rows.
const SHAPES: [(usize, usize); 6] = [(1, 1), (3, 33), (70, 64), (9, 1500), (33, 1024), (2100, 40)];

fn dropout() -> Dropout {
    Dropout { offset: 11, ..Dropout::new(0.2, Key::new(3, "norm"), 4, 1).unwrap().unwrap() }
}

fn factors(rows: usize, columns: usize) -> Vec<f64> {
    let first = |row: usize| dropout().row(row as u64, columns as u64);
    let elements = (0..rows).flat_map(|row| (0..columns as u64).map(move |column| first(row) + column));
    elements.map(|element| f64::from(multiplier(&dropout(), element))).collect()
}

/// Normalised rows, means and reciprocal deviations.
fn normalised(kind: NormKind, columns: usize, x: &[f64]) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let (mut n, mut means, mut scales) = (Vec::new(), Vec::new(), Vec::new());
    for row in x.chunks(columns) {
        let mean = if kind == NormKind::Layer { row.iter().sum::<f64>() / columns as f64 } else { 0.0 };
        let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / columns as f64;
        let scale = 1.0 / (variance + f64::from(EPSILON)).sqrt();
        n.extend(row.iter().map(|x| (x - mean) * scale));
        means.push(mean);
        scales.push(scale);
    }
    (n, means, scales)
}

#[test]
fn forward_agrees_with_doubles_with_and_without_dropout_and_residual() {
    for (rows, columns) in SHAPES {
        for kind in [NormKind::Layer, NormKind::Rms] {
            for dtype in FLOATS {
                for (drop, add) in [(false, false), (true, false), (false, true), (true, true)] {
                    // Without a shift: as weights are, and as differences from 1.
                    let offset = if drop == add { 0.0 } else { 1.0 };
                    forward_case(kind, (rows, columns), (dtype, offset), drop, add);
                }
            }
        }
    }
}

fn forward_case(
    kind: NormKind,
    (rows, columns): (usize, usize),
    (dtype, weight_offset): (DType, f32),
    drop: bool,
    add: bool,
) {
    let (len, layer) = (rows * columns, kind == NormKind::Layer);
    let [x, residual, weight, bias, sum, y, mean, rstd] = with_any_threads(|device| {
        let (x, residual) = (sampled(device, dtype, len, 1), sampled(device, DType::F32, len, 2));
        let (weight, bias) = (sampled(device, dtype, columns, 3), sampled(device, DType::F32, columns, 4));
        let [mut sum, mut y] = [(); 2].map(|()| filled(device, dtype, len, 9.0));
        let [mut mean, mut rstd] = [(); 2].map(|()| filled(device, DType::F32, rows, 0.0));
        device.launch(NormForward {
            kind,
            rows,
            columns,
            epsilon: EPSILON,
            weight_offset,
            x: x.view()?,
            dropout: drop.then(dropout),
            residual: add.then(|| residual.view()).transpose()?,
            sum: (drop || add).then(|| sum.view_mut()).transpose()?,
            weight: weight.view()?,
            bias: layer.then(|| bias.view()).transpose()?,
            y: y.view_mut()?,
            mean: layer.then(|| mean.view_mut()).transpose()?,
            rstd: rstd.view_mut()?,
        })?;
        Ok([x, residual, weight, bias, sum, y, mean, rstd])
    });
    let what = format!("{kind:?} {rows} x {columns} {dtype} dropout {drop} residual {add}");
    let source = if drop || add {
        let factors = factors(rows, columns);
        let kept = |i: usize| if drop { x[i] * factors[i] } else { x[i] };
        let expected: Vec<f64> = (0..len).map(|i| kept(i) + if add { residual[i] } else { 0.0 }).collect();
        assert_close(&what, &sum, &expected, rounding(dtype));
        // What is normalised is the stored sum.
        sum
    } else {
        x
    };
    let (n, means, scales) = normalised(kind, columns, &source);
    let bias = |column: usize| if layer { bias[column] } else { 0.0 };
    let expected: Vec<f64> =
        (0..len).map(|i| n[i] * (f64::from(weight_offset) + weight[i % columns]) + bias(i % columns)).collect();
    // Sums of up to 1500 terms in 32 chains: a few roundings more than one.
    assert_close(&what, &y, &expected, 2.0 * rounding(dtype));
    if layer {
        assert_close(&what, &mean, &means, 2e-6);
    }
    assert_close(&what, &rstd, &scales, if columns == 1 { 1e-4 } else { 4e-6 });
}

#[test]
fn gradients_agree_with_doubles_added_or_not() {
    for (rows, columns) in SHAPES {
        for kind in [NormKind::Layer, NormKind::Rms] {
            for dtype in FLOATS {
                for add in [false, true] {
                    backward_case(kind, (rows, columns), (dtype, if add { 1.0 } else { 0.0 }), add);
                }
            }
        }
    }
}

fn backward_case(kind: NormKind, (rows, columns): (usize, usize), (dtype, weight_offset): (DType, f32), add: bool) {
    let (len, layer) = (rows * columns, kind == NormKind::Layer);
    let [x, dy, weight, rstd, dx, branch, dweight, dbias] = with_any_threads(|device| {
        let (x, dy, weight) =
            (sampled(device, dtype, len, 1), sampled(device, dtype, len, 2), sampled(device, dtype, columns, 3));
        let (_, means, scales) = normalised(kind, columns, &numbers(&x));
        let narrow = |x: Vec<f64>| tensor(device, DType::F32, &x.iter().map(|x| *x as f32).collect::<Vec<_>>());
        let (mean, rstd) = (narrow(means), narrow(scales));
        let (mut dx, mut branch) = (sampled(device, dtype, len, 5), sampled(device, DType::F32, len, 6));
        let (mut dweight, mut dbias) = (sampled(device, DType::F32, columns, 7), sampled(device, dtype, columns, 8));
        device.launch(NormBackward {
            kind,
            rows,
            columns,
            x: x.view()?,
            mean: layer.then(|| mean.view()).transpose()?,
            rstd: rstd.view()?,
            weight_offset,
            weight: weight.view()?,
            dy: dy.view()?,
            dx: Some(dx.dest(add)?),
            branch: Some((dropout(), branch.dest(add)?)),
            dweight: Some(dweight.dest(add)?),
            dbias: layer.then(|| dbias.dest(add)).transpose()?,
        })?;
        Ok([x, dy, weight, rstd, dx, branch, dweight, dbias])
    });
    let what = format!("{kind:?} {rows} x {columns} {dtype} add {add}");
    let (n, _, scales) = normalised(kind, columns, &x);
    let weight: Vec<f64> = weight.iter().map(|weight| f64::from(weight_offset) + weight).collect();
    let (mut expected, mut sums) = (vec![0.0; len], [vec![0.0; columns], vec![0.0; columns]]);
    for (row, scale) in scales.iter().enumerate() {
        let at = |c: usize| row * columns + c;
        let mean = |f: &dyn Fn(usize) -> f64| (0..columns).map(f).sum::<f64>() / columns as f64;
        let plain = if layer { mean(&|c| dy[at(c)] * weight[c]) } else { 0.0 };
        let weighted = mean(&|c| dy[at(c)] * weight[c] * n[at(c)]);
        for c in 0..columns {
            expected[at(c)] = scale * (dy[at(c)] * weight[c] - plain - n[at(c)] * weighted);
            sums[0][c] += dy[at(c)] * n[at(c)];
            sums[1][c] += dy[at(c)];
        }
    }
    let before = |len: usize, seed: u32, dtype: DType| -> Vec<f64> {
        if add { numbers(&sampled(&device(1), dtype, len, seed)) } else { vec![0.0; len] }
    };
    let plus = |a: &[f64], b: &[f64]| -> Vec<f64> { a.iter().zip(b).map(|(a, b)| a + b).collect() };
    // Cancellation scales with the reciprocal deviation, which is large only for rows of one column.
    let largest = rstd.iter().fold(1.0f64, |a, b| a.max(*b));
    let tolerance = rounding(dtype) * largest.max(2.0);
    assert_close(&what, &dx, &plus(&expected, &before(len, 5, dtype)), tolerance);
    let dropped: Vec<f64> = expected.iter().zip(factors(rows, columns)).map(|(dx, factor)| dx * factor).collect();
    assert_close(&what, &branch, &plus(&dropped, &before(len, 6, DType::F32)), 4e-6 * largest.max(2.0));
    // Sums over up to 2100 rows: their size grows with the root of the number of rows, and so does the error.
    let many = (rows as f64).sqrt().max(1.0);
    assert_close(&what, &dweight, &plus(&sums[0], &before(columns, 7, DType::F32)), 1e-6 * many * largest.min(100.0));
    if layer {
        assert_close(&what, &dbias, &plus(&sums[1], &before(columns, 8, dtype)), rounding(dtype) + 1e-6 * many);
    }
}

#[test]
fn gradients_that_were_not_asked_for_are_not_needed() {
    let device = device(2);
    let of = |len, seed| sampled(&device, DType::F32, len, seed);
    let (x, dy, weight, rstd) = (of(6, 1), of(6, 2), of(3, 3), of(2, 4));
    let launch = |dx: Option<Dest<'_>>, dweight: Option<Dest<'_>>| {
        let kind = NormKind::Rms;
        let (x, dy, weight, rstd) = (x.view()?, dy.view()?, weight.view()?, rstd.view()?);
        let (rows, columns, weight_offset, mean, branch, dbias) = (2, 3, 0.0, None, None, None);
        device.launch(NormBackward {
            kind,
            rows,
            columns,
            x,
            mean,
            rstd,
            weight_offset,
            weight,
            dy,
            dx,
            branch,
            dweight,
            dbias,
        })
    };
    let (mut alone, mut dx, mut dweight) = (of(6, 5), of(6, 5), of(3, 6));
    launch(None, None).unwrap();
    launch(Some(alone.dest(false).unwrap()), None).unwrap();
    launch(Some(dx.dest(false).unwrap()), Some(dweight.dest(false).unwrap())).unwrap();
    assert_eq!(numbers(&dx), numbers(&alone));
}
