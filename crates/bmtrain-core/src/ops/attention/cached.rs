//! Attention with a KV cache, for incremental decoding. It has no backward pass.

use super::AttentionOptions;
use super::call::{Call, columns};
use crate::kernel::{Heads, RowCopy};
use crate::ops::*;
use std::ops::Range;

const OP: &str = "attention_cached";

/// Keys and values of the tokens so far. Memory is taken with the first of them, and more as they come.
#[derive(Debug, Default)]
pub struct KeyValues {
    /// Side by side, keys first, with room for more: `[B, capacity, 2K * H]`.
    kv: Option<Tensor>,
    /// S.
    length: usize,
    /// Tokens of a row that are expected.
    expected: usize,
}

impl KeyValues {
    /// A cache for sequences of `tokens` tokens; longer ones reallocate.
    pub fn expecting(tokens: usize) -> Self {
        KeyValues { kv: None, length: 0, expected: tokens }
    }

    /// S, tokens of a row so far.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there is none yet.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Let row `i` go on from what row `from[i]` has; there may be more rows than before, or fewer. Without tokens so
    /// far there is nothing to do.
    pub fn reorder(&mut self, from: &[usize]) -> Result<()> {
        let Some(kv) = &self.kv else { return Ok(()) };
        let [rows, capacity, width] = kv.dims("reorder")?;
        if from.iter().copied().eq(0..rows) {
            return Ok(());
        }
        if let Some(missing) = from.iter().find(|from| **from >= rows) {
            return Err(Error::argument("reorder", format!("row {missing} of {rows}")));
        }
        let reordered = [from.len(), capacity, width];
        self.kv = Some(moved(kv, reordered, from.iter().copied(), self.length)?);
        Ok(())
    }

    /// Append keys and values `[B, T, 2K * H]`, keys first, which no projection of the sequences made.
    ///
    /// # Errors
    /// A cache of other rows; a failing device.
    pub fn append(&mut self, kv: &Tensor) -> Result<()> {
        let [batch, length, width] = kv.dims(OP)?;
        self.make_room(kv, [batch, length], width / 2)?;
        self.put(kv, 0, 0, width)?;
        self.length += length;
        Ok(())
    }

    fn kept(&self) -> Result<&Tensor> {
        self.kv.as_ref().filter(|_| self.length > 0).ok_or_else(|| Error::argument(OP, "the cache is empty"))
    }

    /// Appends columns `from..from + width` of rows `rows` of `x [1, T, _]` to the tokens of a single sequence, at `to`
    /// of their columns.
    pub(super) fn put_rows(&mut self, x: &Tensor, rows: Range<usize>, [from, to, width]: [usize; 3]) -> Result<()> {
        let Some(kv) = &mut self.kv else { return Ok(()) };
        let [_, _, row_width] = kv.dims(OP)?;
        let x_width = x.shape().last();
        if rows.len() * width == 0 {
            return Ok(());
        }
        let view = kv.view_mut()?.part(self.length * row_width + to, (rows.len() - 1) * row_width + width)?;
        x.device().launch(RowCopy {
            rows: rows.len(),
            columns: width,
            x_ld: x_width,
            x: x.view()?.part(rows.start * x_width + from, (rows.len() - 1) * x_width + width)?,
            out_ld: row_width,
            out: Dest { view, add: false },
        })
    }

    /// Bytes of the keys and values of a token of a row.
    pub(super) fn token_bytes(&self) -> Option<usize> {
        self.kv.as_ref().map(|kv| kv.shape().last() * kv.dtype().size())
    }

    /// The tokens that were put are in the cache.
    pub(super) fn grow(&mut self, tokens: usize) {
        self.length += tokens;
    }

    /// These tokens in memory of their own, for sequences of `expected` tokens.
    pub(super) fn copied(&self, expected: usize) -> Result<Self> {
        let kv = self.kv.as_ref().map(|kv| {
            let [rows, _, width] = kv.dims(OP)?;
            moved(kv, [rows, self.length.max(expected), width], 0..rows, self.length)
        });
        Ok(KeyValues { kv: kv.transpose()?, length: self.length, expected })
    }

    /// Appends columns `from..from + width` of `x [B, L, _]` to the tokens so far, at `to` of their columns.
    fn put(&mut self, x: &Tensor, from: usize, to: usize, width: usize) -> Result<()> {
        let Some(kv) = &mut self.kv else { return Ok(()) };
        let [rows, capacity, row_width] = kv.dims(OP)?;
        let [_, length, x_width] = x.dims(OP)?;
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
            let view = kv.view_mut()?.part(out_first, (copied - 1) * out_ld + width)?;
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

    /// Room for L more tokens of B rows in the dtype of `x`; `width` is K * H.
    pub(super) fn make_room(&mut self, x: &Tensor, [batch, length]: [usize; 2], width: usize) -> Result<()> {
        let needed = self.length + length;
        let Some(kv) = &self.kv else {
            let shape = [batch, needed.max(self.expected), 2 * width];
            self.kv = Some(Tensor::empty_in(x.device(), shape, x.dtype(), Segment::Activations)?);
            return Ok(());
        };
        let [rows, capacity, row_width] = kv.dims(OP)?;
        if (rows, row_width) != (batch, 2 * width) || x.dtype() != kv.dtype() {
            let want = format!("{batch} rows of {} {}", 2 * width, x.dtype());
            return Err(Error::shape(OP, "cache", want, format!("{rows} of {row_width} {}", kv.dtype())));
        }
        if needed > capacity {
            // Twice as many, so that all moves together copy each token once or twice.
            let grown = [rows, needed.max(2 * capacity), row_width];
            self.kv = Some(moved(kv, grown, 0..rows, self.length)?);
        }
        Ok(())
    }

    /// Keys and values of all tokens.
    pub(super) fn heads(&self, width: usize) -> Result<[Heads<'_>; 2]> {
        let kv = self.kept()?;
        let [rows, capacity, row_stride] = kv.dims(OP)?;
        let batch_stride = capacity * row_stride;
        let len = (rows.max(1) - 1) * batch_stride + self.length * row_stride - width;
        let part = |start| Ok(Heads { view: kv.view()?.part(start, len)?, batch_stride, row_stride });
        Ok([part(0)?, part(width)?])
    }
}

/// The first `length` tokens of rows of `kv`, in memory of this shape.
fn moved(kv: &Tensor, shape: [usize; 3], from: impl Iterator<Item = usize>, length: usize) -> Result<Tensor> {
    let [_, capacity, width] = kv.dims(OP)?;
    let mut out = Tensor::empty_in(kv.device(), shape, kv.dtype(), Segment::Activations)?;
    let columns = length * width;
    for (to, from) in from.enumerate() {
        let x = kv.view()?.part(from * capacity * width, columns)?;
        let out = Dest { view: out.view_mut()?.part(to * shape[1] * width, columns)?, add: false };
        kv.device().launch(RowCopy { rows: 1, columns, x_ld: columns, x, out_ld: columns, out })?;
    }
    Ok(out)
}

/// As [`attention`](super::attention), of L further tokens to themselves and to those in the cache, which they join.
///
/// Shapes: q `[B, L, N*H]`, k and v `[B, L, K*H]` → `[B, L, N*H]`; masks and biases are over all S tokens, the new ones
/// last.
///
/// # Errors
/// An input on the tape; a cache of other rows; documents.
pub fn attention_cached(
    cx: &Ctx,
    [q, k, v]: [&Var; 3],
    cache: &mut KeyValues,
    options: &AttentionOptions<'_>,
) -> Result<Var> {
    refuse_tape(&[q, k, v])?;
    refuse_documents(options)?;
    let [batch, length, _] = q.dims(OP)?;
    let call = Call::new(OP, options, batch, length, cache.length + length)?;
    expect_shape(OP, "q", Shape::from([batch, length, call.width()]), q.shape())?;
    expect_shape(OP, "k", Shape::from([batch, length, call.kv_width()]), k.shape())?;
    expect_shape(OP, "v", k.shape(), v.shape())?;
    let width = call.kv_width();
    cache.make_room(k.value(), [batch, length], width)?;
    cache.put(k.value(), 0, 0, width)?;
    cache.put(v.value(), 0, width, width)?;
    cache.length += length;
    let [q] = columns(q.value(), length, [call.width()])?;
    attend(cx, &call, q, cache)
}

/// As [`attention_cached`], with the three projections side by side in one tensor.
///
/// Shapes: qkv `[B, L, (N + 2K) * H]`, queries first, values last → `[B, L, N*H]`.
pub fn attention_fused_cached(
    cx: &Ctx,
    qkv: &Var,
    cache: &mut KeyValues,
    options: &AttentionOptions<'_>,
) -> Result<Var> {
    refuse_tape(&[qkv])?;
    refuse_documents(options)?;
    let [batch, length, _] = qkv.dims("attention_fused_cached")?;
    let call = Call::new("attention_fused_cached", options, batch, length, cache.length + length)?;
    let (width, kv) = (call.width(), call.kv_width());
    expect_shape("attention_fused_cached", "qkv", Shape::from([batch, length, width + 2 * kv]), qkv.shape())?;
    cache.make_room(qkv.value(), [batch, length], kv)?;
    cache.put(qkv.value(), width, 0, 2 * kv)?;
    cache.length += length;
    let [q, ..] = columns(qkv.value(), length, [width, kv, kv])?;
    attend(cx, &call, q, cache)
}

pub(super) fn refuse_tape(inputs: &[&Var]) -> Result<()> {
    match inputs.iter().any(|input| input.needs_grad()) {
        true => Err(Error::argument(OP, "there is no backward pass to an input on the tape: run without one")),
        false => Ok(()),
    }
}

pub(super) fn refuse_documents(options: &AttentionOptions<'_>) -> Result<()> {
    match options.documents {
        None => Ok(()),
        Some(_) => Err(Error::argument(OP, "a cache holds one document of each sequence: leave the documents out")),
    }
}

fn attend(cx: &Ctx, call: &Call, q: Heads<'_>, cache: &KeyValues) -> Result<Var> {
    let kv = cache.kept()?;
    let mut out = empty(cx, [kv.shape().dims()[0], call.queries(), call.width()], kv.dtype())?; // [B, L, N*H]
    let [k, v] = cache.heads(call.kv_width())?;
    call.attend(cx.device(), [q, k, v], &mut out)?;
    Ok(Var::constant(out))
}
