//! The head of a language model that learns from another one's logits, without the logits of all rows of either:
//! [`linear_distillation`].

use super::*;
use crate::autograd::Tape;
use crate::kernel::ScaleBy;
use std::ops::Range;

const OP: &str = "linear_distillation";

/// Tensors of the size of a chunk of logits that are alive together, about.
const ALIVE: usize = 8;

/// Head of a teacher, from which its logits are computed.
#[derive(Debug, Clone)]
pub struct TeacherHead {
    /// `[.., E]`, with as many rows as the student's; the teacher may be wider.
    pub hidden: Tensor,
    /// `[U, E]`.
    pub weight: Tensor,
    /// `[U]`.
    pub bias: Option<Tensor>,
    /// Its logits become `cap * tanh(x / cap)`; above 0.
    pub soft_cap: Option<f32>,
}

/// Head of a student, which learns.
#[derive(Debug, Clone, Copy)]
pub struct StudentHead<'a> {
    /// Hidden states, `[.., D]`.
    pub hidden: &'a Var,
    /// `[V, D]`.
    pub weight: &'a Var,
    /// `[V]`.
    pub bias: Option<&'a Var>,
}

/// Options of [`linear_distillation`].
#[derive(Debug, Clone)]
pub struct LinearDistillation {
    /// The loss of the targets. Its reduction has no effect.
    pub loss: CrossEntropy,
    /// Comparison of the distributions.
    pub distillation: Distillation,
    /// Share of the divergence in the loss, from 0 to 1; the rest is the loss of the targets.
    pub weight: f32,
    /// About how many bytes all tensors of a chunk of logits take; one row at least.
    pub chunk_bytes: usize,
    /// Number of classes where weight and bias of the student are padded.
    pub classes: Option<usize>,
}

/// The loss of a student, and a part of it.
#[derive(Debug, Clone)]
pub struct Distilled {
    /// `(1 - weight)` times the cross-entropy plus `weight` times the divergence, means over the counted rows, f32
    /// `[1]`.
    pub loss: Var,
    /// The divergence alone, f32 `[1]`.
    pub divergence: Tensor,
}

/// The loss of logits `hidden weight^T + bias` from targets and from the logits of a teacher, without the logits of all
/// rows of either.
///
/// Shapes: hidden `[.., D]`, weight `[V, D]`, bias `[V]`, targets i64 `[..]`, counted f32 `[..]`, 1 for the rows that
/// are not ignored and 0 for the others → two numbers. Vocabularies may be of two sizes: distributions are compared
/// over the classes that both have, which are the first ones.
///
/// Chunks of rows are worked on one after another: logits of both, the loss, the gradient of the student's logits. That
/// is multiplied into the gradients of hidden, weight and bias, which the backward pass multiplies by the gradient of
/// the loss. Nothing of the teacher has a gradient.
///
/// Memory, for R rows and elements of s bytes: `chunk_bytes`, and in training `s R D` for hidden, `4 V D` for the
/// weight and `4 V` for the bias until the backward pass, each only where its gradient is wanted.
///
/// Numerics: as [`logits_divergence`] and [`linear_cross_entropy`]; gradients of logits are in the dtype of hidden, and
/// in f16 carry no scale of the loss.
///
/// # Errors
/// Shapes that do not match, a target out of range, a weight outside of 0 to 1, a temperature that is not above 0.
pub fn linear_distillation(
    cx: &Ctx,
    StudentHead { hidden, weight, bias }: StudentHead<'_>,
    teacher: &TeacherHead,
    targets: &Tensor,
    counted: &Tensor,
    options: &LinearDistillation,
) -> Result<Distilled> {
    let [columns, depth] = check_linear(OP, hidden.shape(), weight, bias)?;
    let (rows, classes) = (hidden.shape().rows(), options.classes.unwrap_or(columns));
    if classes > columns {
        return Err(Error::shape(OP, "weight", format!("a row for each of {classes} classes"), weight.shape()));
    }
    expect_elements(OP, "targets", rows, targets.shape())?;
    expect_elements(OP, "counted", rows, counted.shape())?;
    let [known, wide] = teacher.weight.dims(OP)?;
    expect_elements(OP, "hidden states of the teacher", rows.saturating_mul(wide), teacher.hidden.shape())?;
    if let Some(bias) = &teacher.bias {
        expect_elements(OP, "bias of the teacher", known, bias.shape())?;
    }
    if classes.min(known) == 0 {
        return Err(Error::shape(OP, "weights", "at least one class", Shape::from([classes, known])));
    }
    if !(0.0..=1.0).contains(&options.weight) {
        return Err(Error::argument(OP, format!("weight {} is outside of 0 to 1", options.weight)));
    }
    let absent = hidden.detach();
    let inputs = [hidden, weight, bias.unwrap_or(&absent)];
    let recorded = |input: &Var| cx.is_recording() && input.needs_grad();
    let wanted = Wanted { hidden: recorded(hidden), weight: recorded(weight), bias: bias.is_some_and(recorded) };
    let loss = CrossEntropy { reduction: Reduction::Sum, ..options.loss.clone() };
    let head = Head {
        hidden: hidden.value().reshape([rows, depth])?,
        weight: weight.value().clone(),
        bias: bias.map(|bias| bias.value().clone()),
        terms: Terms::new(cx.device(), targets, ShardClasses::all(classes), &loss)?,
        shard: None,
        // Without filling: ops read whole rows.
        size: Size { rows, classes: columns, columns, depth },
    };
    let common = classes.min(known);
    let rows_of = |tensor: &Tensor| tensor.slice(0..common);
    let teacher = Teacher {
        hidden: teacher.hidden.reshape([rows, wide])?,
        weight: Var::constant(rows_of(&teacher.weight)?),
        bias: teacher.bias.as_ref().map(rows_of).transpose()?.map(Var::constant),
        soft_cap: teacher.soft_cap,
    };
    let (targets, counted) = (targets.reshape([rows])?, counted.reshape([rows])?);
    let terms = ChunkTerms { targets, counted, loss, options, classes, common };
    let row_bytes = columns.saturating_mul(4 * ALIVE).max(1);
    let at_once = plan::rows_at_once(rows, row_bytes, options.chunk_bytes).max(1);
    let plain = Ctx::inference(cx.device());
    let zero = Var::constant(Tensor::full_in(cx.device(), [1], DType::F32, 0.0, Segment::Activations)?); // [1]
    let (mut loss, mut divergence) = (zero.clone(), zero); // [1]
    let sums = Sums::new(&head, wanted)?;
    for first in (0..rows).step_by(at_once) {
        let chunk = first..rows.min(first + at_once);
        let logits = Storage::empty(cx.device(), chunk.len() * columns, hidden.dtype(), Segment::Activations)?;
        head.logits(chunk.clone(), &logits)?;
        let logits = owned(logits, [chunk.len(), columns])?; // [chunk, C]
        let (of_chunk, apart, gradient) = terms.losses(logits, &teacher, &chunk, wanted.any())?;
        loss = add(&plain, &loss, &Var::constant(of_chunk))?; // [1]
        divergence = add(&plain, &divergence, &Var::constant(apart))?; // [1]
        if let Some(gradient) = gradient {
            sums.add(&head, chunk, gradient.view()?)?;
        }
    }
    let made = sums.finish(&head)?;
    let divisor = sum(&plain, &Var::constant(terms.counted.clone()))?.into_value(); // [1]
    let value = mean_of(loss.value(), &divisor)?; // [1]
    let divergence = mean_of(divergence.value(), &divisor)?; // [1]
    let shapes = [hidden.shape(), weight.shape()];
    let dtypes = [hidden.dtype(), weight.dtype(), bias.map_or(weight.dtype(), Var::dtype)];
    let loss = cx.record(value, &inputs, || {
        let kept = Kept::Gradients(made);
        Box::new(LinearCrossEntropyBackward { kept, divisor: Some(divisor), shapes, dtypes })
    });
    Ok(Distilled { loss, divergence })
}

/// A teacher's head, cut to the classes that the student has too.
struct Teacher {
    /// `[rows, E]`.
    hidden: Tensor,
    weight: Var,
    bias: Option<Var>,
    soft_cap: Option<f32>,
}

/// Inputs of the loss of a chunk except logits.
struct ChunkTerms<'a> {
    /// `[rows]`.
    targets: Tensor,
    /// `[rows]`.
    counted: Tensor,
    loss: CrossEntropy,
    options: &'a LinearDistillation,
    /// Classes of the student.
    classes: usize,
    /// Classes that both have.
    common: usize,
}

impl ChunkTerms<'_> {
    /// Losses of rows with the logits `[n, C]`, the columns after the classes being padding: the sum of their losses,
    /// `[1]`; the sum of their divergences, `[1]`; and the gradient of the first by the logits, where it is `wanted`.
    fn losses(
        &self,
        logits: Tensor,
        teacher: &Teacher,
        rows: &Range<usize>,
        wanted: bool,
    ) -> Result<(Tensor, Tensor, Option<Tensor>)> {
        let device = logits.device().clone();
        let tape = wanted.then(Tape::new);
        let cx = Ctx::inference(&device).with_tape(tape.clone());
        let input = tape.as_ref().map_or_else(|| Var::constant(logits.clone()), |tape| tape.input(logits.clone()));
        let first = |from: &Var, count: usize| match from.shape().last() {
            all if all > count => slice_last(&cx, from, 0..count),
            _ => Ok(from.clone()),
        };
        let logits = soft_cap(&cx, &first(&input, self.classes)?, self.loss.soft_cap)?; // [n, V]
        let hidden = Var::constant(teacher.hidden.slice(rows.clone())?);
        let of_teacher = linear(&cx, &hidden, &teacher.weight, teacher.bias.as_ref(), None)?; // [n, common]
        let of_teacher = soft_cap(&cx, &of_teacher, teacher.soft_cap)?; // [n, common]
        let shared = first(&logits, self.common)?; // [n, common]
        let each = logits_divergence(&cx, &shared, of_teacher.value(), self.options.distillation)?; // [n]
        let counted = Var::constant(self.counted.slice(rows.clone())?);
        let apart = sum(&cx, &mul(&cx, &each, &counted)?)?; // [1]
        let share = self.options.weight;
        let loss = match share {
            1.0 => apart.clone(),
            _ => {
                let targets = self.targets.slice(rows.clone())?;
                let loss = CrossEntropy { soft_cap: None, ..self.loss.clone() };
                let of_targets = cross_entropy(&cx, &logits, &targets, &loss)?; // [1]
                add(&cx, &scale(&cx, &of_targets, 1.0 - share)?, &scale(&cx, &apart, share)?)? // [1]
            }
        };
        let parts = (loss.value().clone(), apart.value().clone());
        let mut gradient = None;
        if let Some(tape) = tape {
            let one = Tensor::full_in(&device, [1], DType::F32, 1.0, Segment::Activations)?; // [1]
            gradient = tape.backward(&device, vec![(loss, one)], &[&input])?.into_iter().flatten().next(); // [n, C]
        }
        Ok((parts.0, parts.1, gradient))
    }
}

/// `sum / divisor`, 0 where the divisor is 0.
fn mean_of(sum: &Tensor, divisor: &Tensor) -> Result<Tensor> {
    let device = sum.device();
    let one = Tensor::full_in(device, [1], DType::F32, 1.0, Segment::Activations)?; // [1]
    let mut mean = Tensor::empty_in(device, [1], DType::F32, Segment::Activations)?; // [1]
    let out = mean.dest(false)?;
    device.launch(ScaleBy { factor: one.view()?, divisor: Some(divisor.view()?), x: Some(sum.view()?), out })?;
    Ok(mean)
}
