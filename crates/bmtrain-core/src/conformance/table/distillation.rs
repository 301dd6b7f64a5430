//! Rows of the divergences that a model is distilled by.

use super::*;
use crate::ops::{CrossEntropy, Distillation, Divergence, LinearDistillation, StudentHead, TeacherHead};

const DIVERGENCES: [Divergence; 3] = [Divergence::Forward, Divergence::Reverse, Divergence::JensenShannon];

pub(super) fn rows(cases: &mut Vec<Case>) {
    for divergence in DIVERGENCES {
        for temperature in [1.0, 2.5] {
            let options = Distillation { divergence, temperature };
            let body = move |cx: &Ctx, v: &[Var]| ops::logits_divergence(cx, &v[0], v[1].value(), options);
            let case = Case::one(format!("logits_divergence/{divergence:?}/{temperature}"), body);
            let case = case.variable("logits", [2, 3, 13]).deviation(2.0).constant("teacher", [2, 3, 13]);
            cases.push(case.deviation(2.0).expecting(move |inputs| vec![divergences(&inputs[0], &inputs[1], options)]));
        }
    }
    // The vocabulary of the teacher is as large, larger or smaller.
    for (at, (classes, known)) in [(7, 7), (7, 9), (9, 7)].into_iter().enumerate() {
        for (share, chunk_bytes, soft_cap) in [(1.0, 1 << 20, None), (0.25, 1 << 10, None), (0.25, 1 << 10, Some(1.5))]
        {
            let distillation = Distillation { divergence: DIVERGENCES[at], temperature: 1.5 };
            let case = Case::one(
                format!(
                    "linear_distillation/{classes} of {known}/{share}{}",
                    if soft_cap.is_some() { "/soft cap" } else { "" }
                ),
                head(distillation, share, chunk_bytes, None, soft_cap),
            );
            let case = case.variable("hidden", [31, 3]).leaf("weight", [classes, 3]).leaf("bias", [classes]);
            let case = case.ids("targets", [31], classes as i64, Some(-100));
            let case = case.constant("counted", [31]).holding(Values::Uniform(0.2, 1.0)).of(DType::F32);
            let case = case.constant("hidden of the teacher", [31, 5]).constant("weight of the teacher", [known, 5]);
            cases.push(case.constant("bias of the teacher", [known]));
        }
    }
    let padded = head(Distillation::default(), 0.25, 1 << 10, Some(7), None);
    let padded = Case::one("linear_distillation/7 padded to 16 of 9", padded);
    let padded = padded.variable("hidden", [31, 3]).leaf("weight", [16, 3]).leaf("bias", [16]);
    let padded = padded.ids("targets", [31], 7, Some(-100));
    let padded = padded.constant("counted", [31]).holding(Values::Uniform(0.2, 1.0)).of(DType::F32);
    let padded = padded.constant("hidden of the teacher", [31, 5]).constant("weight of the teacher", [9, 5]);
    cases.push(padded.constant("bias of the teacher", [9]));
    let chunk_bytes = 64 * 1000 * 4 * 8;
    let large =
        Case::one("linear_distillation/rows of 64", head(Distillation::default(), 0.5, chunk_bytes, None, None));
    let large = large.variable("hidden", [300, 16]).leaf("weight", [1000, 16]).deviation(0.25).leaf("bias", [1000]);
    let large = large.ids("targets", [300], 1000, Some(-100));
    let large = large.constant("counted", [300]).holding(Values::Uniform(0.2, 1.0)).of(DType::F32);
    let large = large.constant("hidden of the teacher", [300, 8]).constant("weight of the teacher", [1000, 8]);
    cases.push(large.constant("bias of the teacher", [1000]).large());
}

fn head(
    distillation: Distillation,
    weight: f32,
    chunk_bytes: usize,
    classes: Option<usize>,
    soft_cap: Option<f32>,
) -> impl Fn(&Ctx, &[Var]) -> Result<Var> {
    move |cx, v| {
        let teacher = TeacherHead {
            soft_cap: soft_cap.map(|cap| 2.0 * cap),
            hidden: v[5].value().clone(),
            weight: v[6].value().clone(),
            bias: Some(v[7].value().clone()),
        };
        let loss = CrossEntropy { label_smoothing: 0.1, soft_cap, ..CrossEntropy::default() };
        let options = LinearDistillation { loss, distillation, weight, chunk_bytes, classes };
        let student = StudentHead { hidden: &v[0], weight: &v[1], bias: Some(&v[2]) };
        Ok(ops::linear_distillation(cx, student, &teacher, v[3].value(), v[4].value(), &options)?.loss)
    }
}

/// The divergences of rows of 13 logits, by their definitions.
fn divergences(logits: &[f64], teacher: &[f64], options: Distillation) -> Vec<f64> {
    let temperature = f64::from(options.temperature);
    let distribution = |row: &[f64]| -> Vec<f64> {
        let powers: Vec<f64> = row.iter().map(|x| (x / temperature).exp()).collect();
        let sum: f64 = powers.iter().sum();
        powers.iter().map(|power| power / sum).collect()
    };
    let from = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * (a / b).ln()).sum() };
    let rows = logits.chunks(13).zip(teacher.chunks(13));
    let of_row = |(logits, teacher)| {
        let (q, p) = (distribution(logits), distribution(teacher));
        let divergence = match options.divergence {
            Divergence::Forward => from(&p, &q),
            Divergence::Reverse => from(&q, &p),
            Divergence::JensenShannon => {
                let mixture: Vec<f64> = p.iter().zip(&q).map(|(p, q)| 0.5 * (p + q)).collect();
                0.5 * (from(&p, &mixture) + from(&q, &mixture))
            }
        };
        temperature * temperature * divergence
    };
    rows.map(of_row).collect()
}
