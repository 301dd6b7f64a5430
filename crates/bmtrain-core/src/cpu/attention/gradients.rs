//! The steps of the backward pass on one tile of scores, and on the sums that tiles add to.
//!
//! `backward.rs` puts the steps in order.
#![allow(unsafe_code)]

use super::blocks::{self, Packed, PackedRegions, Wanted};
use super::extent::{Extent, Extents};
use super::operand::{ReadHeads, WriteHeads};
use super::product::{Left, Right, Size, multiply, transpose_panels};
use super::rows::{self, Differentiate, RowDots};
use super::score::{Rules, ScoreTile};
use super::scratch::Scratch;
use super::tiles::{self, Settings, Tiles};
use crate::cpu::access::{self, Rows};
use crate::cpu::tiles::Unit;
use crate::error::Result;
use crate::kernel::{Arguments, AttentionBackward};
use std::ops::Range;

/// Largest sum of query gradients that one thread keeps, in numbers: 1 MiB.
pub(super) const MAX_WHOLE: usize = 1 << 18;

/// The views of one call.
///
/// Results are written without locks: the caller gives every step's rows to one piece of work at a time.
pub(super) struct Pass<'a> {
    pub(super) rules: Rules<'a>,
    pub(super) extents: Extents,
    pub(super) tiles: Tiles,
    pub(super) settings: Settings,
    /// The unit that multiplies bf16, if the processor has one.
    unit: Option<Unit>,
    q: ReadHeads<'a>,
    k: ReadHeads<'a>,
    v: ReadHeads<'a>,
    out: ReadHeads<'a>,
    dout: ReadHeads<'a>,
    lse: &'a [f32],
    dq: WriteHeads<'a>,
    dk: WriteHeads<'a>,
    dv: WriteHeads<'a>,
    /// The range and whether it is added to.
    dbias: Option<(Rows<'a, f32>, bool)>,
}

/// The tiles of one thread.
pub(super) struct Work<'s> {
    query: &'s mut [f32],
    dout: &'s mut [f32],
    key: &'s mut [f32],
    key_panels: &'s mut [f32],
    value_panels: &'s mut [f32],
    scores: &'s mut [f32],
    dscores: &'s mut [f32],
    dkey: &'s mut [f32],
    dvalue: &'s mut [f32],
    row: &'s mut [f32],
    /// Operands of products of bf16, instead of those in f32.
    packed: Option<Packed<'s>>,
}

impl<'s> Work<'s> {
    /// Tiles, and sums of the gradients and space for the deltas of `rows` queries. `unit` multiplies bf16 for the
    /// gradients that are wanted.
    pub(super) fn new(
        scratch: &'s mut Scratch,
        (tiles, unit): (&Tiles, Option<Unit>),
        (wanted, rows): (Wanted, usize),
    ) -> (Self, &'s mut [f32], &'s mut [f32]) {
        let Tiles { queries, keys, head } = *tiles;
        let panels = if unit.is_some() { 0 } else { tiles.panels() };
        let regions = PackedRegions {
            query: &mut scratch.packed_query,
            query_across: &mut scratch.packed_query_across,
            dout: &mut scratch.packed_dout,
            dout_across: &mut scratch.packed_dout_across,
            key: &mut scratch.packed_key,
            key_across: &mut scratch.packed_key_across,
            value: &mut scratch.packed_value,
            scores: &mut scratch.packed_scores,
        };
        let work = Work {
            packed: unit.map(|unit| Packed::new(unit, tiles, wanted, regions)),
            query: scratch.query.take(queries * head),
            dout: scratch.out.take(queries * head),
            key: scratch.key.take(keys * head),
            key_panels: scratch.key_panels.take(panels),
            value_panels: scratch.value_panels.take(panels),
            scores: scratch.scores.take(queries * keys),
            dscores: scratch.dscores.take(queries * keys),
            dkey: scratch.dkey.take(keys * head),
            dvalue: scratch.dvalue.take(keys * head),
            row: scratch.row.take(keys + rows::ROW_SLACK),
        };
        (work, scratch.dquery.take_of(rows * head, MAX_WHOLE), scratch.statistics.take_of(rows, MAX_WHOLE / 16))
    }
}

impl<'a> Pass<'a> {
    /// The views of a call, and apart from them the space for the deltas of all queries.
    pub(super) fn new(a: AttentionBackward<'a>, settings: Settings) -> Result<(Self, &'a mut [f32])> {
        let (op, h) = (AttentionBackward::NAME, a.inputs.shape.head_size);
        let dbias = match a.dbias {
            Some(dest) => Some((access::write_rows(op, dest.view)?, dest.add)),
            None => None,
        };
        let delta = access::write(op, a.delta)?;
        let heads = |heads| ReadHeads::new(op, heads, h);
        let (q, k, v, dout) = (heads(a.inputs.q)?, heads(a.inputs.k)?, heads(a.inputs.v)?, heads(a.dout)?);
        let pass = Pass {
            rules: Rules::new(op, &a.inputs)?,
            extents: Extents::new(op, &a.inputs)?,
            tiles: settings.tiles_for(&a.inputs.shape),
            settings,
            unit: blocks::unit([&q, &k, &v, &dout].into_iter().all(ReadHeads::is_bf16), h),
            q,
            k,
            v,
            out: heads(a.out)?,
            dout,
            lse: access::read(op, a.lse)?,
            dq: WriteHeads::new(op, a.dq, h)?,
            dk: WriteHeads::new(op, a.dk, h)?,
            dv: WriteHeads::new(op, a.dv, h)?,
            dbias,
        };
        Ok((pass, delta))
    }

    /// Tiles, and the unit that multiplies bf16 for an extent.
    pub(super) fn sizes_for(&self, extent: &Extent) -> (&Tiles, Option<Unit>) {
        (&self.tiles, blocks::unit_for(self.unit, extent))
    }

    /// Query heads that read a key head.
    pub(super) fn group(&self, kv: usize) -> Range<usize> {
        let group = self.rules.shape.heads / self.rules.shape.kv_heads;
        kv * group..(kv + 1) * group
    }

    pub(super) fn query_blocks(&self, queries: &Range<usize>) -> impl Iterator<Item = Range<usize>> + Clone + use<> {
        tiles::blocks(queries.clone(), self.tiles.queries, 16)
    }

    /// The keys of an extent that padding leaves, block by block.
    pub(super) fn key_blocks(&self, extent: &Extent) -> impl Iterator<Item = Range<usize>> + Clone + use<> {
        tiles::blocks(self.rules.keys(extent), self.tiles.keys, 16)
    }

    /// The tile where queries meet keys, without the last keys that none of the queries sees; none if that leaves no
    /// key or all are before the window of the first query.
    pub(super) fn place(&self, b: usize, n: usize, queries: &Range<usize>, keys: &Range<usize>) -> Option<ScoreTile> {
        let end = keys.end.min(self.rules.seen_end(queries.end - 1));
        let width = end.saturating_sub(keys.start);
        (width > 0 && end > self.rules.window_start(queries.start)).then_some(ScoreTile {
            b,
            n,
            l: queries.start,
            s: keys.start,
            rows: queries.len(),
            width,
        })
    }

    /// Sums of `out * dout` for these queries of head `n`.
    pub(super) fn deltas(&self, b: usize, n: usize, queries: &Range<usize>, delta: &mut [f32], work: &mut Work<'_>) {
        let (head, h) = (self.tiles.head, self.rules.shape.head_size);
        for block in self.query_blocks(queries) {
            self.out.rows(b, n, block.clone(), work.query, head);
            self.dout.rows(b, n, block.clone(), work.dout, head);
            let out = &mut delta[block.start - queries.start..block.end - queries.start];
            let rows = RowDots { x: work.query, y: work.dout, stride: head, length: h, out };
            rows::row_dots(rows);
        }
    }

    pub(super) fn load_keys(&self, b: usize, kv: usize, keys: &Range<usize>, work: &mut Work<'_>) {
        let size = (keys.len(), self.rules.shape.head_size);
        if let Some(packed) = &mut work.packed {
            return packed.load_keys(self.k.in_place(b, kv, keys.clone()), self.v.in_place(b, kv, keys.clone()), size);
        }
        self.v.rows(b, kv, keys.clone(), work.key, self.tiles.head);
        transpose_panels(work.key, self.tiles.head, size, work.value_panels);
        self.k.rows(b, kv, keys.clone(), work.key, self.tiles.head);
        transpose_panels(work.key, self.tiles.head, size, work.key_panels);
    }

    /// Fill the tiles of queries of head `n`, times the scale unless they are packed, and of gradients of the result.
    pub(super) fn load_queries(&self, (b, n): (usize, usize), queries: &Range<usize>, work: &mut Work<'_>) {
        let (rows, head) = (queries.len(), self.tiles.head);
        if let Some(packed) = &mut work.packed {
            let of = |heads: &ReadHeads<'a>| heads.in_place(b, n, queries.clone());
            return packed.load_queries(of(&self.q), of(&self.dout), (rows, self.rules.shape.head_size));
        }
        self.q.rows(b, n, queries.clone(), work.query, head);
        work.query[..rows * head].iter_mut().for_each(|x| *x *= self.rules.scale);
        self.dout.rows(b, n, queries.clone(), work.dout, head);
    }

    /// Fill the tiles of dropped probabilities and of gradients of the scores.
    pub(super) fn tile(&self, place: &ScoreTile, delta: &[f32], work: &mut Work<'_>) {
        let Tiles { keys: stride, head, .. } = self.tiles;
        let h = self.rules.shape.head_size;
        let size = Size { m: place.rows, n: place.width.next_multiple_of(16), k: h, add: false };
        match &work.packed {
            Some(packed) => packed.tile(size, work.scores, work.dscores, stride),
            None => {
                let query = Left { data: work.query, row: head, step: 1 };
                multiply(size, query, Right::panels(work.key_panels, h), work.scores, stride);
                let dout = Left { data: work.dout, row: head, step: 1 };
                multiply(size, dout, Right::panels(work.value_panels, h), work.dscores, stride);
            }
        }
        let lse = &self.lse[self.rules.row(place.b, place.n, place.l)..][..place.rows];
        let tile = Differentiate {
            rules: &self.rules,
            place: *place,
            scores: work.scores,
            factor: if work.packed.is_some() { self.rules.scale } else { 1.0 },
            dscores: work.dscores,
            stride,
            lse,
            delta,
            row: work.row,
        };
        rows::differentiate(tile);
    }

    pub(super) fn start_key_sums(&self, keys: &Range<usize>, work: &mut Work<'_>) {
        work.dkey[..keys.len() * self.tiles.head].fill(0.0);
        work.dvalue[..keys.len() * self.tiles.head].fill(0.0);
    }

    /// Add a tile's part of the gradients of keys and values.
    pub(super) fn add_key_sums(&self, place: &ScoreTile, work: &mut Work<'_>) {
        let Tiles { keys: stride, head, .. } = self.tiles;
        let size = Size { m: place.width, n: head, k: place.rows, add: true };
        if let Some(packed) = &mut work.packed {
            let scores = (&*work.scores, &*work.dscores, stride);
            return packed.add_key_sums(size, scores, (work.dvalue, work.dkey, head));
        }
        let transposed = |data| Left { data, row: 1, step: stride };
        multiply(size, transposed(work.scores), Right::rows(work.dout, head), work.dvalue, head);
        multiply(size, transposed(work.dscores), Right::rows(work.query, head), work.dkey, head);
    }

    pub(super) fn add_query_sums(&self, place: &ScoreTile, dquery: &mut [f32], work: &mut Work<'_>) {
        let Tiles { keys: stride, head, .. } = self.tiles;
        let size = Size { m: place.rows, n: head, k: place.width, add: true };
        if let Some(packed) = &mut work.packed {
            return packed.add_query_sums(size, (work.dscores, stride), (dquery, head));
        }
        let dscores = Left { data: work.dscores, row: stride, step: 1 };
        multiply(size, dscores, Right::rows(work.key, head), dquery, head);
    }

    pub(super) fn finish_keys(&self, b: usize, kv: usize, keys: &Range<usize>, work: &Work<'_>) {
        let (head, h) = (self.tiles.head, self.rules.shape.head_size);
        // Queries that were not packed have the scale already.
        let factor = if work.packed.is_some() { self.rules.scale } else { 1.0 };
        for (row, s) in keys.clone().enumerate() {
            // SAFETY: the block of this head belongs to the caller's piece.
            unsafe {
                self.dk.row(b, kv, s, &work.dkey[row * head..][..h], factor);
                self.dv.row(b, kv, s, &work.dvalue[row * head..][..h], 1.0);
            }
        }
    }

    /// Write zeros for the keys that padding hides.
    pub(super) fn finish_unseen_keys(&self, extent: &Extent, kv: usize, work: &mut Work<'_>) {
        let (b, seen) = (extent.b, self.rules.keys(extent));
        let zeros = &mut work.key[..self.rules.shape.head_size];
        zeros.fill(0.0);
        for s in (extent.keys.start..seen.start).chain(seen.end..extent.keys.end) {
            // SAFETY: no block of keys holds these rows, and one piece alone calls this for a head.
            unsafe {
                self.dk.row(b, kv, s, zeros, 1.0);
                self.dv.row(b, kv, s, zeros, 1.0);
            }
        }
    }

    pub(super) fn finish_queries(&self, b: usize, n: usize, queries: Range<usize>, dquery: &[f32]) {
        for (row, l) in queries.enumerate() {
            let values = &dquery[row * self.tiles.head..][..self.rules.shape.head_size];
            // SAFETY: these queries of this head belong to the caller's piece.
            unsafe { self.dq.row(b, n, l, values, self.rules.scale) };
        }
    }

    /// Make the gradient of the bias ready to be added to.
    pub(super) fn clear_bias(&self, b: usize, n: usize, queries: Range<usize>) {
        let Some((dbias, false)) = &self.dbias else { return };
        if b > 0 && self.rules.shares_bias() {
            return;
        }
        for l in queries {
            let Some(start) = self.rules.dbias_row(b, n, l) else { return };
            // SAFETY: these rows belong to the caller's piece.
            unsafe { dbias.part(start, self.rules.shape.keys) }.fill(0.0);
        }
    }

    pub(super) fn add_bias(&self, place: &ScoreTile, work: &Work<'_>) {
        let Some((dbias, _)) = &self.dbias else { return };
        for r in 0..place.rows {
            let Some(start) = self.rules.dbias_row(place.b, place.n, place.l + r) else { return };
            // SAFETY: these rows belong to the caller's piece.
            let to = unsafe { dbias.part(start + place.s, place.width) };
            let from = &work.dscores[r * self.tiles.keys..][..place.width];
            to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        }
    }
}
