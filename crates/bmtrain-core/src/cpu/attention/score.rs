//! Between raw scores and the softmax: the keys that a query sees, and the additive bias.

use super::extent::Extent;
use crate::cpu::access;
use crate::cpu::floats::Floats;
use crate::dtype::Float;
use crate::error::Result;
use crate::kernel::{AttentionInputs, AttentionShape, Bias, Dropout, Mask};
use std::ops::Range;

/// A mask as bytes.
#[derive(Debug, Clone, Copy)]
enum Bytes<'a> {
    None,
    Padding(&'a [u8]),
    Full(&'a [u8]),
}

/// Everything besides q, k and v that the probabilities depend on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules<'a> {
    pub(super) shape: AttentionShape,
    pub(super) scale: f32,
    pub(super) soft_cap: Option<f32>,
    pub(super) dropout: Option<Dropout>,
    /// Keys after its own that a query sees.
    ahead: Option<usize>,
    window: Option<usize>,
    mask: Bytes<'a>,
    bias: Option<Values<'a>>,
}

/// An additive bias.
#[derive(Debug, Clone, Copy)]
struct Values<'a> {
    data: Floats<'a>,
    per_sequence: bool,
    per_query: bool,
}

/// The position of a tile of scores: some queries and keys of one head of one sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScoreTile {
    /// Sequence.
    pub(super) b: usize,
    /// Query head.
    pub(super) n: usize,
    /// First query.
    pub(super) l: usize,
    /// First key.
    pub(super) s: usize,
    /// Number of queries.
    pub(super) rows: usize,
    /// Number of keys.
    pub(super) width: usize,
}

impl<'a> Rules<'a> {
    pub(super) fn new(op: &'static str, inputs: &AttentionInputs<'a>) -> Result<Self> {
        let AttentionInputs { shape, scale, soft_cap, window, dropout, .. } = *inputs;
        let mask = match inputs.mask {
            Mask::None => Bytes::None,
            Mask::Padding(view) => Bytes::Padding(access::read(op, view)?),
            Mask::Full(view) => Bytes::Full(access::read(op, view)?),
        };
        let bias = match inputs.bias {
            Some(Bias { view, per_sequence, per_query }) => {
                Some(Values { data: Floats::of(op, view)?, per_sequence, per_query })
            }
            None => None,
        };
        Ok(Rules { shape, scale, soft_cap, ahead: inputs.keys_ahead(), window, mask, bias, dropout })
    }

    /// The keys of an extent from the first to the last that padding leaves, widened to where tiles may start.
    ///
    /// Nothing outside is read or multiplied: padding costs nothing.
    pub(super) fn keys(&self, extent: &Extent) -> Range<usize> {
        let Range { start, end } = extent.keys;
        let Bytes::Padding(bytes) = self.mask else { return start..end };
        let bytes = &bytes[extent.b * self.shape.keys..][start..end];
        match (bytes.iter().position(|&byte| byte != 0), bytes.iter().rposition(|&byte| byte != 0)) {
            (Some(first), Some(last)) => start + first / 16 * 16..start + last + 1,
            _ => start..start,
        }
    }

    /// The end of the keys that query `l` sees by the causal rule and the window.
    #[inline(always)]
    pub(super) fn seen_end(&self, l: usize) -> usize {
        let AttentionShape { queries, keys, .. } = self.shape;
        match self.ahead {
            Some(ahead) => (l + 1 + keys).saturating_add(ahead).saturating_sub(queries).min(keys),
            None => keys,
        }
    }

    /// The first key that query `l` sees by the rule of the window.
    #[inline(always)]
    pub(super) fn window_start(&self, l: usize) -> usize {
        let AttentionShape { queries, keys, .. } = self.shape;
        self.window.map_or(0, |window| (l + 1 + keys).saturating_sub(queries).saturating_sub(window))
    }

    /// Index of a row of scores among all rows: of `[B, N, L]`.
    #[inline(always)]
    pub(super) fn row(&self, b: usize, n: usize, l: usize) -> usize {
        (b * self.shape.heads + n) * self.shape.queries + l
    }

    pub(super) fn shares_bias(&self) -> bool {
        self.bias.is_some_and(|bias| !bias.per_sequence)
    }

    /// Start of a row of the gradient of the bias.
    pub(super) fn dbias_row(&self, b: usize, n: usize, l: usize) -> Option<usize> {
        let b = if self.bias?.per_sequence { b } else { 0 };
        Some(self.row(b, n, l) * self.shape.keys)
    }

    /// From raw scores of row `r` of a tile to scores: bias added, minus infinity where the key is not seen and in the
    /// columns past the tile's width.
    #[inline(always)]
    pub(super) fn apply(&self, place: &ScoreTile, r: usize, scores: &mut [f32]) {
        let ScoreTile { b, n, s, width, .. } = *place;
        let l = place.l + r;
        let (seen, past) = scores.split_at_mut(width);
        if let Some(Values { data, per_sequence, per_query }) = self.bias {
            let head = (if per_sequence { b } else { 0 }) * self.shape.heads + n;
            let row = if per_query { head * self.shape.queries + l } else { head };
            add(data, row * self.shape.keys + s, seen);
        }
        let bytes = match self.mask {
            Bytes::None => None,
            Bytes::Padding(bytes) => Some(&bytes[b * self.shape.keys + s..][..width]),
            Bytes::Full(bytes) => Some(&bytes[(b * self.shape.queries + l) * self.shape.keys + s..][..width]),
        };
        if let Some(bytes) = bytes {
            for (score, &byte) in seen.iter_mut().zip(bytes) {
                *score = if byte != 0 { *score } else { f32::NEG_INFINITY };
            }
        }
        let end = self.seen_end(l).saturating_sub(s);
        if end < width {
            seen[end..].fill(f32::NEG_INFINITY);
        }
        let start = self.window_start(l).saturating_sub(s).min(width);
        seen[..start].fill(f32::NEG_INFINITY);
        past.fill(f32::NEG_INFINITY);
    }
}

#[inline(always)]
fn add(values: Floats<'_>, start: usize, to: &mut [f32]) {
    match values.part(start, to.len()) {
        Floats::F32(data) => to.iter_mut().zip(data).for_each(|(to, x)| *to += x),
        Floats::F16(data) => to.iter_mut().zip(data).for_each(|(to, x)| *to += Float::to_f32(*x)),
        Floats::Bf16(data) => to.iter_mut().zip(data).for_each(|(to, x)| *to += Float::to_f32(*x)),
    }
}
