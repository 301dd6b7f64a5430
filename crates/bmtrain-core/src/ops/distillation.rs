//! Divergences of two distributions over classes that are given as logits: [`logits_divergence`], the loss of a model
//! that learns from the outputs of another. [`linear_distillation`](super::linear_distillation) computes it in chunks.

use super::*;

/// Divergence of the distributions of a teacher, p, and of a student, q.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Divergence {
    /// `KL(p || q)`, the sum of `p (log p - log q)`: the student covers all that the teacher gives probability.
    #[default]
    Forward,
    /// `KL(q || p)`: the student avoids what the teacher gives no probability.
    Reverse,
    /// The mean of `KL(p || m)` and `KL(q || m)` with `m = (p + q) / 2`, the divergence of Jensen and Shannon.
    JensenShannon,
}

/// Comparison of the distributions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Distillation {
    /// Divergence of teacher and student.
    pub divergence: Divergence,
    /// Temperature, by which the logits of both are divided; above 0.
    pub temperature: f32,
}

impl Default for Distillation {
    fn default() -> Self {
        Distillation { divergence: Divergence::Forward, temperature: 1.0 }
    }
}

/// The divergence of the distributions of each row of logits at a temperature, times the square of the temperature.
///
/// Shapes: logits and the teacher's logits `[.., C]` → f32 `[rows]`.
/// Numerics: f32 for every dtype of logits, from log-softmaxes. A class without probability under the teacher adds
/// nothing to the forward divergence.
/// Source: Hinton et al. (2015), whose square of the temperature keeps the size of the gradients; of the generalised
/// divergences Gu et al. (2024) and Agarwal et al. (2024).
///
/// # Errors
/// Shapes that do not match, no classes, a temperature that is not above 0.
pub fn logits_divergence(cx: &Ctx, logits: &Var, teacher: &Tensor, options: Distillation) -> Result<Var> {
    const OP: &str = "logits_divergence";
    let Distillation { divergence, temperature } = options;
    expect_shape(OP, "teacher", logits.shape(), teacher.shape())?;
    if logits.shape().rank() == 0 || logits.shape().last() == 0 {
        return Err(Error::shape(OP, "logits", "at least one class", logits.shape()));
    }
    if !(temperature > 0.0 && temperature.is_finite()) {
        return Err(Error::argument(OP, format!("temperature {temperature} is not a positive number")));
    }
    let (rows, classes) = (logits.shape().rows(), logits.shape().last());
    let softened = |logits: &Var| {
        let logits = cast(cx, &logits.reshape([rows, classes])?, DType::F32)?;
        if temperature == 1.0 { Ok(logits) } else { scale(cx, &logits, 1.0 / temperature) }
    };
    let (student, teacher) = (softened(logits)?, softened(&Var::constant(teacher.clone()))?); // [rows, C]
    let (log_q, log_p) = (log_softmax(cx, &student)?, log_softmax(cx, &teacher)?); // [rows, C]
    let terms = match divergence {
        Divergence::Forward => {
            let p = softmax(cx, &teacher)?; // [rows, C]
            kl_divergence(cx, &log_q, p.value(), Reduction::None)?
        }
        Divergence::Reverse => {
            let q = softmax(cx, &student)?; // [rows, C]
            mul(cx, &q, &minus(cx, &log_q, &log_p)?)?
        }
        Divergence::JensenShannon => {
            let (p, q) = (softmax(cx, &teacher)?, softmax(cx, &student)?); // [rows, C]
            // log(1 + p / q), so that log(p + q) is log q more.
            let zeros = Tensor::full_in(cx.device(), log_q.shape(), DType::F32, 0.0, Segment::Activations)?;
            let above = binary_cross_entropy(cx, &minus(cx, &log_p, &log_q)?, &zeros, Reduction::None)?;
            let of_p = kl_divergence(cx, &add(cx, &log_q, &above)?, p.value(), Reduction::None)?;
            scale(cx, &minus(cx, &of_p, &mul(cx, &q, &above)?)?, 0.5)?
        }
    }; // [rows, C]
    let ones = Tensor::full_in(cx.device(), [1, classes], DType::F32, 1.0, Segment::Activations)?; // [1, C]
    let sums = linear(cx, &terms, &Var::constant(ones), None, None)?.reshape([rows])?; // [rows]
    let sums = match divergence {
        // Of p + q, which is twice the mixture.
        Divergence::JensenShannon => {
            let constant = Tensor::full_in(cx.device(), [rows], DType::F32, 2f32.ln(), Segment::Activations)?;
            add(cx, &sums, &Var::constant(constant))?
        }
        Divergence::Forward | Divergence::Reverse => sums,
    };
    if temperature == 1.0 { Ok(sums) } else { scale(cx, &sums, temperature * temperature) }
}

/// `a - b`, of one shape.
fn minus(cx: &Ctx, a: &Var, b: &Var) -> Result<Var> {
    add(cx, a, &scale(cx, b, -1.0)?)
}
