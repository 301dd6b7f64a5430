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
    let squared = |cx: &Ctx, v: &[Var]| ops::squared_error(cx, &v[0], v[1].value());
    let case = Case::one("squared_error/11", squared).variable("x", [11]);
    cases.push(case.constant("targets", [11]).of(DType::F32));
    let case = Case::one("squared_error/2x3", squared).variable("x", [2, 3]);
    cases.push(case.constant("targets", [6]).of(DType::F32));
    let case = Case::one("squared_error/70000", squared).variable("x", [70_000]);
    // In f16 the gradients would be below the smallest normal number.
    cases.push(case.constant("targets", [70_000]).of(DType::F32).dtypes(&[DType::F32, DType::BF16]).large());
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
        let criterion = Criterion { classes: all, targets, ignore_index: -100, smoothing: 0.0, weights: None };
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
