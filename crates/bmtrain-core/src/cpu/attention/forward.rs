//! The forward pass: one block of queries of one head at a time meets the keys block by block. In decoding, with one
//! query, some heads of the same keys and values do so together.
//!
//! Every row of the result is made by one piece of work in one order, so threads, the size of query blocks and how many
//! heads are together do not show in its bits.
#![allow(unsafe_code)]

use super::blocks::{self, Blocks, Matrix};
use super::extent::{Extent, Extents};
use super::operand::{ReadHeads, WriteHeads};
use super::product::{Left, Right, Size, multiply, transpose_panels};
use super::rows::{self, Soften};
use super::score::{Rules, ScoreTile};
use super::scratch::{self, Scratch};
use super::tiles::{self, Settings, Tiles};
use crate::cpu::access::{self, Rows};
use crate::cpu::floats::{Floats, FloatsMut};
use crate::cpu::gemm::{self, Epilogue, Operand, Product};
use crate::cpu::scratch::Region;
use crate::cpu::tiles::Unit;
use crate::error::Result;
use crate::kernel::{Arguments, AttentionForward, AttentionShape};
use crate::threads::Threads;
use std::ops::Range;
use std::sync::OnceLock;

pub(super) fn run(threads: &Threads, a: AttentionForward<'_>, settings: Settings) -> Result<()> {
    let op = AttentionForward::NAME;
    let (shape, h) = (a.inputs.shape, a.inputs.shape.head_size);
    let heads = |heads| ReadHeads::new(op, heads, h);
    let (q, k, v) = (heads(a.inputs.q)?, heads(a.inputs.k)?, heads(a.inputs.v)?);
    let pass = Forward {
        rules: Rules::new(op, &a.inputs)?,
        unit: blocks::unit([&q, &k, &v].into_iter().all(ReadHeads::is_bf16), h),
        q,
        k,
        v,
        out: WriteHeads::new(op, a.out, h)?,
        lse: access::write_rows(op, a.lse)?,
        tiles: settings.tiles_for(&shape),
    };
    let extents = Extents::new(op, &a.inputs)?;
    // Of the longest extent; others have fewer, and their last pieces are empty.
    let count = extents.longest().0.div_ceil(pass.tiles.queries);
    let group = shape.heads / shape.kv_heads;
    let together = if shape.queries == 1 { group.min(pass.tiles.queries.min(MAX_TOGETHER)) } else { 1 };
    let per_group = group.div_ceil(together);
    let parts = shape.kv_heads * per_group;
    let failure = OnceLock::new();
    let work = |piece: usize| {
        let (part, block) = (piece / count, piece % count);
        let Some(extent) = extents.get(part / parts) else { return };
        let Some(queries) = tiles::blocks(extent.queries.clone(), pass.tiles.queries, 16).nth(block) else { return };
        let (kv, first) = (part % parts / per_group, part % per_group * together);
        let heads = kv * group + first..kv * group + group.min(first + together);
        let done = scratch::with(|scratch| pass.block(&extent, heads, queries, scratch));
        if let Err(error) = done {
            let _ = failure.set(error);
        }
    };
    let pieces = extents.count() * parts * count;
    match is_small(&shape) {
        true => (0..pieces).for_each(work),
        false => threads.for_each(pieces, work),
    }
    failure.into_inner().map_or(Ok(()), Err)
}

/// Most heads of one piece of work in decoding. They share the reading of keys and values; more would leave threads of
/// models with few kv heads without work.
const MAX_TOGETHER: usize = 4;

/// Whether waking a second thread costs more than it saves, as for one query and a few dozen keys in decoding.
fn is_small(shape: &AttentionShape) -> bool {
    /// Numbers of keys and values that are laid out for products, and multiplications: about 50 us of either.
    const LAID_OUT: usize = 1 << 16;
    const MULTIPLIED: usize = 1 << 20;
    let numbers =
        shape.batch.saturating_mul(shape.heads).saturating_mul(shape.keys).saturating_mul(2 * shape.head_size);
    numbers <= LAID_OUT && numbers.saturating_mul(shape.queries) <= MULTIPLIED
}

struct Forward<'a> {
    rules: Rules<'a>,
    /// The unit that multiplies bf16, if the processor has one.
    unit: Option<Unit>,
    q: ReadHeads<'a>,
    k: ReadHeads<'a>,
    v: ReadHeads<'a>,
    out: WriteHeads<'a>,
    lse: Rows<'a, f32>,
    tiles: Tiles,
}

/// The keys and values of a step.
#[derive(Clone, Copy)]
struct KeysOfHead<'r> {
    b: usize,
    kv: usize,
    keys: &'r Range<usize>,
}

/// Operands of the products of a block of queries.
enum Operands<'s> {
    /// bf16 as a unit multiplies it.
    Packed(Blocks<'s>),
    /// Queries times the scale, and memory for keys and values.
    F32 { query: &'s mut [f32], key: &'s mut [f32], panels: &'s mut [f32] },
}

impl Forward<'_> {
    /// All keys for one block of queries of a head, or for one query of some heads with the same keys.
    fn block(&self, extent: &Extent, heads: Range<usize>, queries: Range<usize>, scratch: &mut Scratch) -> Result<()> {
        let (rules, b) = (&self.rules, extent.b);
        let Tiles { queries: most_rows, keys: most_keys, head } = self.tiles;
        let kv = heads.start / (rules.shape.heads / rules.shape.kv_heads);
        let (per_head, rows) = (queries.len(), heads.len() * queries.len());
        let Scratch { query, key, key_panels, packed_query, packed_key, packed_scores, .. } = scratch;
        let regions = ([query, key, key_panels], [packed_query, packed_key, packed_scores]);
        let mut operands = self.operands(extent, (&heads, &queries), regions);
        let Scratch { scores, out, statistics, row, .. } = scratch;
        let factor = if matches!(operands, Operands::Packed(_)) { rules.scale } else { 1.0 };
        let (scores, out) = (scores.take(most_rows * most_keys), out.take(most_rows * head));
        let (largest, sum) = statistics.take(2 * most_rows).split_at_mut(most_rows);
        let space = row.take(most_keys + rows::ROW_SLACK);
        out[..rows * head].fill(0.0);
        largest[..rows].fill(f32::NEG_INFINITY);
        sum[..rows].fill(0.0);
        let seen = rules.keys(extent);
        let (start, end) = (rules.window_start(queries.start), seen.end.min(rules.seen_end(queries.end - 1)));
        for keys in tiles::blocks(seen, most_keys, 16) {
            let keys = keys.start..keys.end.min(end);
            if keys.is_empty() {
                break;
            }
            // The window leaves blocks where they are, so that sums do not depend on the queries of a tile.
            if keys.end <= start {
                continue;
            }
            let at = KeysOfHead { b, kv, keys: &keys };
            self.scores(&mut operands, at, rows, scores)?;
            for (i, n) in heads.clone().enumerate() {
                let first = i * per_head;
                rows::soften(Soften {
                    rules,
                    place: ScoreTile { b, n, l: queries.start, s: keys.start, rows: per_head, width: keys.len() },
                    scores: &mut scores[first * most_keys..],
                    factor,
                    stride: most_keys,
                    largest: &mut largest[first..],
                    sum: &mut sum[first..],
                    out: &mut out[first * head..],
                    out_stride: head,
                    row: space,
                });
            }
            self.add_values(&mut operands, at, (scores, rows), out);
        }
        self.write((b, heads), queries, (out, head), (largest, sum));
        Ok(())
    }

    /// The queries of a piece of work as its products read them, and memory for keys and values.
    fn operands<'s>(
        &self,
        extent: &Extent,
        (heads, queries): (&Range<usize>, &Range<usize>),
        (in_f32, packed): ([&'s mut Region; 3], [&'s mut Region; 3]),
    ) -> Operands<'s> {
        let (h, head, rows) = (self.rules.shape.head_size, self.tiles.head, heads.len() * queries.len());
        if let Some(unit) = blocks::unit_for(self.unit, extent) {
            let queries = Matrix::rows(self.q.in_place(extent.b, heads.start, queries.clone()), (rows, h));
            return Operands::Packed(Blocks::new(unit, &self.tiles, queries, packed));
        }
        let [query, key, panels] = in_f32;
        let query = query.take(self.tiles.queries * head);
        for (n, query) in heads.clone().zip(query.chunks_exact_mut(queries.len() * head)) {
            self.q.rows(extent.b, n, queries.clone(), query, head);
        }
        query[..rows * head].iter_mut().for_each(|x| *x *= self.rules.scale);
        let (key, panels) = (key.take(self.tiles.keys * head), panels.take(self.tiles.panels()));
        Operands::F32 { query, key, panels }
    }

    /// Scores of `rows` queries, with the scale unless they are packed.
    fn scores(&self, operands: &mut Operands<'_>, at: KeysOfHead<'_>, rows: usize, scores: &mut [f32]) -> Result<()> {
        let (h, Tiles { keys: most_keys, head, .. }) = (self.rules.shape.head_size, self.tiles);
        let KeysOfHead { b, kv, keys } = at;
        let size = Size { m: rows, n: keys.len().next_multiple_of(16), k: h, add: false };
        match operands {
            Operands::Packed(blocks) => {
                let keys = Matrix::rows(self.k.in_place(b, kv, keys.clone()), (keys.len(), h));
                blocks.scores(size, keys, scores, most_keys);
            }
            Operands::F32 { query, .. } if self.is_decoding() => {
                let (data, stride) = self.k.in_place(b, kv, keys.clone());
                let in_place = Operand::transposed(data, stride);
                dot_products(&query[..rows * head], head, h, in_place, keys.len(), scores, most_keys)?;
            }
            Operands::F32 { query, key, panels } => {
                self.k.rows(b, kv, keys.clone(), key, head);
                transpose_panels(key, head, (keys.len(), h), panels);
                multiply(size, Left { data: query, row: head, step: 1 }, Right::panels(panels, h), scores, most_keys);
            }
        }
        Ok(())
    }

    /// Adds values by the probabilities of `rows` queries.
    fn add_values(
        &self,
        operands: &mut Operands<'_>,
        KeysOfHead { b, kv, keys }: KeysOfHead<'_>,
        (probabilities, rows): (&[f32], usize),
        out: &mut [f32],
    ) {
        let (h, Tiles { keys: most_keys, head, .. }) = (self.rules.shape.head_size, self.tiles);
        let size = Size { m: rows, n: head, k: keys.len(), add: true };
        let values = self.v.in_place(b, kv, keys.clone());
        match operands {
            Operands::Packed(blocks) => {
                let probabilities = Matrix::rows((Floats::F32(probabilities), most_keys), (rows, keys.len()));
                blocks.add_values(size, (probabilities, Matrix::across(values, (keys.len(), h))), out, head);
            }
            Operands::F32 { key, .. } => {
                let values = match values {
                    (Floats::F32(data), stride) if self.is_decoding() && head == h => Right::rows(data, stride),
                    _ => {
                        self.v.rows(b, kv, keys.clone(), key, head);
                        Right::rows(key, head)
                    }
                };
                multiply(size, Left { data: probabilities, row: most_keys, step: 1 }, values, out, head);
            }
        }
    }

    /// With one query keys and values are met once, and laying them out would take longer than to read them in place.
    fn is_decoding(&self) -> bool {
        self.rules.shape.queries == 1
    }

    /// The results of a piece of work, from sums of values relative to each row's largest score.
    fn write(
        &self,
        (b, heads): (usize, Range<usize>),
        queries: Range<usize>,
        (out, row): (&[f32], usize),
        (largest, sum): (&[f32], &[f32]),
    ) {
        let mut rows = out.chunks_exact(row).zip(largest.iter().zip(sum));
        for n in heads {
            // SAFETY: these queries of this head are in one piece of work.
            let lse = unsafe { self.lse.part(self.rules.row(b, n, queries.start), queries.len()) };
            for ((lse, l), (out, (&largest, &sum))) in lse.iter_mut().zip(queries.clone()).zip(&mut rows) {
                // Nothing seen, nothing taken.
                let factor = if sum == 0.0 { 0.0 } else { 1.0 / sum };
                let shift = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
                *lse = shift + sum.ln();
                // SAFETY: as above.
                unsafe { self.out.row(b, n, l, &out[..self.rules.shape.head_size], factor) };
            }
        }
    }
}

/// Products of the queries of some heads, rows of `k` elements that are `query_row` apart, with `n` keys, into rows of
/// scores that are `score_row` apart.
fn dot_products(
    query: &[f32],
    query_row: usize,
    k: usize,
    keys: Operand<'_>,
    n: usize,
    scores: &mut [f32],
    score_row: usize,
) -> Result<()> {
    let m = query.len() / query_row;
    let (a, c) = (Operand::rows(Floats::F32(query), query_row), FloatsMut::F32(scores));
    let epilogue = Epilogue::default();
    gemm::product(
        gemm::Threads::Calling,
        Product { m, n, k, alpha: 1.0, a, b: keys, beta: 0.0, c, ldc: score_row, epilogue },
    )
}
