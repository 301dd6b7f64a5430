//! One call of attention, with its heads in one to three tensors: checks, launch, and saved tensors.

use super::{AttentionMask, AttentionOptions, Documents, HeadShard};
use crate::kernel::{
    AttentionBackward, AttentionForward, AttentionInputs, AttentionShape, Bias, ColumnSum, Dropout, Heads, HeadsMut,
    Mask,
};
use crate::ops::*;
use crate::view::ViewMut;

#[derive(Debug)]
enum SavedMask {
    None,
    Padding(Tensor),
    Full(Tensor),
}

#[derive(Debug)]
pub(super) struct Call {
    op: &'static str,
    shape: AttentionShape,
    scale: f32,
    soft_cap: Option<f32>,
    causal: bool,
    window: Option<usize>,
    mask: SavedMask,
    documents: Option<Documents>,
    bias: Option<Tensor>,
    dropout: Option<Dropout>,
    shard: Option<HeadShard>,
}

impl Call {
    pub(super) fn new(
        op: &'static str,
        options: &AttentionOptions<'_>,
        batch: usize,
        queries: usize,
        keys: usize,
    ) -> Result<Self> {
        let AttentionOptions { heads, kv_heads, head_size, scale, soft_cap, causal, window, dropout, shard, .. } =
            *options;
        if heads == 0 || kv_heads == 0 || head_size == 0 || !heads.is_multiple_of(kv_heads) {
            let got = format!("{heads} heads of {head_size} over {kv_heads}");
            return Err(Error::shape(op, "heads", "a multiple of the kv heads, none of them 0", got));
        }
        let mask = match options.mask {
            AttentionMask::None => SavedMask::None,
            AttentionMask::Padding(mask) => {
                expect_shape(op, "padding mask", Shape::from([batch, keys]), mask.shape())?;
                SavedMask::Padding(mask.clone())
            }
            AttentionMask::Full(mask) => {
                expect_shape(op, "mask", Shape::from([batch, queries, keys]), mask.shape())?;
                SavedMask::Full(mask.clone())
            }
        };
        if let Some(documents) = options.documents {
            let bounds = documents.bounds().shape();
            expect_shape(op, "documents", Shape::from([batch, 2, queries]), bounds)?;
        }
        if let Some(bias) = options.bias {
            let [sequences, _, rows, _] = bias.dims::<4>(op)?;
            let sequences = if sequences == batch { batch } else { 1 };
            let rows = if rows == queries { queries } else { 1 };
            expect_shape(op, "bias", Shape::from([sequences, heads, rows, keys]), bias.shape())?;
        }
        if let Some(HeadShard { first, total }) = shard.filter(|shard| shard.first + heads > shard.total) {
            return Err(Error::shape(op, "heads", format!("at most {total}"), format!("{heads} from {first}")));
        }
        let (bias, documents) = (options.bias.map(|bias| bias.value().clone()), options.documents.cloned());
        let shape = AttentionShape { batch, heads, kv_heads, queries, keys, head_size };
        Ok(Call { op, shape, scale, soft_cap, causal, window, mask, documents, bias, dropout, shard })
    }

    /// L.
    pub(super) fn queries(&self) -> usize {
        self.shape.queries
    }

    /// Elements of a query row: N * H.
    pub(super) fn width(&self) -> usize {
        self.shape.heads * self.shape.head_size
    }

    /// Elements of a key row: K * H.
    pub(super) fn kv_width(&self) -> usize {
        self.shape.kv_heads * self.shape.head_size
    }

    /// Attend, with queries, keys and values in these tensors, and leave the node on the tape.
    pub(super) fn record<const M: usize>(self, cx: &Ctx, inputs: [&Var; M], bias: Option<&Var>) -> Result<Var> {
        let tensors = inputs.map(|input| input.value().clone());
        let AttentionShape { batch, queries, .. } = self.shape;
        let mut out = empty(cx, [batch, queries, self.width()], tensors[0].dtype())?; // [B, L, N*H]
        let lse = self.attend(cx.device(), self.read(&tensors)?, &mut out)?; // [B, N, L]
        let saved = out.clone();
        let absent = inputs[0].detach();
        let inputs: Vec<&Var> = inputs.into_iter().chain([bias.unwrap_or(&absent)]).collect();
        Ok(cx.record(out, &inputs, || Box::new(Node { call: self, tensors, out: saved, lse })))
    }

    /// The launches of a call: one for all sequences, or with dropout of some of the heads one for each sequence.
    /// Kernels number the probabilities of a launch without gaps; heads of other ranks are a gap after each sequence.
    fn launches(&self) -> Vec<Sequences> {
        let AttentionShape { batch, heads, .. } = self.shape;
        match (self.shard, self.dropout) {
            (Some(shard), Some(_)) if shard.total > heads => {
                (0..batch).map(|first| Sequences { first, count: 1, total: batch }).collect()
            }
            _ => vec![Sequences { first: 0, count: batch, total: batch }],
        }
    }

    /// The dropout of a launch.
    fn dropout(&self, of: Sequences) -> Option<Dropout> {
        let AttentionShape { heads, queries, keys, .. } = self.shape;
        let dropout = self.dropout?;
        let HeadShard { first, total } = self.shard.unwrap_or(HeadShard { first: 0, total: heads });
        let head = of.first * total + first;
        Some(Dropout { offset: dropout.offset + (head * queries * keys) as u64, ..dropout })
    }

    fn mask(&self, of: Sequences) -> Result<Mask<'_>> {
        let AttentionShape { queries, keys, .. } = self.shape;
        Ok(match &self.mask {
            SavedMask::None => Mask::None,
            SavedMask::Padding(mask) => Mask::Padding(of.part(mask.view()?, keys)?),
            SavedMask::Full(mask) => Mask::Full(of.part(mask.view()?, queries * keys)?),
        })
    }

    fn documents(&self, of: Sequences) -> Result<Option<View<'_>>> {
        let bounds =
            self.documents.as_ref().map(|documents| of.part(documents.bounds().view()?, 2 * self.shape.queries));
        bounds.transpose()
    }

    fn bias(&self, of: Sequences) -> Result<Option<Bias<'_>>> {
        let Some(bias) = &self.bias else { return Ok(None) };
        let [sequences, heads, rows, keys] = bias.dims::<4>(self.op)?;
        // With a single sequence or query both readings are the same.
        let (per_sequence, per_query) = (sequences == self.shape.batch, rows == self.shape.queries);
        let view = if per_sequence { of.part(bias.view()?, heads * rows * keys)? } else { bias.view()? };
        Ok(Some(Bias { view, per_sequence, per_query }))
    }

    /// One f32 for every row of every head.
    fn rows(&self, device: &Device, segment: Segment) -> Result<Tensor> {
        let AttentionShape { batch, heads, queries, .. } = self.shape;
        Tensor::empty_in(device, [batch, heads, queries], DType::F32, segment) // [B, N, L]
    }

    /// Runs attention on heads in any tensors; returns the log-sum-exps for the backward pass, `[B, N, L]`.
    pub(super) fn attend(&self, device: &Device, heads: [Heads<'_>; 3], out: &mut Tensor) -> Result<Tensor> {
        self.attend_into(device, heads, out.dest(false)?)
    }

    /// Attention with the result `[B, L, N*H]` at any place.
    pub(super) fn attend_into(&self, device: &Device, [q, k, v]: [Heads<'_>; 3], out: Dest<'_>) -> Result<Tensor> {
        let mut lse = self.rows(device, Segment::Activations)?; // [B, N, L]
        let [mut out] = columns_mut(out, self.shape.queries, [self.width()])?;
        for of in self.launches() {
            let (inputs, out) = (self.inputs([q, k, v], of)?, of.heads_mut(&mut out)?);
            let lse = of.part_mut(lse.view_mut()?, self.shape.heads * self.shape.queries)?;
            device.launch(AttentionForward { inputs, out, lse })?;
        }
        Ok(lse)
    }

    fn inputs<'a>(&'a self, [q, k, v]: [Heads<'a>; 3], of: Sequences) -> Result<AttentionInputs<'a>> {
        let Call { shape, scale, soft_cap, causal, window, .. } = *self;
        let (mask, documents, bias) = (self.mask(of)?, self.documents(of)?, self.bias(of)?);
        let dropout = self.dropout(of);
        let (shape, [q, k, v]) =
            (AttentionShape { batch: of.count, ..shape }, [of.heads(q)?, of.heads(k)?, of.heads(v)?]);
        Ok(AttentionInputs { shape, scale, soft_cap, causal, window, mask, documents, bias, dropout, q, k, v })
    }

    /// Queries, keys and values in three tensors, in two, or in one.
    fn read<'a>(&self, tensors: &'a [Tensor]) -> Result<[Heads<'a>; 3]> {
        let (AttentionShape { queries, keys, .. }, width, kv) = (self.shape, self.width(), self.kv_width());
        match tensors {
            [q, k, v] => {
                let ([q], [k], [v]) = (columns(q, queries, [width])?, columns(k, keys, [kv])?, columns(v, keys, [kv])?);
                Ok([q, k, v])
            }
            [q, kv_of] => {
                let ([q], [k, v]) = (columns(q, queries, [width])?, columns(kv_of, keys, [kv, kv])?);
                Ok([q, k, v])
            }
            [qkv] => columns(qkv, queries, [width, kv, kv]),
            _ => Err(self.misplaced()),
        }
    }

    fn written<'a>(&self, dests: Vec<Dest<'a>>) -> Result<[HeadsMut<'a>; 3]> {
        let (AttentionShape { queries, keys, .. }, width, kv) = (self.shape, self.width(), self.kv_width());
        let mut dests = dests.into_iter();
        match (dests.next(), dests.next(), dests.next()) {
            (Some(dq), Some(dk), Some(dv)) => {
                let ([dq], [dk], [dv]) =
                    (columns_mut(dq, queries, [width])?, columns_mut(dk, keys, [kv])?, columns_mut(dv, keys, [kv])?);
                Ok([dq, dk, dv])
            }
            (Some(dq), Some(dkv), None) => {
                let ([dq], [dk, dv]) = (columns_mut(dq, queries, [width])?, columns_mut(dkv, keys, [kv, kv])?);
                Ok([dq, dk, dv])
            }
            (Some(dqkv), None, _) => columns_mut(dqkv, queries, [width, kv, kv]),
            _ => Err(self.misplaced()),
        }
    }

    fn misplaced(&self) -> Error {
        Error::argument(self.op, "queries, keys and values are in one, two or three tensors")
    }

    /// A gradient of the bias, if there is one and it is wanted: f32, whatever the bias is, with a row for every query.
    fn dbias(&self, device: &Device, wanted: bool) -> Result<Option<Tensor>> {
        let AttentionShape { heads, queries, keys, .. } = self.shape;
        match &self.bias {
            Some(bias) if wanted => {
                let [sequences, ..] = bias.dims::<4>(self.op)?;
                Tensor::empty_in(device, [sequences, heads, queries, keys], DType::F32, Segment::Activations).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Destination of a launch's part of the bias' gradient.
    fn dbias_of<'a>(&self, dbias: &'a mut ViewMut<'_>, of: Sequences) -> Result<Dest<'a>> {
        let AttentionShape { batch, heads, queries, keys, .. } = self.shape;
        let (sequence, view) = (heads * queries * keys, dbias.reborrow());
        Ok(match view.len() == batch * sequence {
            true => Dest { view: of.part_mut(view, sequence)?, add: false },
            // One bias for all sequences: their gradients are added.
            false => Dest { view, add: of.first > 0 },
        })
    }

    /// The gradient in the shape of the bias: sums over the queries where they share a row.
    fn dbias_like_bias(&self, device: &Device, dbias: Tensor) -> Result<Tensor> {
        let AttentionShape { queries: rows, keys: columns, .. } = self.shape;
        let Some(bias) = self.bias.as_ref().filter(|bias| bias.shape() != dbias.shape()) else { return Ok(dbias) };
        let mut sums = Tensor::empty_in(device, bias.shape(), DType::F32, Segment::Activations)?; // [1 or B, N, 1, S]
        for head in 0..bias.elements().checked_div(columns).unwrap_or(0) {
            let x = dbias.view()?.part(head * rows * columns, rows * columns)?;
            let out = Dest { view: sums.view_mut()?.part(head * columns, columns)?, add: false };
            device.launch(ColumnSum { rows, columns, x, out })?;
        }
        Ok(sums)
    }
}

/// The sequences of one launch, among all of a call.
#[derive(Debug, Clone, Copy)]
struct Sequences {
    first: usize,
    count: usize,
    total: usize,
}

impl Sequences {
    /// Their part of what has `each` elements for every sequence.
    fn part<'a>(self, all: View<'a>, each: usize) -> Result<View<'a>> {
        all.part(self.first * each, self.count * each)
    }

    fn part_mut<'a>(self, all: ViewMut<'a>, each: usize) -> Result<ViewMut<'a>> {
        all.part(self.first * each, self.count * each)
    }

    /// First element and number of elements of their part of heads, to the last element of the last sequence.
    fn span(self, len: usize, batch_stride: usize) -> (usize, usize) {
        let left_out = (self.total - self.count) * batch_stride;
        if len == 0 { (0, 0) } else { (self.first * batch_stride, len.saturating_sub(left_out)) }
    }

    fn heads(self, all: Heads<'_>) -> Result<Heads<'_>> {
        let (start, len) = self.span(all.view.len(), all.batch_stride);
        Ok(Heads { view: all.view.part(start, len)?, ..all })
    }

    fn heads_mut<'a>(self, all: &'a mut HeadsMut<'_>) -> Result<HeadsMut<'a>> {
        let (start, len) = self.span(all.view.len(), all.batch_stride);
        let HeadsMut { batch_stride, row_stride, add, .. } = *all;
        Ok(HeadsMut { view: all.view.reborrow().part(start, len)?, batch_stride, row_stride, add })
    }
}

/// Neighbouring columns of a tensor of rows, `rows` of them to a sequence.
pub(super) fn columns<const N: usize>(x: &Tensor, rows: usize, widths: [usize; N]) -> Result<[Heads<'_>; N]> {
    let row_stride: usize = widths.iter().sum();
    let mut parts = [Heads { view: x.view()?, batch_stride: rows * row_stride, row_stride }; N];
    let mut start = 0;
    for (part, width) in parts.iter_mut().zip(widths) {
        let len = (x.elements() + width).saturating_sub(row_stride);
        part.view = part.view.part(if len == 0 { 0 } else { start }, len)?;
        start += width;
    }
    Ok(parts)
}

fn columns_mut<const N: usize>(dest: Dest<'_>, rows: usize, widths: [usize; N]) -> Result<[HeadsMut<'_>; N]> {
    let Dest { view, add } = dest;
    let row_stride = widths.iter().sum();
    let views = view.split_columns(row_stride, widths)?;
    Ok(views.map(|view| HeadsMut { view, batch_stride: rows * row_stride, row_stride, add }))
}

/// Attention with heads in `M` tensors; input `M` of the node is the bias.
#[derive(Debug)]
struct Node<const M: usize> {
    call: Call,
    tensors: [Tensor; M],
    out: Tensor,
    lse: Tensor,
}

impl<const M: usize> Node<M> {
    fn launch(&self, device: &Device, dout: &Tensor, dests: Vec<Dest<'_>>, dbias: Option<&mut Tensor>) -> Result<()> {
        let call = &self.call;
        let mut delta = call.rows(device, Segment::Workspace)?; // [B, N, L]
        let [out] = columns(&self.out, call.shape.queries, [call.width()])?;
        let [dout] = columns(dout, call.shape.queries, [call.width()])?;
        let [mut dq, mut dk, mut dv] = call.written(dests)?;
        let mut dbias = dbias.map(Tensor::view_mut).transpose()?;
        for of in call.launches() {
            let rows = call.shape.heads * call.shape.queries;
            device.launch(AttentionBackward {
                inputs: call.inputs(call.read(&self.tensors)?, of)?,
                out: of.heads(out)?,
                lse: of.part(self.lse.view()?, rows)?,
                dout: of.heads(dout)?,
                delta: of.part_mut(delta.view_mut()?, rows)?,
                dq: of.heads_mut(&mut dq)?,
                dk: of.heads_mut(&mut dk)?,
                dv: of.heads_mut(&mut dv)?,
                dbias: dbias.as_mut().map(|dbias| call.dbias_of(dbias, of)).transpose()?,
            })?;
        }
        Ok(())
    }
}

impl<const M: usize> Backward for Node<M> {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let dout = only(self.call.op, dy)?;
        let device = cx.device().clone();
        let mut dbias = self.call.dbias(&device, cx.needs(M))?; // [1 or B, N, L, S]
        // The kernel computes all gradients; unused ones go to scratch.
        let mut scratch: [Option<Tensor>; M] = std::array::from_fn(|_| None);
        for (index, (scratch, tensor)) in scratch.iter_mut().zip(&self.tensors).enumerate() {
            if !cx.needs(index) {
                *scratch = Some(Tensor::empty_in(&device, tensor.shape(), tensor.dtype(), Segment::Workspace)?);
            }
        }
        let mut run = |device: &Device, wanted: [Option<Dest<'_>>; M]| {
            let mut dests = Vec::with_capacity(M);
            for (wanted, scratch) in wanted.into_iter().zip(&mut scratch) {
                dests.push(match (wanted, scratch) {
                    (Some(dest), _) => dest,
                    (None, Some(scratch)) => scratch.dest(false)?,
                    (None, None) => return Err(Error::argument(self.call.op, "a gradient has no destination")),
                });
            }
            self.launch(device, &dout, dests, dbias.as_mut())
        };
        if (0..M).any(|index| cx.needs(index)) {
            let requests = std::array::from_fn(|i| (i, self.tensors[i].shape(), self.tensors[i].dtype()));
            cx.write_many(requests, run)?;
        } else {
            run(&device, std::array::from_fn(|_| None))?;
        }
        match dbias {
            Some(dbias) => cx.give(M, self.call.dbias_like_bias(&device, dbias)?),
            None => Ok(()),
        }
    }

    fn saved_bytes(&self) -> usize {
        bytes_of(self.tensors.iter().chain([&self.out, &self.lse]))
    }
}
