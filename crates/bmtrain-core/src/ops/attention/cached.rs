//! Attention to keys and values that earlier calls left behind, for decoding word by word. There is no way back through it.

use super::AttentionOptions;
use super::call::{Call, columns};
use crate::autograd::{Ctx, Var};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Dest, Heads, RowCopy};
use crate::ops::{empty, expect_shape};
use crate::pool::Segment;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Keys and values of the tokens so far, side by side, with room for more: `[B, capacity, 2K * H]`, keys first.
#[derive(Debug)]
pub struct KeyValues {
    kv: Tensor,
    /// S.
    length: usize,
}

impl KeyValues {
    /// Room for so many tokens in each of B rows; `width` is K * H.
    ///
    /// # Errors
    /// No memory left.
    pub fn new(device: &Device, rows: usize, capacity: usize, width: usize, dtype: DType) -> Result<Self> {
        let kv = Tensor::empty(device, [rows, capacity, 2 * width], dtype, Segment::Activations)?;
        Ok(KeyValues { kv, length: 0 })
    }

    /// S, tokens of a row so far.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there is none yet.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// B.
    pub fn rows(&self) -> usize {
        self.dims()[0]
    }

    /// Let row `i` go on from what row `from[i]` has; there may be more rows than before, or fewer.
    ///
    /// # Errors
    /// A row that is not there; no memory left; a failing device.
    pub fn reorder(&mut self, from: &[usize]) -> Result<()> {
        let [rows, capacity, width] = self.dims();
        if from.iter().copied().eq(0..rows) {
            return Ok(());
        }
        if let Some(missing) = from.iter().find(|from| **from >= rows) {
            return Err(Error::argument("reorder", format!("row {missing} of {rows}")));
        }
        let device = self.kv.device().clone();
        let mut kv = Tensor::empty(&device, [from.len(), capacity, width], self.kv.dtype(), Segment::Activations)?;
        let (row, columns) = (capacity * width, self.length * width);
        for (to, from) in from.iter().enumerate() {
            let out = Dest { view: kv.view_mut()?.part(to * row, columns)?, add: false };
            let x = self.kv.view()?.part(from * row, columns)?;
            device.launch(RowCopy { rows: 1, columns, x_ld: columns, x, out_ld: columns, out })?;
        }
        self.kv = kv;
        Ok(())
    }

    fn dims(&self) -> [usize; 3] {
        let shape = self.kv.shape();
        let dims = shape.dims();
        [dims[0], dims[1], dims[2]]
    }

    /// Put columns `from..from + width` of `x [B, L, _]` behind the tokens so far, at `to` of their columns.
    fn put(&mut self, x: &Tensor, from: usize, to: usize, width: usize) -> Result<()> {
        let [rows, capacity, row_width] = self.dims();
        let [_, length, x_width] = x.dims("attention_cached")?;
        // A single token of each row makes one copy of them all.
        let (calls, copied, x_ld, out_ld) = match length {
            1 => (1, rows, x_width, capacity * row_width),
            _ => (rows, length, x_width, row_width),
        };
        if calls * copied * width == 0 {
            return Ok(());
        }
        for row in 0..calls {
            let x_first = row * length * x_width + from;
            let out_first = (row * capacity + self.length) * row_width + to;
            let view = self.kv.view_mut()?.part(out_first, (copied - 1) * out_ld + width)?;
            x.device().launch(RowCopy {
                rows: copied,
                columns: width,
                x_ld,
                x: x.view()?.part(x_first, (copied - 1) * x_ld + width)?,
                out_ld,
                out: Dest { view, add: false },
            })?;
        }
        Ok(())
    }

    /// Whether so many more tokens of such rows fit.
    fn check(&self, cx: &Ctx, x: &Tensor, width: usize) -> Result<()> {
        let ([rows, capacity, row_width], [batch, length, _]) = (self.dims(), x.dims("attention_cached")?);
        if cx.is_recording() {
            return Err(Error::argument("attention_cached", "there is no way back: run without a tape"));
        }
        if (rows, row_width) != (batch, 2 * width) || x.dtype() != self.kv.dtype() {
            let want = format!("{batch} rows of {} {}", 2 * width, x.dtype());
            let got = format!("{rows} of {row_width} {}", self.kv.dtype());
            return Err(Error::shape("attention_cached", "cache", want, got));
        }
        if self.length + length > capacity {
            let reason = format!("{} tokens and {length} more, with room for {capacity}", self.length);
            return Err(Error::argument("attention_cached", reason));
        }
        Ok(())
    }

    /// Keys and values of all tokens.
    fn heads(&self, width: usize) -> Result<[Heads<'_>; 2]> {
        let [rows, capacity, row_stride] = self.dims();
        let batch_stride = capacity * row_stride;
        let len = (rows.max(1) - 1) * batch_stride + self.length.max(1) * row_stride - width;
        let part = |start| Ok(Heads { view: self.kv.view()?.part(start, len)?, batch_stride, row_stride });
        Ok([part(0)?, part(width)?])
    }
}

/// As [`attention`](super::attention), of L further tokens to themselves and to those in the cache, which they join.
///
/// Shapes: q `[B, L, N*H]`, k and v `[B, L, K*H]` → `[B, L, N*H]`; masks and biases are over all S tokens, the new ones last.
///
/// # Errors
/// As [`attention`](super::attention); a tape; a cache of other sizes or without room.
pub fn attention_cached(
    cx: &Ctx,
    [q, k, v]: [&Var; 3],
    cache: &mut KeyValues,
    options: &AttentionOptions<'_>,
) -> Result<Var> {
    let [batch, length, _] = q.dims("attention_cached")?;
    let call = Call::new("attention_cached", options, batch, length, cache.length + length)?;
    expect_shape("attention_cached", "q", Shape::from([batch, length, call.width()]), q.shape())?;
    expect_shape("attention_cached", "k", Shape::from([batch, length, call.kv_width()]), k.shape())?;
    expect_shape("attention_cached", "v", Shape::from([batch, length, call.kv_width()]), v.shape())?;
    let width = call.kv_width();
    cache.check(cx, k.value(), width)?;
    cache.put(k.value(), 0, 0, width)?;
    cache.put(v.value(), 0, width, width)?;
    cache.length += length;
    let [q] = columns(q.value(), length, [call.width()])?;
    attend(cx, &call, q, cache)
}

/// As [`attention_cached`], with the three projections side by side in one tensor.
///
/// Shapes: qkv `[B, L, (N + 2K) * H]`, queries first, values last → `[B, L, N*H]`.
///
/// # Errors
/// As [`attention_cached`].
pub fn attention_fused_cached(
    cx: &Ctx,
    qkv: &Var,
    cache: &mut KeyValues,
    options: &AttentionOptions<'_>,
) -> Result<Var> {
    let [batch, length, _] = qkv.dims("attention_fused_cached")?;
    let call = Call::new("attention_fused_cached", options, batch, length, cache.length + length)?;
    let (width, kv) = (call.width(), call.kv_width());
    expect_shape("attention_fused_cached", "qkv", Shape::from([batch, length, width + 2 * kv]), qkv.shape())?;
    cache.check(cx, qkv.value(), kv)?;
    cache.put(qkv.value(), width, 0, 2 * kv)?;
    cache.length += length;
    let [q, ..] = columns(qkv.value(), length, [width, kv, kv])?;
    attend(cx, &call, q, cache)
}

fn attend(cx: &Ctx, call: &Call, q: Heads<'_>, cache: &KeyValues) -> Result<Var> {
    let [rows, ..] = cache.dims();
    let mut out = empty(cx, [rows, call.queries(), call.width()], cache.kv.dtype())?; // [B, L, N*H]
    let [k, v] = cache.heads(call.kv_width())?;
    call.attend(cx.device(), [q, k, v], &mut out)?;
    Ok(Var::constant(out))
}
