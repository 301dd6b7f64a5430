//! Rows of the losses.

use super::*;
use crate::ops::{CrossEntropy, Reduction};

pub(super) fn rows(cases: &mut Vec<Case>) {
    for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
        for smoothing in [0.0, 0.1] {
            for weighted in [false, true] {
                for ignoring in [false, true] {
                    cases.push(cross_entropy(reduction, smoothing, weighted, ignoring, 7, 5));
                }
            }
        }
    }
    cases.push(cross_entropy(Reduction::Mean, 0.0, false, true, 40, 2));
    cases.push(cross_entropy(Reduction::Mean, 0.1, true, true, 3, 130));
    cases.push(cross_entropy(Reduction::Mean, 0.1, true, true, 300, 257).large());
    cases.push(cross_entropy(Reduction::None, 0.0, false, true, 3, 3001).large());
    // One class: losses and gradients are zero, which finite differences cannot measure.
    cases.push(cross_entropy(Reduction::Mean, 0.0, true, false, 4, 1).inexact());
    // Rows of odd length begin at every distance from a multiple of 16 bytes; a thread has several packs of the
    // longest.
    cases.push(cross_entropy(Reduction::None, 0.1, true, true, 9, 9001).large());
    cases.push(cross_entropy(Reduction::Mean, 0.0, false, false, 2, 30_522).large());
    for classes in [40, 41] {
        cases.push(gradient_of_another_type(classes));
    }
    let in_place = Case::op("cross_entropy/logits of its own", |cx, v| {
        let logits = ops::scale(cx, &v[0], 1.5)?;
        Ok(vec![ops::cross_entropy(cx, &logits, v[1].value(), &CrossEntropy::default())?])
    });
    cases.push(in_place.variable("x", [2, 5, 6]).ids("targets", [2, 5], 6, Some(-100)));
    let other = Case::op("cross_entropy/another ignored number", |cx, v| {
        let options = CrossEntropy { ignore_index: 2, ..CrossEntropy::default() };
        Ok(vec![ops::cross_entropy(cx, &v[0], v[1].value(), &options)?])
    });
    cases.push(other.variable("logits", [9, 4]).ids("targets", [9], 4, Some(2)));
    for (rows, classes, smoothing) in [(5, 7, 0.0), (4, 1030, 0.1)] {
        let capped = Case::op(format!("cross_entropy/soft cap/{rows}x{classes}"), move |cx, v| {
            let options = CrossEntropy { soft_cap: Some(1.5), label_smoothing: smoothing, ..CrossEntropy::default() };
            Ok(vec![ops::cross_entropy(cx, &v[0], v[1].value(), &options)?])
        });
        let capped = capped.variable("logits", [rows, classes]).deviation(2.0);
        cases.push(capped.ids("targets", [rows], classes as i64, Some(-100)));
    }
    cases.push(
        Case::one("scale/soft cap", |cx, v| ops::soft_cap(cx, &v[0], Some(1.5))).variable("x", [3, 7]).deviation(2.0),
    );
    let squared = |cx: &Ctx, v: &[Var]| ops::squared_error(cx, &v[0], v[1].value());
    let case = Case::one("squared_error/11", squared).variable("x", [11]);
    cases.push(case.constant("targets", [11]).of(DType::F32));
    let case = Case::one("squared_error/2x3", squared).variable("x", [2, 3]);
    cases.push(case.constant("targets", [6]).of(DType::F32));
    let case = Case::one("squared_error/70000", squared).variable("x", [70_000]);
    // In f16 the gradients would be below the smallest normal number.
    cases.push(case.constant("targets", [70_000]).of(DType::F32).dtypes(&[DType::F32, DType::BF16]).large());
    pointwise(cases);
}

type ElementLoss = fn(&Ctx, &Var, &Tensor, Reduction) -> Result<Var>;

/// Losses of elements, and the functions that they are made of.
fn pointwise(cases: &mut Vec<Case>) {
    let losses: [(&str, ElementLoss, Values); 4] = [
        ("absolute_error", ops::absolute_error, Values::Normal(0.0, 1.0)),
        ("huber_loss", |cx, x, t, reduction| ops::huber_loss(cx, x, t, 0.75, reduction), Values::Normal(0.0, 1.0)),
        ("binary_cross_entropy", ops::binary_cross_entropy, Values::Uniform(0.0, 1.0)),
        ("kl_divergence", ops::kl_divergence, Values::Uniform(0.1, 1.0)),
    ];
    for (name, loss, targets) in losses {
        for (reduction, shape) in [(Reduction::None, [3, 37]), (Reduction::Mean, [5, 8]), (Reduction::Sum, [1, 11])] {
            let body = move |cx: &Ctx, v: &[Var]| loss(cx, &v[0], v[1].value(), reduction);
            let case = Case::one(format!("{name}/{reduction:?}"), body).variable("x", shape).deviation(2.0);
            // A kink is seldom within a small step.
            cases.push(case.constant("targets", shape).holding(targets).of(DType::F32).step(1e-3));
        }
        let body = move |cx: &Ctx, v: &[Var]| loss(cx, &v[0], v[1].value(), Reduction::None);
        let case = Case::one(name, body).variable("x", [300, 257]).deviation(2.0);
        cases.push(case.constant("targets", [300, 257]).holding(targets).of(DType::F32).large());
    }
    let log_odds = |cx: &Ctx, v: &[Var]| ops::log_odds(cx, &v[0]);
    for (shape, is_large) in [([3, 37], false), ([300, 257], true)] {
        let case = Case::one("log_odds", log_odds).variable("log-probabilities", shape);
        let case = case.holding(Values::Uniform(-4.0, -0.2));
        cases.push(if is_large { case.large() } else { case });
    }
    let cosine = |cx: &Ctx, v: &[Var]| ops::cosine_similarity(cx, &v[0], &v[1], 1e-12);
    cases.push(Case::one("cosine_similarity", cosine).variable("a", [7, 24]).variable("b", [7, 24]));
    for function in Pointwise::ALL {
        kernels_of(function, cases);
    }
}

/// Value and added gradient, launched directly, against doubles.
fn kernels_of(function: Pointwise, cases: &mut Vec<Case>) {
    let case = Case::kernel(format!("pointwise/{}", function.name()), move |device, t| {
        let targets = || function.has_targets().then(|| t[1].view()).transpose();
        let mut y = zeros(device, &[41], DType::F32)?;
        let x = t[0].view()?;
        device.launch(PointwiseForward { function, x, targets: targets()?, y: y.view_mut()? })?;
        let mut dx = copy(&t[2])?;
        let (dy, dest) = (t[1].view()?, dx.dest(true)?);
        device.launch(PointwiseBackward { function, x, targets: targets()?, dy, dx: dest })?;
        Ok(vec![y, dx])
    });
    let case = case.constant("x", [41]).holding(Values::Uniform(-3.0, -0.1));
    let case = case.constant("targets", [41]).holding(Values::Uniform(0.0, 1.0)).of(DType::F32);
    cases.push(case.constant("dx", [41]).expecting(move |inputs| {
        let (x, targets) = (&inputs[0], &inputs[1]);
        let both: Vec<(f64, f64)> = x.iter().zip(targets).map(|(x, t)| value_and_slope(function, *x, *t)).collect();
        let gradients = both.iter().zip(targets).zip(&inputs[2]).map(|(((_, slope), dy), old)| old + slope * dy);
        vec![both.iter().map(|(value, _)| *value).collect(), gradients.collect()]
    }));
}

fn value_and_slope(function: Pointwise, x: f64, t: f64) -> (f64, f64) {
    let difference = x - t;
    match function {
        Pointwise::AbsoluteError => (difference.abs(), difference.signum()),
        Pointwise::Huber { delta } if difference.abs() > f64::from(delta) => {
            let delta = f64::from(delta);
            (delta * (difference.abs() - delta / 2.0), delta * difference.signum())
        }
        Pointwise::Huber { .. } => (difference * difference / 2.0, difference),
        Pointwise::BinaryCrossEntropy => (x.exp().ln_1p() - t * x, 1.0 / (1.0 + (-x).exp()) - t),
        Pointwise::KlDivergence => (t * (t.ln() - x), -t),
        Pointwise::LogOdds => (x - (1.0 - x.exp()).ln(), 1.0 / (1.0 - x.exp())),
    }
}

fn cross_entropy(
    reduction: Reduction,
    smoothing: f32,
    weighted: bool,
    ignoring: bool,
    rows: usize,
    classes: usize,
) -> Case {
    let mut name = format!("cross_entropy/{reduction:?}/{rows}x{classes}");
    for (on, word) in [(smoothing > 0.0, "/smoothing"), (weighted, "/weights"), (ignoring, "/ignored")] {
        name.push_str(if on { word } else { "" });
    }
    let case = Case::op(name, move |cx, v| {
        let class_weights = v.get(2).map(|weights| weights.value().clone());
        let options = CrossEntropy { label_smoothing: smoothing, class_weights, reduction, ..CrossEntropy::default() };
        Ok(vec![ops::cross_entropy(cx, &v[0], v[1].value(), &options)?])
    });
    let case = case.variable("logits", [rows, classes]).deviation(2.0);
    let case = case.ids("targets", [rows], classes as i64, ignoring.then_some(-100));
    if weighted { case.constant("weights", [classes]).holding(Values::Uniform(0.2, 2.0)).of(DType::F32) } else { case }
}

/// Logits of the tested type, their gradient in f32 and in bf16.
fn gradient_of_another_type(classes: usize) -> Case {
    let rows = 5;
    let case = Case::kernel(format!("cross_entropy/gradient of another type/{classes}"), move |device, t| {
        let [mut losses, mut lse, mut totals] = [
            zeros(device, &[rows], DType::F32)?,
            zeros(device, &[rows], DType::F32)?,
            zeros(device, &[3], DType::F32)?,
        ];
        let (logits, targets, all) = (t[0].view()?, t[1].view()?, ShardClasses::all(classes));
        let criterion =
            Criterion { classes: all, targets, ignore_index: -100, smoothing: 0.0, weights: None, soft_cap: None };
        device.launch(CrossEntropyForward {
            rows,
            columns: classes,
            logits,
            criterion,
            losses: losses.view_mut()?,
            lse: lse.view_mut()?,
            totals: totals.view_mut()?,
        })?;
        let mut results = Vec::new();
        for dtype in [DType::F32, DType::BF16] {
            let mut dlogits = zeros(device, &[rows, classes], dtype)?;
            device.launch(CrossEntropyBackward {
                rows,
                columns: classes,
                logits: Some(logits),
                criterion,
                lse: lse.view()?,
                dloss: losses.view()?,
                divisor: Some(totals.view()?.part(1, 1)?),
                fused: true,
                dlogits: dlogits.view_mut()?,
            })?;
            results.push(dlogits);
        }
        results.extend([losses, lse, totals]);
        Ok(results)
    });
    // The second gradient is rounded to bf16 whatever type is tested.
    case.constant("logits", [rows, classes]).ids("targets", [rows], classes as i64, Some(-100)).dtypes(&[DType::BF16])
}
