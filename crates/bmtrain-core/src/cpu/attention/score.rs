//! What happens to raw scores before the softmax: which keys a query sees, the additive bias, the dropout of probabilities.
//!
//! Defines [`Rules`], shared by `forward.rs` and `backward.rs`.

use super::operand::Source;
use crate::cpu::access;
use crate::error::Result;
use crate::kernel::{AttentionShape, Bias, Dropout, Mask};
use crate::philox;

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
    causal: bool,
    mask: Bytes<'a>,
    /// The values and whether every sequence has its own.
    bias: Option<(Source<'a>, bool)>,
    dropout: Option<Dropout>,
}

impl<'a> Rules<'a> {
    /// The rules of a call.
    ///
    /// # Errors
    /// Views of a wrong type.
    pub(super) fn new(
        op: &'static str,
        shape: AttentionShape,
        (scale, causal): (f32, bool),
        mask: Mask<'a>,
        bias: Option<Bias<'a>>,
        dropout: Option<Dropout>,
    ) -> Result<Self> {
        let mask = match mask {
            Mask::None => Bytes::None,
            Mask::Padding(view) => Bytes::Padding(access::read(op, view)?),
            Mask::Full(view) => Bytes::Full(access::read(op, view)?),
        };
        let bias = match bias {
            Some(bias) => Some((Source::new(op, bias.view)?, bias.per_sequence)),
            None => None,
        };
        Ok(Rules { shape, scale, causal, mask, bias, dropout })
    }

    /// Whether query `l` of sequence `b` sees key `s`.
    pub(super) fn sees(&self, b: usize, l: usize, s: usize) -> bool {
        let AttentionShape { queries, keys, .. } = self.shape;
        let allowed = match self.mask {
            Bytes::None => true,
            Bytes::Padding(bytes) => bytes[b * keys + s] != 0,
            Bytes::Full(bytes) => bytes[(b * queries + l) * keys + s] != 0,
        };
        allowed && (!self.causal || s + queries <= l + keys)
    }

    /// Index of a row of scores among all rows: of `[B, N, L]`.
    pub(super) fn row(&self, b: usize, n: usize, l: usize) -> usize {
        (b * self.shape.heads + n) * self.shape.queries + l
    }

    /// Start of a row of the bias and of its gradient.
    pub(super) fn bias_row(&self, b: usize, n: usize, l: usize) -> Option<usize> {
        let (_, per_sequence) = self.bias?;
        Some(self.row(if per_sequence { b } else { 0 }, n, l) * self.shape.keys)
    }

    /// From raw scores of one row to scores: bias added, minus infinity where the key is not seen.
    pub(super) fn apply(&self, (b, n, l): (usize, usize, usize), scores: &mut [f32], space: &mut [f32]) {
        if let (Some((values, _)), Some(start)) = (self.bias, self.bias_row(b, n, l)) {
            values.widen(start, space);
            scores.iter_mut().zip(space).for_each(|(score, bias)| *score += *bias);
        }
        for (s, score) in scores.iter_mut().enumerate() {
            if !self.sees(b, l, s) {
                *score = f32::NEG_INFINITY;
            }
        }
    }

    /// Factors of the probabilities of one row.
    pub(super) fn multipliers(&self, (b, n, l): (usize, usize, usize), out: &mut [f32]) {
        match &self.dropout {
            None => out.fill(1.0),
            Some(dropout) => {
                let first = dropout.row(self.row(b, n, l) as u64, self.shape.keys as u64);
                for (s, out) in out.iter_mut().enumerate() {
                    let element = first + s as u64;
                    let block = element / 4;
                    let counter = [block as u32, (block >> 32) as u32, dropout.step, dropout.micro_batch];
                    let word = philox::block(dropout.key, counter)[(element % 4) as usize];
                    *out = if word < dropout.threshold { 0.0 } else { dropout.scale };
                }
            }
        }
    }
}
