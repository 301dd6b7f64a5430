//! Losses against plain loops in doubles.

use super::{
    FLOATS, assert_close, device, filled, integers, numbers, rounding, sampled, tensor, values, with_any_threads,
};
use bmtrain_core::buffer::View;
use bmtrain_core::dtype::DType;
use bmtrain_core::error::Error;
use bmtrain_core::kernel::*;

const IGNORED: i64 = -100;

/// Loss, weight, log-sum-exp and gradient of the loss of a row.
type Row = (f64, f64, f64, Vec<f64>);

struct Case {
    rows: usize,
    classes: usize,
    dtype: DType,
    smoothing: f32,
    weighted: bool,
    ignores: bool,
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (rows, classes) in [(1, 1), (5, 2), (70, 33), (3, 2500), (9, 5000)] {
        for dtype in FLOATS {
            for (smoothing, weighted, ignores) in
                [(0.0, false, false), (0.1, false, true), (0.0, true, true), (0.3, true, false)]
            {
                cases.push(Case { rows, classes, dtype, smoothing, weighted, ignores });
            }
        }
    }
    cases
}

impl Case {
    fn targets(&self) -> Vec<i64> {
        let of = |i: usize, x: &f32| {
            if self.ignores && i % 3 == 1 { IGNORED } else { (x.abs() / 2.0 * self.classes as f32) as i64 }
        };
        values(self.rows, 5).iter().enumerate().map(|(i, x)| of(i, x)).collect()
    }

    fn weights(&self) -> Vec<f32> {
        values(self.classes, 6).iter().map(|x| x.abs() + 0.1).collect()
    }

    fn exact(&self, logits: &[f64]) -> Vec<Row> {
        let weights: Vec<f64> =
            self.weights().iter().map(|w| if self.weighted { f64::from(*w) } else { 1.0 }).collect();
        let (smoothing, classes) = (f64::from(self.smoothing), self.classes as f64);
        let rows = logits.chunks(self.classes).zip(self.targets());
        rows.map(|(x, target)| {
            if target == IGNORED {
                return (0.0, 0.0, 0.0, vec![0.0; self.classes]);
            }
            let target = target as usize;
            let largest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let lse = largest + x.iter().map(|x| (x - largest).exp()).sum::<f64>().ln();
            // The weight of -log p of each class in the loss.
            let share = |c: usize| {
                let hit = if c == target { (1.0 - smoothing) * weights[c] } else { 0.0 };
                hit + smoothing / classes * weights[c]
            };
            let loss = (0..self.classes).map(|c| share(c) * (lse - x[c])).sum();
            let all: f64 = (0..self.classes).map(share).sum();
            let gradient = (0..self.classes).map(|c| all * (x[c] - lse).exp() - share(c)).collect();
            (loss, weights[target], lse, gradient)
        })
        .collect()
    }
}

fn criterion<'a>(
    targets: View<'a>,
    classes: usize,
    smoothing: f32,
    weights: Option<ClassWeights<'a>>,
) -> Criterion<'a> {
    Criterion {
        classes: ShardClasses::all(classes),
        targets,
        ignore_index: IGNORED,
        smoothing,
        weights,
        soft_cap: None,
    }
}

#[test]
fn cross_entropy_and_its_gradient_agree_with_doubles() {
    for case in cases() {
        let Case { rows, classes, dtype, smoothing, .. } = case;
        let len = rows * classes;
        let [logits, losses, lse, totals, mean, in_place, sum] = with_any_threads(|device| {
            let x: Vec<f32> = values(len, 1).iter().map(|x| 4.0 * x).collect();
            let [logits, mut mean, mut in_place, mut sum] = [(); 4].map(|()| tensor(device, dtype, &x));
            let (targets, weights) = (integers(device, &case.targets()), tensor(device, DType::F32, &case.weights()));
            let [mut losses, mut lse, mut totals] = [rows, rows, 3].map(|len| filled(device, DType::F32, len, 9.0));
            let weights = if case.weighted { Some(ClassWeights { each: weights.view()?, sum: None }) } else { None };
            let criterion = criterion(targets.view()?, classes, smoothing, weights);
            device.launch(CrossEntropyForward {
                rows,
                columns: classes,
                logits: logits.view()?,
                criterion,
                losses: losses.view_mut()?,
                lse: lse.view_mut()?,
                totals: totals.view_mut()?,
            })?;
            let kept = Some(logits.view()?);
            let divided = Some(totals.view()?.part(1, 1)?);
            for (dlogits, logits, divisor, each) in
                [(&mut mean, kept, divided, 1), (&mut in_place, None, None, rows), (&mut sum, kept, None, 1)]
            {
                let dloss = sampled(device, DType::F32, each, 8);
                device.launch(CrossEntropyBackward {
                    rows,
                    columns: classes,
                    logits,
                    criterion,
                    lse: lse.view()?,
                    dloss: dloss.view()?,
                    divisor,
                    fused: true,
                    dlogits: dlogits.view_mut()?,
                })?;
            }
            Ok([logits, losses, lse, totals, mean, in_place, sum])
        });
        let exact = case.exact(&logits);
        let column = |f: &dyn Fn(&Row) -> f64| exact.iter().map(f).collect::<Vec<_>>();
        assert_close("losses", &losses, &column(&|row| row.0), 4e-6);
        assert_close("lse", &lse, &column(&|row| row.2), 2e-6);
        let (loss, weight): (f64, f64) = (column(&|row| row.0).iter().sum(), column(&|row| row.1).iter().sum());
        assert_close("totals", &totals, &[loss, weight, loss / weight], 4e-6);
        let dloss = values(rows, 8);
        let gradient = |factor: &dyn Fn(usize) -> f64| -> Vec<f64> {
            exact
                .iter()
                .enumerate()
                .flat_map(|(row, exact)| exact.3.iter().map(move |g| (row, *g)))
                .map(|(row, g)| factor(row) * g)
                .collect()
        };
        let one = f64::from(dloss[0]);
        assert_close("mean", &mean, &gradient(&|_| one / weight), rounding(dtype));
        assert_close("each row", &in_place, &gradient(&|row| f64::from(dloss[row])), rounding(dtype));
        assert_close("sum", &sum, &gradient(&|_| one), rounding(dtype));
    }
}

#[test]
fn a_target_outside_the_classes_is_an_error_before_anything_is_written() {
    let device = device(2);
    for bad in [-1, 3, i64::MAX, i64::MIN] {
        let (logits, targets) = (tensor(&device, DType::F32, &[0.5; 9]), integers(&device, &[2, IGNORED, bad]));
        let of = |len: usize| tensor(&device, DType::F32, &vec![7.0; len]);
        let (mut losses, mut lse, mut totals, mut dlogits) = (of(3), of(3), of(3), of(9));
        let (rows, columns) = (3, 3);
        let criterion = criterion(targets.view().unwrap(), columns, 0.0, None);
        let error = device
            .launch(CrossEntropyForward {
                rows,
                columns,
                logits: logits.view().unwrap(),
                criterion,
                losses: losses.view_mut().unwrap(),
                lse: lse.view_mut().unwrap(),
                totals: totals.view_mut().unwrap(),
            })
            .unwrap_err();
        assert_eq!(error, Error::Index { op: "cross_entropy_forward", position: 2, index: bad, bound: 3 });
        let error = device
            .launch(CrossEntropyBackward {
                rows,
                columns,
                logits: None,
                criterion,
                lse: lse.view().unwrap(),
                dloss: losses.view().unwrap(),
                divisor: None,
                fused: true,
                dlogits: dlogits.view_mut().unwrap(),
            })
            .unwrap_err();
        assert_eq!(error, Error::Index { op: "cross_entropy_backward", position: 2, index: bad, bound: 3 });
        for tensor in [losses, lse, totals, dlogits] {
            assert!(numbers(&tensor).iter().all(|x| *x == 7.0));
        }
    }
}

#[test]
fn squared_errors_agree_with_doubles() {
    for (len, dtype) in [1, 5, 1025, 40_000].into_iter().flat_map(|len| FLOATS.map(|dtype| (len, dtype))) {
        let [x, targets, loss, dx] = with_any_threads(|device| {
            let (x, targets) = (sampled(device, dtype, len, 1), sampled(device, DType::F32, len, 2));
            let [mut loss, dloss] = [0.0, 1.5].map(|value| filled(device, DType::F32, 1, value));
            let mut dx = filled(device, dtype, len, 9.0);
            let (x_view, of_x) = (x.view()?, targets.view()?);
            device.launch(SquaredErrorForward { x: x_view, targets: of_x, loss: loss.view_mut()? })?;
            let (dloss, dx_view) = (dloss.view()?, dx.view_mut()?);
            device.launch(SquaredErrorBackward { x: x_view, targets: of_x, dloss, dx: dx_view })?;
            Ok([x, targets, loss, dx])
        });
        let differences: Vec<f64> = x.iter().zip(&targets).map(|(x, target)| x - target).collect();
        let mean = differences.iter().map(|d| d * d).sum::<f64>() / len as f64;
        assert_close("loss", &loss, &[mean], 2e-7);
        let gradient: Vec<f64> = differences.iter().map(|d| 1.5 * 2.0 * d / len as f64).collect();
        assert_close("gradient", &dx, &gradient, rounding(dtype));
    }
}
