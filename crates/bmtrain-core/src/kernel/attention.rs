//! Arguments of streaming attention: scores are made block by block and never stored as a whole.

use super::random::Dropout;
use super::{Access, Arguments, Dest, Operand, expect_float, expect_float_operand, expect_operand, expect_soft_cap};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::view::{View, ViewMut};

/// Sizes of one attention call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttentionShape {
    /// Sequences, B.
    pub batch: usize,
    /// Query heads, N.
    pub heads: usize,
    /// Key and value heads, K; a divisor of `heads`: query head n reads head `n / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Queries of a sequence, L.
    pub queries: usize,
    /// Keys of a sequence, S.
    pub keys: usize,
    /// Length of a head, H.
    pub head_size: usize,
}

/// Heads inside a wider matrix: element `h` of head `n` of row `l` of sequence `b` is at
/// `b * batch_stride + l * row_stride + n * head_size + h`.
#[derive(Debug, Clone, Copy)]
pub struct Heads<'a> {
    /// From the first element of the first head to the last of the last.
    pub view: View<'a>,
    /// Elements from one sequence to the next.
    pub batch_stride: usize,
    /// Elements from one row to the next.
    pub row_stride: usize,
}

/// Written heads, laid out as [`Heads`].
#[derive(Debug)]
pub struct HeadsMut<'a> {
    /// From the first element of the first head to the last of the last.
    pub view: ViewMut<'a>,
    /// Elements from one sequence to the next.
    pub batch_stride: usize,
    /// Elements from one row to the next.
    pub row_stride: usize,
    /// Add to the present content.
    pub add: bool,
}

impl HeadsMut<'_> {
    fn access(&self, width: usize) -> Access<'_> {
        if self.batch_stride.is_multiple_of(self.row_stride.max(1)) {
            Access::WriteRows { view: &self.view, stride: self.row_stride, width }
        } else {
            Access::Write(&self.view)
        }
    }
}

/// Keys that a query sees, besides the causal rule. A query that sees no key gets zeros, and gives none a gradient.
#[derive(Debug, Clone, Copy)]
pub enum Mask<'a> {
    /// All.
    None,
    /// `[B, S]` bytes, 1 for a key that may be seen.
    Padding(View<'a>),
    /// `[B, L, S]` bytes, 1 for a key that this query may see.
    Full(View<'a>),
}

/// Added to the scaled scores: `[B or 1, N, L or 1, S]`, e.g. relative positions, or slopes times positions of keys.
#[derive(Debug, Clone, Copy)]
pub struct Bias<'a> {
    /// The values.
    pub view: View<'a>,
    /// One bias for every sequence of the batch instead of the same for all.
    pub per_sequence: bool,
    /// A row for every query instead of one for all.
    pub per_query: bool,
}

/// Inputs of attention, in the forward pass and again in the backward pass.
#[derive(Debug, Clone, Copy)]
pub struct AttentionInputs<'a> {
    /// Sizes.
    pub shape: AttentionShape,
    /// Factor of the scores, commonly `1 / sqrt(H)`.
    pub scale: f32,
    /// Scaled scores become `cap * tanh(score / cap)`. Above 0; not together with a bias.
    pub soft_cap: Option<f32>,
    /// Query `l` sees key `s` only if `s <= l + S - L`.
    pub causal: bool,
    /// Most keys of a window on either side, the query's own among them: query `l` sees key `s` only if
    /// `l + S - L - window < s < l + S - L + window`. With `causal` there are none after its own. Not 0.
    pub window: Option<usize>,
    /// Further restriction of the keys.
    pub mask: Mask<'a>,
    /// i32 `[B, 2, L]`, of sequences that attend to themselves: of each token the first token of its document, then the
    /// end of its document. A query sees the keys of its own document alone.
    pub documents: Option<View<'a>>,
    /// Added to the scores.
    pub bias: Option<Bias<'a>>,
    /// Applied to the probabilities.
    pub dropout: Option<Dropout>,
    /// Queries, N heads of L rows.
    pub q: Heads<'a>,
    /// Keys, K heads of S rows.
    pub k: Heads<'a>,
    /// Values, K heads of S rows.
    pub v: Heads<'a>,
}

/// `out = dropout(softmax(soft_cap(scale * q k^T) + bias, masked)) v` for every sequence and head.
///
/// Numerics: scores, softmax and sums in f32. Dropout of the probabilities is addressed by
/// `((b * N + n) * L + l) * S + s`. Source: online softmax of Milakov and Gimelshein (2018), blocks of Dao et al.
/// (2022).
#[derive(Debug)]
pub struct AttentionForward<'a> {
    /// Sizes, rules, queries, keys and values.
    pub inputs: AttentionInputs<'a>,
    /// Result, N heads of L rows.
    pub out: HeadsMut<'a>,
    /// Log of the sum of exponentials of every row's scores, f32 `[B, N, L]`; minus infinity where no key is seen.
    pub lse: ViewMut<'a>,
}

/// Gradients of [`AttentionForward`]; probabilities are made again from `lse`.
#[derive(Debug)]
pub struct AttentionBackward<'a> {
    /// As in the forward pass.
    pub inputs: AttentionInputs<'a>,
    /// Result of the forward pass.
    pub out: Heads<'a>,
    /// Saved by the forward pass.
    pub lse: View<'a>,
    /// Gradient of the result, laid out as `out`.
    pub dout: Heads<'a>,
    /// Scratch, f32 `[B, N, L]`: the row sums of `dout * out`.
    pub delta: ViewMut<'a>,
    /// Gradient of the queries.
    pub dq: HeadsMut<'a>,
    /// Gradient of the keys.
    pub dk: HeadsMut<'a>,
    /// Gradient of the values.
    pub dv: HeadsMut<'a>,
    /// Gradient of the bias, f32, with a row for every query whatever the bias has: `[B or 1, N, L, S]`.
    pub dbias: Option<Dest<'a>>,
}

/// Views and strides of one role, as both structures are checked alike.
type HeadsLayout = (&'static str, usize, DType, usize, usize, usize, usize);

impl AttentionShape {
    fn check(&self, op: &'static str) -> Result<()> {
        if self.heads == 0 || self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            let expected = "a multiple of the kv heads";
            return Err(Error::shape(op, "heads", expected, format!("{} of {}", self.heads, self.kv_heads)));
        }
        let scores =
            [self.batch, self.heads, self.queries, self.keys].iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        if self.head_size == 0 || scores.is_none() {
            return Err(Error::shape(op, "sizes", "a head size above 0 and countable scores", format!("{self:?}")));
        }
        Ok(())
    }

    /// Multiply-adds of one of the two products of the forward pass.
    fn product_flops(&self) -> u64 {
        2 * (self.batch * self.heads) as u64 * self.queries as u64 * self.keys as u64 * self.head_size as u64
    }

    fn check_heads(&self, op: &'static str, layouts: &[HeadsLayout]) -> Result<()> {
        for &(what, len, dtype, rows, heads, batch_stride, row_stride) in layouts {
            expect_float(op, what, dtype)?;
            let width = heads * self.head_size;
            if row_stride < width {
                return Err(Error::shape(op, format!("row stride of {what}"), format!("at least {width}"), row_stride));
            }
            if self.batch == 0 || rows == 0 {
                continue;
            }
            let sequence = (rows - 1).checked_mul(row_stride).and_then(|n| n.checked_add(width));
            if self.batch > 1 && sequence.is_none_or(|sequence| batch_stride < sequence) {
                let expected = format!("at least {sequence:?}");
                return Err(Error::shape(op, format!("batch stride of {what}"), expected, batch_stride));
            }
            let end = (self.batch - 1).checked_mul(batch_stride).and_then(|n| n.checked_add(sequence?));
            if end.is_none_or(|end| end > len) {
                return Err(Error::shape(op, what, format!("at least {end:?} elements"), len));
            }
        }
        Ok(())
    }

    /// Elements of a bias.
    pub fn bias_len(&self, per_sequence: bool, per_query: bool) -> usize {
        let (sequences, rows) = (if per_sequence { self.batch } else { 1 }, if per_query { self.queries } else { 1 });
        sequences * self.heads * rows * self.keys
    }
}

impl AttentionInputs<'_> {
    /// Keys after its own that a query sees by the causal rule and the window; `None` where neither hides one.
    pub(crate) fn keys_ahead(&self) -> Option<usize> {
        if self.causal { Some(0) } else { self.window.map(|window| window - 1) }
    }

    fn check(&self, op: &'static str) -> Result<()> {
        let s = &self.shape;
        s.check(op)?;
        let [q, k, v] = [
            ("q", &self.q, s.queries, s.heads),
            ("k", &self.k, s.keys, s.kv_heads),
            ("v", &self.v, s.keys, s.kv_heads),
        ]
        .map(|(what, heads, rows, count)| read(what, heads, rows, count));
        s.check_heads(op, &[q, k, v])?;
        if self.window == Some(0) {
            return Err(Error::argument(op, "a window of 0 keys: a query sees its own at least"));
        }
        expect_soft_cap(op, self.soft_cap)?;
        if self.soft_cap.is_some() && self.bias.is_some() {
            return Err(Error::argument(op, "a soft cap together with a bias"));
        }
        let view = match &self.mask {
            Mask::None => None,
            Mask::Padding(view) => Some((view, s.batch * s.keys)),
            Mask::Full(view) => Some((view, s.batch * s.queries * s.keys)),
        };
        if let Some((view, len)) = view {
            expect_operand(op, "mask", len, DType::U8, view)?;
        }
        if let Some(documents) = &self.documents {
            if s.queries != s.keys {
                let reason = format!("documents of {} queries and {} keys", s.queries, s.keys);
                return Err(Error::argument(op, format!("{reason}: sequences attend to themselves alone")));
            }
            expect_operand(op, "documents", 2 * s.batch * s.queries, DType::I32, documents)?;
        }
        if let Some(bias) = &self.bias {
            expect_float_operand(op, "bias", s.bias_len(bias.per_sequence, bias.per_query), &bias.view)?;
        }
        Ok(())
    }
}

fn read(what: &'static str, heads: &Heads<'_>, rows: usize, count: usize) -> HeadsLayout {
    (what, heads.view.len(), heads.view.dtype(), rows, count, heads.batch_stride, heads.row_stride)
}

fn written(what: &'static str, heads: &HeadsMut<'_>, rows: usize, count: usize) -> HeadsLayout {
    (what, heads.view.len(), heads.view.dtype(), rows, count, heads.batch_stride, heads.row_stride)
}

impl Operand for Heads<'_> {
    visits!(view);
}

impl Operand for Bias<'_> {
    visits!(view);
}

impl Operand for Mask<'_> {
    fn visit(&self, visit: &mut dyn FnMut(Access<'_>)) {
        match self {
            Mask::None => {}
            Mask::Padding(view) | Mask::Full(view) => view.visit(visit),
        }
    }
}

impl Operand for AttentionInputs<'_> {
    visits!(q, k, v, mask, documents, bias);
}

impl Arguments for AttentionForward<'_> {
    const NAME: &'static str = "attention_forward";

    fn check(&self) -> Result<()> {
        let (name, s) = (Self::NAME, &self.inputs.shape);
        self.inputs.check(name)?;
        s.check_heads(name, &[written("out", &self.out, s.queries, s.heads)])?;
        expect_operand(name, "lse", s.batch * s.heads * s.queries, DType::F32, &self.lse)
    }

    fn visit(&self, visit: &mut dyn FnMut(Access<'_>)) {
        self.inputs.visit(visit);
        self.lse.visit(visit);
        visit(self.out.access(self.inputs.shape.heads * self.inputs.shape.head_size));
    }

    fn flops(&self) -> u64 {
        2 * self.inputs.shape.product_flops()
    }
}

impl Arguments for AttentionBackward<'_> {
    const NAME: &'static str = "attention_backward";

    fn check(&self) -> Result<()> {
        let (name, s) = (Self::NAME, &self.inputs.shape);
        self.inputs.check(name)?;
        s.check_heads(
            name,
            &[
                read("out", &self.out, s.queries, s.heads),
                read("dout", &self.dout, s.queries, s.heads),
                written("dq", &self.dq, s.queries, s.heads),
                written("dk", &self.dk, s.keys, s.kv_heads),
                written("dv", &self.dv, s.keys, s.kv_heads),
            ],
        )?;
        match (&self.dbias, &self.inputs.bias) {
            (Some(dbias), Some(bias)) => {
                expect_operand(name, "dbias", s.bias_len(bias.per_sequence, true), DType::F32, &dbias.view)?;
            }
            (Some(_), None) => return Err(Error::argument(name, "a gradient of a bias that is not there")),
            (None, _) => {}
        }
        let rows = s.batch * s.heads * s.queries;
        expect_operand(name, "lse", rows, DType::F32, &self.lse)?;
        expect_operand(name, "delta", rows, DType::F32, &self.delta)
    }

    fn visit(&self, visit: &mut dyn FnMut(Access<'_>)) {
        let operands: [&dyn Operand; 6] = [&self.inputs, &self.out, &self.dout, &self.lse, &self.delta, &self.dbias];
        operands.into_iter().for_each(|operand| operand.visit(visit));
        let AttentionShape { heads, kv_heads, head_size, .. } = self.inputs.shape;
        for (role, heads) in [(&self.dq, heads), (&self.dk, kv_heads), (&self.dv, kv_heads)] {
            visit(role.access(heads * head_size));
        }
    }

    fn flops(&self) -> u64 {
        5 * self.inputs.shape.product_flops()
    }
}
