//! Attention of sequences that have a KV cache each, whose further tokens are packed into one row: sequences of any
//! lengths share a pass without padding, join it and leave it. It has no backward pass.

use super::AttentionOptions;
use super::cached::{KeyValues, refuse_documents, refuse_tape};
use super::call::{Call, columns};
use crate::kernel::Heads;
use crate::ops::*;
use std::ops::Range;

const OP: &str = "attention_packed";

/// The tokens of one sequence in a packed row.
#[derive(Debug, Clone)]
pub struct PackedTokens {
    /// The slot of its KV cache.
    pub slot: usize,
    /// Number of its tokens in the row.
    pub tokens: usize,
    /// Its bias, `[1, N, 1 or L, S]`; see [`AttentionOptions::bias`].
    pub bias: Option<Var>,
}

/// The KV caches of sequences that share passes, in slots. The memory of a cache is its sequence's own: it is taken at
/// once for the expected tokens, and freed with the sequence.
#[derive(Debug, Default)]
pub struct PackedKeyValues {
    slots: Vec<KeyValues>,
    row: Vec<PackedTokens>,
}

impl PackedKeyValues {
    /// Empties a slot, for a sequence of `expected` tokens; a longer one reallocates. Slots are numbered from 0 without
    /// gaps.
    pub fn open(&mut self, slot: usize, expected: usize) {
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, KeyValues::default);
        }
        if let Some(cache) = self.slots.get_mut(slot) {
            *cache = KeyValues::expecting(expected);
        }
    }

    /// Frees the memory of a slot.
    pub fn close(&mut self, slot: usize) {
        if let Some(cache) = self.slots.get_mut(slot) {
            *cache = KeyValues::default();
        }
    }

    /// Lets the sequence of slot `to` begin with the tokens of slot `from`.
    ///
    /// # Errors
    /// A slot that was never opened; a failing device.
    pub fn copy(&mut self, from: usize, to: usize, expected: usize) -> Result<()> {
        let copied = self.slots.get(from).ok_or_else(|| unknown(from))?.copied(expected)?;
        self.open(to, expected);
        if let Some(cache) = self.slots.get_mut(to) {
            *cache = copied;
        }
        Ok(())
    }

    /// Append keys and values `[1, T, 2K * H]`, keys first, to each sequence of the row whose cache is empty.
    ///
    /// # Errors
    /// A slot that was not opened; a failing device.
    pub fn begin_with(&mut self, kv: &Tensor) -> Result<()> {
        for PackedTokens { slot, .. } in self.row.iter().filter(|tokens| tokens.tokens > 0) {
            let cache = self.slots.get_mut(*slot).ok_or_else(|| unknown(*slot))?;
            if cache.is_empty() {
                cache.append(kv)?;
            }
        }
        Ok(())
    }

    /// Cached tokens of a slot.
    pub fn len(&self, slot: usize) -> usize {
        self.slots.get(slot).map_or(0, KeyValues::len)
    }

    /// Bytes of the keys and values of a token; `None` before the first one.
    pub fn token_bytes(&self) -> Option<usize> {
        self.slots.iter().find_map(KeyValues::token_bytes)
    }

    /// Sets the sequences of the next row, in the order of its tokens.
    pub fn begin(&mut self, row: Vec<PackedTokens>) {
        self.row = row;
    }
}

fn unknown(slot: usize) -> Error {
    Error::argument(OP, format!("slot {slot} was not opened"))
}

/// As [`attention_cached`](super::attention_cached), of the sequences that [`PackedKeyValues::begin`] has set: the
/// tokens of each attend to themselves and to those in its cache, which they join.
///
/// Shapes: q `[1, T, N*H]`, k and v `[1, T, K*H]` → `[1, T, N*H]`, T the tokens of all sequences.
/// Numerics: the result for a sequence does not depend on the others.
///
/// # Errors
/// An input on the tape; a slot that was not opened; a row of another length; a mask or documents.
pub fn attention_packed(
    cx: &Ctx,
    [q, k, v]: [&Var; 3],
    caches: &mut PackedKeyValues,
    options: &AttentionOptions<'_>,
) -> Result<Var> {
    refuse_tape(&[q, k, v])?;
    let (width, kv) = widths(options);
    let length = row_length(caches, options, q)?;
    expect_shape(OP, "q", Shape::from([1, length, width]), q.shape())?;
    expect_shape(OP, "k", Shape::from([1, length, kv]), k.shape())?;
    expect_shape(OP, "v", k.shape(), v.shape())?;
    attend(cx, (q.value(), options), caches, |cache, rows| {
        cache.make_room(k.value(), [1, rows.len()], kv)?;
        cache.put_rows(k.value(), rows.clone(), [0, 0, kv])?;
        cache.put_rows(v.value(), rows, [0, kv, kv])
    })
}

/// As [`attention_packed`], with the three projections side by side in one tensor.
///
/// Shapes: qkv `[1, T, (N + 2K) * H]`, queries first, values last → `[1, T, N*H]`.
pub fn attention_fused_packed(
    cx: &Ctx,
    qkv: &Var,
    caches: &mut PackedKeyValues,
    options: &AttentionOptions<'_>,
) -> Result<Var> {
    refuse_tape(&[qkv])?;
    let (width, kv) = widths(options);
    let length = row_length(caches, options, qkv)?;
    expect_shape(OP, "qkv", Shape::from([1, length, width + 2 * kv]), qkv.shape())?;
    attend(cx, (qkv.value(), options), caches, |cache, rows| {
        cache.make_room(qkv.value(), [1, rows.len()], kv)?;
        cache.put_rows(qkv.value(), rows, [width, 0, 2 * kv])
    })
}

/// N * H and K * H.
fn widths(options: &AttentionOptions<'_>) -> (usize, usize) {
    (options.heads * options.head_size, options.kv_heads * options.head_size)
}

/// T of a row `x [1, T, _]` that has the tokens of all its sequences.
fn row_length(caches: &PackedKeyValues, options: &AttentionOptions<'_>, x: &Var) -> Result<usize> {
    refuse_documents(options)?;
    if !matches!(options.mask, AttentionMask::None) {
        return Err(Error::argument(OP, "packed sequences have no padding: leave the mask out"));
    }
    let [_, length, _] = x.dims(OP)?;
    let packed: usize = caches.row.iter().map(|tokens| tokens.tokens).sum();
    match packed == length {
        true => Ok(length),
        false => Err(Error::shape(OP, "row", format!("{packed} tokens of {} sequences", caches.row.len()), length)),
    }
}

/// Runs the sequences one by one; the first columns of `q [1, T, _]` are queries, and `put` appends keys and values of
/// some rows to a cache.
fn attend(
    cx: &Ctx,
    (q, options): (&Tensor, &AttentionOptions<'_>),
    caches: &mut PackedKeyValues,
    put: impl Fn(&mut KeyValues, Range<usize>) -> Result<()>,
) -> Result<Var> {
    let (width, kv) = widths(options);
    let (length, q_width) = (q.shape().rows(), q.shape().last());
    let mut out = empty(cx, [1, length, width], q.dtype())?; // [1, T, N*H]
    let mut first = 0;
    let PackedKeyValues { slots, row } = caches;
    for PackedTokens { slot, tokens, bias } in row.iter().filter(|tokens| tokens.tokens > 0) {
        let tokens = *tokens;
        let cache = slots.get_mut(*slot).ok_or_else(|| unknown(*slot))?;
        let options = AttentionOptions { bias: bias.as_ref(), ..*options };
        let call = Call::new(OP, &options, 1, tokens, cache.len() + tokens)?;
        put(cache, first..first + tokens)?;
        cache.grow(tokens);
        let [queries] = columns(q, length, [q_width])?;
        let view = queries.view.part(first * q_width, (tokens - 1) * q_width + width)?;
        let queries = Heads { view, batch_stride: tokens * q_width, row_stride: q_width };
        let [keys, values] = cache.heads(kv)?;
        let to = Dest { view: out.view_mut()?.part(first * width, tokens * width)?, add: false };
        call.attend_into(cx.device(), [queries, keys, values], to)?;
        first += tokens;
    }
    Ok(Var::constant(out))
}
