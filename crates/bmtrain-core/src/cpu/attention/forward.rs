//! The forward pass: one block of queries of one head at a time meets the keys block by block.
//!
//! Every row of the result is made by one piece of work in one order, so threads and the size of query blocks do not
//! show in its bits.
#![allow(unsafe_code)]

use super::operand::{ReadHeads, WriteHeads};
use super::product::{Left, Right, Size, multiply, transpose_panels};
use super::rows::{self, Soften};
use super::score::{Rules, ScoreTile};
use super::scratch::{self, Scratch};
use super::tiles::{self, Settings, Tiles};
use crate::cpu::access::{self, Rows};
use crate::cpu::floats::{Floats, FloatsMut};
use crate::cpu::gemm::{self, Epilogue, Operand, Product};
use crate::cpu::threads::Threads;
use crate::error::Result;
use crate::kernel::{Arguments, AttentionForward, AttentionShape};
use std::ops::Range;
use std::sync::OnceLock;

pub(super) fn run(threads: &Threads, a: AttentionForward<'_>, settings: Settings) -> Result<()> {
    let op = AttentionForward::NAME;
    let (shape, h) = (a.inputs.shape, a.inputs.shape.head_size);
    let pass = Forward {
        rules: Rules::new(op, &a.inputs)?,
        q: ReadHeads::new(op, a.inputs.q, h)?,
        k: ReadHeads::new(op, a.inputs.k, h)?,
        v: ReadHeads::new(op, a.inputs.v, h)?,
        out: WriteHeads::new(op, a.out, h)?,
        lse: access::write_rows(op, a.lse)?,
        tiles: settings.tiles_for(&shape),
    };
    let blocks = tiles::blocks(0..shape.queries, pass.tiles.queries, 1);
    let count = blocks.clone().count();
    let failure = OnceLock::new();
    let work = |piece: usize| {
        let (head, block) = (piece / count, piece % count);
        let Some(queries) = blocks.clone().nth(block) else { return };
        let done = scratch::with(|scratch| pass.block(head / shape.heads, head % shape.heads, queries, scratch));
        if let Err(error) = done {
            let _ = failure.set(error);
        }
    };
    let pieces = shape.batch * shape.heads * count;
    match is_small(&shape) {
        true => (0..pieces).for_each(work),
        false => threads.for_each(pieces, work),
    }
    failure.into_inner().map_or(Ok(()), Err)
}

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
    q: ReadHeads<'a>,
    k: ReadHeads<'a>,
    v: ReadHeads<'a>,
    out: WriteHeads<'a>,
    lse: Rows<'a, f32>,
    tiles: Tiles,
}

impl Forward<'_> {
    /// All keys for one block of queries of head `n` of sequence `b`.
    fn block(&self, b: usize, n: usize, queries: Range<usize>, scratch: &mut Scratch) -> Result<()> {
        let rules = &self.rules;
        // Decoding: keys and values are met once, and laying them out would take longer than to read them in place.
        let one = rules.shape.queries == 1;
        let h = rules.shape.head_size;
        let Tiles { queries: most_rows, keys: most_keys, head } = self.tiles;
        let kv = n / (rules.shape.heads / rules.shape.kv_heads);
        let rows = queries.len();
        let query = scratch.query.take(most_rows * head);
        let (key, panels) = (scratch.key.take(most_keys * head), scratch.key_panels.take(self.tiles.panels()));
        let (scores, out) = (scratch.scores.take(most_rows * most_keys), scratch.out.take(most_rows * head));
        let (largest, sum) = scratch.statistics.take(2 * most_rows).split_at_mut(most_rows);
        let space = scratch.row.take(most_keys + rows::ROW_SLACK);

        self.q.rows(b, n, queries.clone(), query, head);
        query[..rows * head].iter_mut().for_each(|x| *x *= rules.scale);
        out[..rows * head].fill(0.0);
        largest[..rows].fill(f32::NEG_INFINITY);
        sum[..rows].fill(0.0);
        let seen = rules.keys(b);
        let (start, end) = (rules.window_start(queries.start), seen.end.min(rules.causal_end(queries.end - 1)));
        for keys in tiles::blocks(seen, most_keys, 16) {
            let keys = keys.start..keys.end.min(end);
            if keys.is_empty() {
                break;
            }
            // The window leaves blocks where they are, so that sums do not depend on the queries of a tile.
            if keys.end <= start {
                continue;
            }
            let place = ScoreTile { b, n, l: queries.start, s: keys.start, rows, width: keys.len() };
            let padded = keys.len().next_multiple_of(16);
            if one {
                let (data, stride) = self.k.in_place(b, kv, keys.clone());
                dot_products(&query[..h], Operand::transposed(data, stride), &mut scores[..keys.len()])?;
            } else {
                self.k.rows(b, kv, keys.clone(), key, head);
                transpose_panels(key, head, (keys.len(), h), panels);
                let size = Size { m: rows, n: padded, k: h, add: false };
                multiply(size, Left { data: query, row: head, step: 1 }, Right::panels(panels, h), scores, most_keys);
            }
            let tile =
                Soften { rules, place, scores, stride: most_keys, largest, sum, out, out_stride: head, row: space };
            rows::soften(tile);
            let size = Size { m: rows, n: head, k: keys.len(), add: true };
            let values = match self.v.in_place(b, kv, keys.clone()) {
                (Floats::F32(data), stride) if one && head == h => Right::rows(data, stride),
                _ => {
                    self.v.rows(b, kv, keys.clone(), key, head);
                    Right::rows(key, head)
                }
            };
            multiply(size, Left { data: scores, row: most_keys, step: 1 }, values, out, head);
        }
        // SAFETY: this block of queries of this head is one piece of work.
        unsafe {
            let lse = self.lse.part(rules.row(b, n, queries.start), rows);
            for (r, l) in queries.enumerate() {
                // Nothing seen, nothing taken.
                let factor = if sum[r] == 0.0 { 0.0 } else { 1.0 / sum[r] };
                let shift = if largest[r] == f32::NEG_INFINITY { 0.0 } else { largest[r] };
                lse[r] = shift + sum[r].ln();
                self.out.row(b, n, l, &out[r * head..][..h], factor);
            }
        }
        Ok(())
    }
}

/// Products of one query with every key.
fn dot_products(query: &[f32], keys: Operand<'_>, scores: &mut [f32]) -> Result<()> {
    let (n, k) = (scores.len(), query.len());
    let (a, c, epilogue) = (Operand::rows(Floats::F32(query), k), FloatsMut::F32(scores), Epilogue::default());
    let product = Product { m: 1, n, k, alpha: 1.0, a, b: keys, beta: 0.0, c, ldc: n, epilogue };
    gemm::product(gemm::Threads::Calling, product)
}
