//! Streaming attention over separate projections ([`attention`]) or one fused projection ([`attention_fused`]).
//!
//! Heads are read where the projections wrote them, and gradients are written where the projections will read them:
//! nothing is permuted, and no `[L, S]` matrix of scores is kept.

use super::{bytes_of, empty, expect_shape, only};
use crate::autograd::{Backward, BackwardCtx, Ctx, Grads, Var};
use crate::buffer::{View, ViewMut};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{AttentionBackward, AttentionForward, AttentionShape, Bias, Dest, Dropout, Heads, HeadsMut, Mask};
use crate::pool::Segment;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Which keys a query sees, besides the causal rule. A query that sees no key gets zeros.
#[derive(Debug, Clone, Copy, Default)]
pub enum AttentionMask<'a> {
    /// All.
    #[default]
    None,
    /// u8 `[B, S]`, 1 for a key that may be seen.
    Padding(&'a Tensor),
    /// u8 `[B, L, S]`, 1 for a key that this query may see.
    Full(&'a Tensor),
}

/// How attention is computed.
#[derive(Debug, Clone, Copy)]
pub struct AttentionOptions<'a> {
    /// Query heads, N.
    pub heads: usize,
    /// Key and value heads, K; a divisor of `heads`.
    pub kv_heads: usize,
    /// Length of a head, H.
    pub head_size: usize,
    /// Factor of the scores, commonly `1 / sqrt(H)`.
    pub scale: f32,
    /// Query `l` sees key `s` only if `s <= l + S - L`.
    pub causal: bool,
    /// Further restriction of the keys.
    pub mask: AttentionMask<'a>,
    /// Added to the scaled scores, `[1 or B, N, L, S]`.
    pub bias: Option<&'a Var>,
    /// Applied to the probabilities.
    pub dropout: Option<Dropout>,
}

impl AttentionOptions<'_> {
    /// As many key heads as query heads, scores divided by `sqrt(head_size)`, everything seen, nothing dropped.
    pub fn new(heads: usize, head_size: usize) -> Self {
        AttentionOptions {
            heads,
            kv_heads: heads,
            head_size,
            scale: 1.0 / (head_size as f32).sqrt(),
            causal: false,
            mask: AttentionMask::None,
            bias: None,
            dropout: None,
        }
    }
}

/// `dropout(softmax(scale * q k^T + bias, masked)) v` for every head.
///
/// Shapes: q `[B, L, N*H]`, k and v `[B, S, K*H]` → `[B, L, N*H]`.
/// Numerics: scores, softmax and sums in f32. Saves q, k, v, the result and one number for each row and head.
///
/// # Errors
/// Shapes that do not fit, a mask that is not u8, a failing device.
pub fn attention(cx: &Ctx, q: &Var, k: &Var, v: &Var, options: &AttentionOptions<'_>) -> Result<Var> {
    let [batch, queries, _] = q.dims("attention")?;
    let [_, keys, _] = k.dims("attention")?;
    let call = Call::new("attention", options, batch, queries, keys)?;
    expect_shape("attention", "q", Shape::from([batch, queries, call.width()]), q.shape())?;
    expect_shape("attention", "k", Shape::from([batch, keys, call.kv_width()]), k.shape())?;
    expect_shape("attention", "v", Shape::from([batch, keys, call.kv_width()]), v.shape())?;
    let mut out = empty(cx, q.shape(), q.dtype())?; // [B, L, N*H]
    let lse = call.forward(cx.device(), separate(&call, q.value(), k.value(), v.value())?, &mut out)?;
    let saved = out.clone();
    let absent = q.detach();
    Ok(cx.record(out, &[q, k, v, options.bias.unwrap_or(&absent)], || {
        let qkv = [q.value().clone(), k.value().clone(), v.value().clone()];
        Box::new(SeparateBackward { call, qkv, out: saved, lse })
    }))
}

/// As [`attention`], with the three projections side by side in one tensor, whose gradient is one tensor too.
///
/// Shapes: qkv `[B, L, (N + 2K) * H]`, queries first, values last → `[B, L, N*H]`.
///
/// # Errors
/// As [`attention`].
pub fn attention_fused(cx: &Ctx, qkv: &Var, options: &AttentionOptions<'_>) -> Result<Var> {
    let [batch, length, _] = qkv.dims("attention_fused")?;
    let call = Call::new("attention_fused", options, batch, length, length)?;
    expect_shape("attention_fused", "qkv", Shape::from([batch, length, call.fused_width()]), qkv.shape())?;
    let mut out = empty(cx, [batch, length, call.width()], qkv.dtype())?; // [B, L, N*H]
    let lse = call.forward(cx.device(), fused(&call, qkv.value())?, &mut out)?;
    let saved = out.clone();
    let absent = qkv.detach();
    Ok(cx.record(out, &[qkv, options.bias.unwrap_or(&absent)], || {
        Box::new(FusedBackward { call, qkv: qkv.value().clone(), out: saved, lse })
    }))
}

/// A mask that is kept for the way back.
#[derive(Debug)]
enum SavedMask {
    None,
    Padding(Tensor),
    Full(Tensor),
}

/// Sizes and settings of one call, checked.
#[derive(Debug)]
struct Call {
    shape: AttentionShape,
    scale: f32,
    causal: bool,
    mask: SavedMask,
    bias: Option<Tensor>,
    dropout: Option<Dropout>,
}

impl Call {
    fn new(
        op: &'static str,
        options: &AttentionOptions<'_>,
        batch: usize,
        queries: usize,
        keys: usize,
    ) -> Result<Self> {
        let AttentionOptions { heads, kv_heads, head_size, scale, causal, dropout, .. } = *options;
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
        if let Some(bias) = options.bias {
            let [sequences, ..] = bias.dims::<4>(op)?;
            let sequences = if sequences == batch { batch } else { 1 };
            expect_shape(op, "bias", Shape::from([sequences, heads, queries, keys]), bias.shape())?;
        }
        let bias = options.bias.map(|bias| bias.value().clone());
        let shape = AttentionShape { batch, heads, kv_heads, queries, keys, head_size };
        Ok(Call { shape, scale, causal, mask, bias, dropout })
    }

    /// Elements of a query row: N * H.
    fn width(&self) -> usize {
        self.shape.heads * self.shape.head_size
    }

    /// Elements of a key row: K * H.
    fn kv_width(&self) -> usize {
        self.shape.kv_heads * self.shape.head_size
    }

    fn fused_width(&self) -> usize {
        self.width() + 2 * self.kv_width()
    }

    fn mask(&self) -> Result<Mask<'_>> {
        Ok(match &self.mask {
            SavedMask::None => Mask::None,
            SavedMask::Padding(mask) => Mask::Padding(mask.view()?),
            SavedMask::Full(mask) => Mask::Full(mask.view()?),
        })
    }

    fn bias(&self) -> Result<Option<Bias<'_>>> {
        let Some(bias) = &self.bias else { return Ok(None) };
        // With a single sequence both readings are the same.
        let per_sequence = bias.shape().dims().first() == Some(&self.shape.batch);
        Ok(Some(Bias { view: bias.view()?, per_sequence }))
    }

    /// One f32 for every row of every head.
    fn rows(&self, device: &Device, segment: Segment) -> Result<Tensor> {
        let AttentionShape { batch, heads, queries, .. } = self.shape;
        Tensor::empty(device, [batch, heads, queries], DType::F32, segment) // [B, N, L]
    }

    fn heads_mut<'a>(&self, view: ViewMut<'a>, rows: usize, row_stride: usize, add: bool) -> HeadsMut<'a> {
        HeadsMut { view, batch_stride: rows * row_stride, row_stride, add }
    }

    fn forward(&self, device: &Device, [q, k, v]: [Heads<'_>; 3], out: &mut Tensor) -> Result<Tensor> {
        let mut lse = self.rows(device, Segment::Activations)?; // [B, N, L]
        device.launch(AttentionForward {
            shape: self.shape,
            scale: self.scale,
            causal: self.causal,
            mask: self.mask()?,
            bias: self.bias()?,
            dropout: self.dropout,
            q,
            k,
            v,
            out: self.heads_mut(out.view_mut()?, self.shape.queries, self.width(), false),
            lse: lse.view_mut()?,
        })?;
        Ok(lse)
    }

    fn backward<'a>(
        &'a self,
        device: &Device,
        [q, k, v]: [Heads<'a>; 3],
        saved: Saved<'a>,
        [dq, dk, dv]: [HeadsMut<'a>; 3],
        dbias: Option<Dest<'a>>,
    ) -> Result<()> {
        let mut delta = self.rows(device, Segment::Workspace)?; // [B, N, L]
        device.launch(AttentionBackward {
            shape: self.shape,
            scale: self.scale,
            causal: self.causal,
            mask: self.mask()?,
            bias: self.bias()?,
            dropout: self.dropout,
            q,
            k,
            v,
            out: heads(saved.out.view()?, self.shape.queries, self.width()),
            lse: saved.lse.view()?,
            dout: heads(saved.dout.view()?, self.shape.queries, self.width()),
            delta: delta.view_mut()?,
            dq,
            dk,
            dv,
            dbias,
        })
    }

    /// A gradient of the bias, if there is one and it is wanted: f32, whatever the bias is.
    fn dbias(&self, device: &Device, wanted: bool) -> Result<Option<Tensor>> {
        match &self.bias {
            Some(bias) if wanted => Ok(Some(Tensor::empty(device, bias.shape(), DType::F32, Segment::Activations)?)),
            _ => Ok(None),
        }
    }
}

/// What the backward pass reads besides q, k and v.
#[derive(Clone, Copy)]
struct Saved<'a> {
    out: &'a Tensor,
    lse: &'a Tensor,
    dout: &'a Tensor,
}

/// Heads in rows of `row_stride`, `rows` of them to a sequence.
fn heads(view: View<'_>, rows: usize, row_stride: usize) -> Heads<'_> {
    Heads { view, batch_stride: rows * row_stride, row_stride }
}

fn separate<'a>(call: &Call, q: &'a Tensor, k: &'a Tensor, v: &'a Tensor) -> Result<[Heads<'a>; 3]> {
    let AttentionShape { queries, keys, .. } = call.shape;
    Ok([
        heads(q.view()?, queries, call.width()),
        heads(k.view()?, keys, call.kv_width()),
        heads(v.view()?, keys, call.kv_width()),
    ])
}

fn fused<'a>(call: &Call, qkv: &'a Tensor) -> Result<[Heads<'a>; 3]> {
    let (width, kv_width, stride) = (call.width(), call.kv_width(), call.fused_width());
    let rows = call.shape.queries;
    let part = |start: usize, width: usize| {
        let len = (qkv.elements() + width).saturating_sub(stride);
        let start = if len == 0 { 0 } else { start };
        Ok::<_, Error>(heads(qkv.view()?.part(start, len)?, rows, stride))
    };
    Ok([part(0, width)?, part(width, kv_width)?, part(width + kv_width, kv_width)?])
}

#[derive(Debug)]
struct SeparateBackward {
    call: Call,
    qkv: [Tensor; 3],
    out: Tensor,
    lse: Tensor,
}

impl Backward for SeparateBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let SeparateBackward { call, qkv: [q, k, v], out, lse } = *self;
        let dout = only("attention", dy)?;
        let device = cx.device().clone();
        let mut dbias = call.dbias(&device, cx.needs(3))?; // [1 or B, N, L, S]
        // The kernel makes all three; what nobody wants goes to scratch.
        let mut scratch = [None, None, None];
        for (index, (scratch, wanted)) in scratch.iter_mut().zip([&q, &k, &v]).enumerate() {
            if !cx.needs(index) {
                *scratch = Some(Tensor::empty(&device, wanted.shape(), wanted.dtype(), Segment::Workspace)?);
            }
        }
        let AttentionShape { queries, keys, .. } = call.shape;
        let [unwanted_q, unwanted_k, unwanted_v] = &mut scratch;
        let mut run = |device: &Device, [dq, dk, dv]: [Option<Dest<'_>>; 3], dbias: Option<&mut Tensor>| {
            let dests = [
                call.dest(dq, unwanted_q.as_mut(), queries, call.width())?,
                call.dest(dk, unwanted_k.as_mut(), keys, call.kv_width())?,
                call.dest(dv, unwanted_v.as_mut(), keys, call.kv_width())?,
            ];
            let dbias = dbias.map(Tensor::view_mut).transpose()?.map(|view| Dest { view, add: false });
            let saved = Saved { out: &out, lse: &lse, dout: &dout };
            call.backward(device, separate(&call, &q, &k, &v)?, saved, dests, dbias)
        };
        if (0..3).any(|index| cx.needs(index)) {
            let requests = [(0, q.shape(), q.dtype()), (1, k.shape(), k.dtype()), (2, v.shape(), v.dtype())];
            cx.write_many(requests, |device, dests| run(device, dests, dbias.as_mut()))?;
        } else {
            run(&device, [None, None, None], dbias.as_mut())?;
        }
        dbias.map_or(Ok(()), |dbias| cx.give(3, dbias))
    }

    fn saved_bytes(&self) -> usize {
        bytes_of(self.qkv.iter().chain([&self.out, &self.lse]))
    }
}

impl Call {
    /// The destination of one gradient: where it is wanted, or scratch.
    fn dest<'a>(
        &self,
        wanted: Option<Dest<'a>>,
        scratch: Option<&'a mut Tensor>,
        rows: usize,
        stride: usize,
    ) -> Result<HeadsMut<'a>> {
        match (wanted, scratch) {
            (Some(Dest { view, add }), _) => Ok(self.heads_mut(view, rows, stride, add)),
            (None, Some(scratch)) => Ok(self.heads_mut(scratch.view_mut()?, rows, stride, false)),
            (None, None) => Err(Error::argument("attention", "a gradient has no destination")),
        }
    }
}

#[derive(Debug)]
struct FusedBackward {
    call: Call,
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
}

impl Backward for FusedBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let FusedBackward { call, qkv, out, lse } = *self;
        let dout = only("attention_fused", dy)?;
        let device = cx.device().clone();
        let mut dbias = call.dbias(&device, cx.needs(1))?; // [1 or B, N, L, S]
        let run = |device: &Device, Dest { view, add }: Dest<'_>, dbias: Option<&mut Tensor>| {
            let stride = call.fused_width();
            let views = view.split_columns(stride, [call.width(), call.kv_width(), call.kv_width()])?;
            let dests = views.map(|view| call.heads_mut(view, call.shape.queries, stride, add));
            let dbias = dbias.map(Tensor::view_mut).transpose()?.map(|view| Dest { view, add: false });
            let saved = Saved { out: &out, lse: &lse, dout: &dout };
            call.backward(device, fused(&call, &qkv)?, saved, dests, dbias)
        };
        if cx.needs(0) {
            cx.write(0, qkv.shape(), qkv.dtype(), |device, dest| run(device, dest, dbias.as_mut()))?;
        } else {
            let mut scratch = Tensor::empty(&device, qkv.shape(), qkv.dtype(), Segment::Workspace)?;
            run(&device, Dest { view: scratch.view_mut()?, add: false }, dbias.as_mut())?;
        }
        dbias.map_or(Ok(()), |dbias| cx.give(1, dbias))
    }

    fn saved_bytes(&self) -> usize {
        bytes_of([&self.qkv, &self.out, &self.lse])
    }
}
