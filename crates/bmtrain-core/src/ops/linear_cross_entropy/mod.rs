//! The head of a language model and its loss as one op, which never holds the logits of all rows:
//! [`linear_cross_entropy`]. [`linear_distillation`] learns from the logits of another model too.
//!
//! `plan` decides how many rows are worked on at a time, `head` is the arithmetic of some of them, `backward` what is
//! left for the backward pass.

mod backward;
mod distillation;
mod head;
mod plan;

use super::cross_entropy::{CrossEntropy, Reduction, Terms, VocabularyShard};
use super::gemm::check_linear;
use super::*;
use crate::kernel::ShardClasses;
use crate::tensor::Storage;
pub use distillation::{Distilled, LinearDistillation, StudentHead, TeacherHead, linear_distillation};

use backward::{Held, Kept, LinearCrossEntropyBackward, Recomputed};
use head::{Gradients, Head, Size, Sums};
use plan::{LogitsPlan, Wanted};

const OP: &str = "linear_cross_entropy";

/// Options of [`linear_cross_entropy`].
#[derive(Debug, Clone)]
pub struct LinearCrossEntropy {
    /// Settings of the loss.
    pub loss: CrossEntropy,
    /// About how many bytes of logits there are at a time; one row at least.
    pub chunk_bytes: usize,
    /// This rank's classes where weight and bias are padded or sharded.
    pub shard: Option<VocabularyShard>,
}

impl Default for LinearCrossEntropy {
    fn default() -> Self {
        LinearCrossEntropy { loss: CrossEntropy::default(), chunk_bytes: 128 << 20, shard: None }
    }
}

/// Cross-entropy of `hidden weight^T + bias` without the logits of all rows.
///
/// Shapes: hidden `[.., D]`, weight `[V, D]`, bias `[V]`, targets i64 `[..]` → as
/// [`cross_entropy`](super::cross_entropy). With a [`shard`](LinearCrossEntropy::shard), weight and bias are this
/// rank's rows, padded after its classes; hidden and targets are equal on all ranks, and so are the loss and the
/// gradient of hidden, which is summed over the ranks. All ranks pass the same gradient of the loss.
///
/// Where gradients are wanted, the logits of a chunk of rows are overwritten by their gradients as soon as they are
/// there and multiplied into the gradients of hidden, weight and bias; nothing is computed twice. The backward pass
/// multiplies these by the gradient of the loss. Where the logits of all rows take less memory than that, they are
/// kept. Where each row has a loss of its own ([`Reduction::None`]), gradients have to wait for the gradient of each
/// loss: logits that are not kept are computed again in the backward pass, chunk by chunk, one product more. Which of
/// these it is, and how long chunks are, follows from sizes alone.
///
/// Memory, for R rows, elements of s bytes and V a multiple of 8 or rounded up to one:
/// * evaluation: the chunk, `min(chunk_bytes, s R V)`;
/// * training: the chunk, `s R D` for hidden, `4 V D` for the weight and `4 V` for the bias, the last three until the
///   backward pass and each only where its gradient is wanted; or, if smaller, `s R V` until the backward pass and
///   there `s R D`. With [`linear`](super::linear) and [`cross_entropy`](super::cross_entropy) it is always the latter.
///
/// Numerics: a chunk's gradients are of the sum of its losses, in the dtype of hidden, summed for weight and bias
/// in f32 whatever their type; the gradient of hidden is rounded when it is made and again when it is scaled, so that
/// it differs from the two ops by one more rounding. In f16 the gradients of logits carry no scale of the loss:
/// probabilities below 6e-8 are lost there. Chunks are added in their order.
///
/// ```
/// use bmtrain_core::ops::{self, LinearCrossEntropy};
/// use bmtrain_core::{Ctx, DType, Device, Result, Segment, Tensor, Var};
///
/// # fn main() -> Result<()> {
/// let device = Device::cpu(1)?;
/// let hidden = Tensor::full_in(&device, [2, 3, 8], DType::F32, 0.1, Segment::Activations)?; // [B, L, D]
/// let table = Tensor::full_in(&device, [100, 8], DType::F32, 0.2, Segment::Parameters)?; // [V, D]
/// // The next token of each position; the last one has none.
/// let next = Tensor::from_slice_in(&device, [2, 3], &[7i64, 1, -100, 0, 99, -100], Segment::Activations)?;
/// let (hidden, table) = (Var::constant(hidden), Var::constant(table));
/// let cx = Ctx::inference(&device);
/// let loss = ops::linear_cross_entropy(&cx, &hidden, &table, None, &next, &LinearCrossEntropy::default())?;
/// assert!((loss.value().item()? - 100f32.ln()).abs() < 1e-5);
/// # Ok(())
/// # }
/// ```
pub fn linear_cross_entropy(
    cx: &Ctx,
    hidden: &Var,
    weight: &Var,
    bias: Option<&Var>,
    targets: &Tensor,
    options: &LinearCrossEntropy,
) -> Result<Var> {
    let [n, depth] = check_linear(OP, hidden.shape(), weight, bias)?;
    let (rows, shard) = (hidden.shape().rows(), options.shard.as_ref());
    expect_elements(OP, "targets", rows, targets.shape())?;
    let classes = shard.map_or(ShardClasses::all(n), VocabularyShard::classes);
    if classes.total == 0 || classes.count > n {
        let expected = format!("a row for each of at least {} classes", classes.count.max(1));
        return Err(Error::shape(OP, "weight", expected, weight.shape()));
    }
    let absent = hidden.detach();
    let inputs = [hidden, weight, bias.unwrap_or(&absent)];
    let recorded = |input: &Var| cx.is_recording() && input.needs_grad();
    let wanted = Wanted { hidden: recorded(hidden), weight: recorded(weight), bias: bias.is_some_and(recorded) };
    let reduction = options.loss.reduction;
    let size = Size { rows, classes: n, columns: n.next_multiple_of(plan::ALIGNED), depth };
    // Ranks communicate for each chunk: the chunks must not depend on the number of classes of a rank.
    let each = Size { classes: shard.map_or(n, VocabularyShard::each), ..size };
    let plan = LogitsPlan::new(each, hidden.dtype(), wanted, reduction == Reduction::None, options.chunk_bytes);

    let head = Head {
        hidden: hidden.value().reshape([rows, depth])?,
        weight: weight.value().clone(),
        bias: bias.map(|bias| bias.value().clone()),
        terms: Terms::new(cx.device(), targets, classes, &options.loss)?,
        shard: shard.filter(|shard| !shard.is_alone()).cloned(),
        size,
    };
    let losses = Storage::empty(cx.device(), rows, DType::F32, Segment::Activations)?; // [rows]
    let forward = match plan {
        LogitsPlan::Chunks(at_once) => Forward::Made(chunks(&head, &losses, at_once, wanted)?),
        LogitsPlan::Hold => hold(&head, &losses)?,
        LogitsPlan::Recompute(at_once) => recompute(&head, &losses, at_once)?,
    };
    let losses = owned(losses, targets.shape())?; // [..]
    let totals = head.terms.totals(&losses)?; // [3]
    let value = match reduction {
        Reduction::Mean => totals.slice(2..3)?,
        Reduction::Sum => totals.slice(0..1)?,
        Reduction::None => losses,
    };
    let divisor = if reduction == Reduction::Mean { Some(totals.slice(1..2)?) } else { None };
    let shapes = [hidden.shape(), weight.shape()];
    let dtypes = [hidden.dtype(), weight.dtype(), bias.map_or(weight.dtype(), Var::dtype)];
    Ok(cx.record(value, &inputs, || {
        let kept = match forward {
            Forward::Made(gradients) => Kept::Gradients(gradients),
            Forward::Held { logits, lse } => {
                let Head { hidden, terms, shard, .. } = head;
                let (hidden, weight) = (wanted.weight.then_some(hidden), wanted.hidden.then(|| Saved::of(weight)));
                Kept::Logits(Held { logits, lse, hidden, weight, terms, shard, size })
            }
            Forward::Dropped { lse, at_once } => {
                let Head { hidden, terms, shard, .. } = head;
                let (weight, bias) = (Saved::of(weight), bias.map(Saved::of));
                Kept::Inputs(Recomputed { hidden, weight, bias, lse, terms, shard, size, at_once, wanted })
            }
        };
        Box::new(LinearCrossEntropyBackward { kept, divisor, shapes, dtypes })
    }))
}

enum Forward {
    Made(Gradients),
    /// With the log-sum-exp of each row.
    Held {
        logits: Storage,
        lse: Tensor,
    },
    /// With the log-sum-exp of each row, and the number of rows at a time.
    Dropped {
        lse: Tensor,
        at_once: usize,
    },
}

/// A storage that is complete, as the only tensor on its memory.
fn owned(storage: Storage, shape: impl Into<Shape>) -> Result<Tensor> {
    storage.tensor(0, shape)
}

/// The losses of all rows at once; their logits stay.
fn hold(head: &Head, losses: &Storage) -> Result<Forward> {
    let (device, Size { rows, columns, .. }) = (head.hidden.device(), head.size);
    let logits = Storage::empty(device, rows * columns, head.hidden.dtype(), Segment::Activations)?; // [rows, columns]
    let mut lse = Tensor::empty_in(device, [rows], DType::F32, Segment::Activations)?; // [rows]
    head.losses(0..rows, &logits, losses, lse.view_mut()?)?;
    Ok(Forward::Held { logits, lse })
}

/// The losses of all rows, chunk by chunk, whose logits are dropped.
fn recompute(head: &Head, losses: &Storage, at_once: usize) -> Result<Forward> {
    let (device, Size { rows, columns, .. }) = (head.hidden.device(), head.size);
    let logits = Storage::empty(device, at_once * columns, head.hidden.dtype(), Segment::Activations)?;
    let mut lse = Tensor::empty_in(device, [rows], DType::F32, Segment::Activations)?; // [rows]
    for first in (0..rows).step_by(at_once.max(1)) {
        let chunk = first..rows.min(first + at_once);
        head.losses(chunk.clone(), &logits, losses, lse.view_mut()?.part(chunk.start, chunk.len())?)?;
    }
    Ok(Forward::Dropped { lse, at_once })
}

/// The losses of all rows, and the gradients of their sum as far as they are wanted, chunk by chunk.
fn chunks(head: &Head, losses: &Storage, at_once: usize, wanted: Wanted) -> Result<Gradients> {
    let (device, Size { rows, columns, .. }) = (head.hidden.device(), head.size);
    let elements = at_once * columns;
    let logits = Storage::empty(device, elements, head.hidden.dtype(), Segment::Activations)?; // [at_once, columns]
    let sums = Sums::new(head, wanted)?;
    // With a shard, an all-gather of statistics comes between the logits and their gradient.
    let apart = match head.shard.is_some() || !wanted.any() {
        true => Some((
            Storage::empty(device, at_once, DType::F32, Segment::Activations)?, // [at_once]
            Tensor::full_in(device, [1], DType::F32, 1.0, Segment::Activations)?, // [1]
        )),
        false => None,
    };
    for first in (0..rows).step_by(at_once.max(1)) {
        let chunk = first..rows.min(first + at_once);
        match &apart {
            None => head.losses_and_gradient(chunk.clone(), &logits, losses)?,
            Some((lse, one)) => {
                head.losses(chunk.clone(), &logits, losses, lse.view_mut(0..chunk.len())?)?;
                if wanted.any() {
                    head.gradient(chunk.clone(), &logits, lse.view(0..chunk.len())?, one, None)?;
                }
            }
        }
        if wanted.any() {
            let dlogits = logits.view(0..chunk.len() * columns)?;
            sums.add(head, chunk, dlogits)?;
        }
    }
    sums.finish(head)
}
