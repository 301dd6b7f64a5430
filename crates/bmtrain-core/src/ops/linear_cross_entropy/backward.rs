//! The backward pass of a head: gradients that are there already are scaled; logits that were kept, or are computed
//! again, are turned into theirs.

use super::OP;
use super::head::gradient;
use super::head::{self, Gradients, Head, Size, Sums};
use super::plan::Wanted;
use crate::comm::{Reduction, tensors};
use crate::kernel::{ColumnSum, ScaleBy};
use crate::ops::cross_entropy::{Terms, VocabularyShard};
use crate::ops::*;
use crate::tensor::Storage;

#[derive(Debug)]
pub(super) struct LinearCrossEntropyBackward {
    pub(super) kept: Kept,
    /// The sum of the rows' weights, where the loss is their mean.
    pub(super) divisor: Option<Tensor>,
    /// Shapes of hidden and weight.
    pub(super) shapes: [Shape; 2],
    /// Dtypes of hidden, weight and bias.
    pub(super) dtypes: [DType; 3],
}

/// State saved by the forward pass.
#[derive(Debug)]
// One for each loss, and the tape has it in a box.
#[allow(clippy::large_enum_variant)]
pub(super) enum Kept {
    Gradients(Gradients),
    Logits(Held),
    Inputs(Recomputed),
}

/// Logits, and what their gradients are multiplied with.
#[derive(Debug)]
pub(super) struct Held {
    /// `[rows, columns]`.
    pub(super) logits: Storage,
    pub(super) lse: Tensor,
    /// Present when the weight's gradient is wanted.
    pub(super) hidden: Option<Tensor>,
    /// Present when the gradient of hidden is wanted.
    pub(super) weight: Option<Saved>,
    pub(super) terms: Terms,
    pub(super) shard: Option<VocabularyShard>,
    pub(super) size: Size,
}

/// Operands from which logits are recomputed and their gradients are computed.
#[derive(Debug)]
pub(super) struct Recomputed {
    pub(super) hidden: Tensor,
    pub(super) weight: Saved,
    pub(super) bias: Option<Saved>,
    /// Log-sum-exp of all rows.
    pub(super) lse: Tensor,
    pub(super) terms: Terms,
    pub(super) shard: Option<VocabularyShard>,
    pub(super) size: Size,
    pub(super) at_once: usize,
    pub(super) wanted: Wanted,
}

impl Backward for LinearCrossEntropyBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let LinearCrossEntropyBackward { kept, divisor, shapes: [hidden, weight], dtypes } = *self;
        let dloss = in_dtype(only(OP, dy)?, DType::F32)?;
        let divisor = divisor.as_ref();
        match kept {
            Kept::Logits(held) => held.backward(&dloss, divisor, hidden, dtypes, cx),
            Kept::Gradients(made) => deliver_all(made, [hidden, weight], dtypes, (&dloss, divisor), cx),
            Kept::Inputs(inputs) => {
                let made = inputs.gradients(&dloss)?;
                let one = Tensor::full_in(cx.device(), [1], DType::F32, 1.0, Segment::Activations)?; // [1]
                deliver_all(made, [hidden, weight], dtypes, (&one, None), cx)
            }
        }
    }

    fn saved_bytes(&self) -> usize {
        match &self.kept {
            Kept::Gradients(Gradients { hidden, weight, bias }) => {
                bytes_of([hidden, weight, bias].into_iter().flatten())
            }
            Kept::Logits(held) => {
                let Held { logits, lse, hidden, .. } = held;
                logits.len() * logits.dtype().size() + bytes_of([lse].into_iter().chain(hidden))
            }
            Kept::Inputs(Recomputed { hidden, lse, .. }) => bytes_of([hidden, lse]),
        }
    }
}

/// Give `dloss / divisor` times these gradients to the inputs.
fn deliver_all(
    made: Gradients,
    [hidden, weight]: [Shape; 2],
    dtypes: [DType; 3],
    (dloss, divisor): (&Tensor, Option<&Tensor>),
    cx: &mut BackwardCtx<'_>,
) -> Result<()> {
    let bias = Shape::from([weight.rows()]);
    let parts = [(2, made.bias, bias), (1, made.weight, weight), (0, made.hidden, hidden)];
    for (index, made, shape) in parts {
        if let Some(made) = made {
            deliver(cx, index, seen_as(made, shape)?, dtypes[index], dloss, divisor)?;
        }
    }
    Ok(())
}

/// The only handle on the memory stays the only one.
fn seen_as(tensor: Tensor, shape: Shape) -> Result<Tensor> {
    tensor.reshape(shape)
}

/// Give `dloss / divisor * made` to an input, in the place of `made` where that is possible.
fn deliver(
    cx: &mut BackwardCtx<'_>,
    index: usize,
    mut made: Tensor,
    dtype: DType,
    dloss: &Tensor,
    divisor: Option<&Tensor>,
) -> Result<()> {
    let (factor, divisor) = (dloss.view()?, divisor.map(Tensor::view).transpose()?);
    if !cx.accumulates(index) && made.dtype() == dtype && made.may_be_overwritten() {
        cx.device().launch(ScaleBy { factor, divisor, x: None, out: made.dest(false)? })?;
        return cx.give(index, made);
    }
    cx.write(index, made.shape(), dtype, |device, out| {
        device.launch(ScaleBy { factor, divisor, x: Some(made.view()?), out })
    })
}

impl Held {
    fn backward(
        self,
        dloss: &Tensor,
        divisor: Option<&Tensor>,
        shape: Shape,
        [hidden_type, weight_type, bias_type]: [DType; 3],
        cx: &mut BackwardCtx<'_>,
    ) -> Result<()> {
        let Held { logits, lse, hidden, weight, terms, shard, size } = self;
        let Size { rows, classes, columns, depth } = size;
        gradient(&terms, columns, 0..rows, &logits, lse.view()?, dloss, divisor)?;
        let dlogits = || logits.view(0..logits.len());
        cx.write(2, Shape::from([classes]), bias_type, |device, dbias| {
            if columns == classes {
                return device.launch(ColumnSum { rows, columns, x: dlogits()?, out: dbias });
            }
            let mut filled = Tensor::empty_in(device, [columns], DType::F32, Segment::Activations)?; // [columns]
            device.launch(ColumnSum { rows, columns, x: dlogits()?, out: filled.dest(false)? })?;
            device.launch(Cast { x: filled.view()?.part(0, classes)?, out: dbias })
        })?;
        if let Some(hidden) = hidden {
            cx.write(1, Shape::from([classes, depth]), weight_type, |device, dweight| {
                head::weight_gradient(device, size, rows, dlogits()?, hidden.view()?, dweight)
            })?;
        }
        let Some(weight) = weight else { return Ok(()) };
        let weight = weight.get()?;
        let Some(shard) = shard else {
            return cx.write(0, shape, hidden_type, |device, dhidden| {
                head::hidden_gradient(device, size, rows, dlogits()?, &weight, dhidden)
            });
        };
        // Each rank's classes give a part, which is not to be added to anything before all are together.
        let mut part = Tensor::empty_in(cx.device(), shape, hidden_type, Segment::Activations)?; // [.., D]
        let out = part.dest(false)?;
        head::hidden_gradient(cx.device(), size, rows, dlogits()?, &weight, out)?;
        cx.give(0, tensors::all_reduce(&**shard.ranks(), part, Reduction::Sum)?)
    }
}

impl Recomputed {
    /// The gradients of the losses of all rows, which have the gradients `dlosses`, chunk by chunk.
    fn gradients(self, dlosses: &Tensor) -> Result<Gradients> {
        let Recomputed { hidden, weight, bias, lse, terms, shard, size, at_once, wanted } = self;
        let (weight, bias) = (weight.get()?, bias.as_ref().map(Saved::get).transpose()?);
        let head = Head { hidden, weight, bias, terms, shard, size };
        let Size { rows, columns, .. } = size;
        let dlosses = dlosses.reshape([rows])?;
        let (device, dtype) = (head.hidden.device(), head.hidden.dtype());
        let logits = Storage::empty(device, at_once * columns, dtype, Segment::Activations)?; // [at_once, columns]
        let sums = Sums::new(&head, wanted)?;
        for first in (0..rows).step_by(at_once.max(1)) {
            let chunk = first..rows.min(first + at_once);
            head.logits(chunk.clone(), &logits)?;
            let lse = lse.view()?.part(chunk.start, chunk.len())?;
            head.gradient(chunk.clone(), &logits, lse, &dlosses.slice(chunk.clone())?, None)?;
            let dlogits = logits.view(0..chunk.len() * columns)?;
            sums.add(&head, chunk, dlogits)?;
        }
        sums.finish(&head)
    }
}
