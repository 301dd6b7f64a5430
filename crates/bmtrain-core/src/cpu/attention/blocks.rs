//! The products of attention where the processor multiplies bf16 (`cpu::tiles`): queries, keys, values and gradients of
//! the result as they are, probabilities and gradients of scores rounded to bf16.
//!
//! Defines [`Blocks`], which `forward.rs` has for a block of queries, and [`Packed`], the operands of the backward
//! pass. Operands are packed from where they are; the scale is left to the scores.
#![allow(unsafe_code)]

use super::extent::Extent;
use super::product::Size;
use super::tiles::Tiles;
use crate::cpu::floats::Floats;
use crate::cpu::scratch::Region;
use crate::cpu::tiles::{BLOCK, Multiply, STEP, Session, Sums, TILE, Unit, pack};
use crate::simd::InstructionSet;
use half::bf16;

/// Fewest queries of an extent that repay packing.
const LEAST_QUERIES: usize = 16;

/// Fewest numbers of a head.
const LEAST_HEAD: usize = 8;

/// The unit that computes the products of a call whose heads are all bf16, if there is one.
pub(super) fn unit(are_bf16: bool, head_size: usize) -> Option<Unit> {
    if are_bf16 && head_size >= LEAST_HEAD { Unit::of(InstructionSet::current()) } else { None }
}

/// The unit for an extent. It follows from the extent alone, so that a packed document has the bits of a sequence.
pub(super) fn unit_for(unit: Option<Unit>, extent: &Extent) -> Option<Unit> {
    unit.filter(|_| extent.queries.len() >= LEAST_QUERIES)
}

/// An operand in memory: `lines` are rows or columns of the result.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix<'a> {
    source: pack::Source<'a>,
    lines: usize,
    terms: usize,
}

impl<'a> Matrix<'a> {
    /// Rows of a head, which are lines of `terms` elements.
    pub(super) fn rows((data, stride): (Floats<'a>, usize), (lines, terms): (usize, usize)) -> Self {
        Matrix { source: pack::Source { data: numbers(data), stride, across: false }, lines, terms }
    }

    /// Rows of a head, which are terms of `lines` elements.
    pub(super) fn across((data, stride): (Floats<'a>, usize), (terms, lines): (usize, usize)) -> Self {
        Matrix { source: pack::Source { data: numbers(data), stride, across: true }, lines, terms }
    }

    fn left<'t>(self, to: &'t mut [f32]) -> Operand<'t> {
        let data = &mut to[..packed_len(self.lines, self.terms)];
        pack::left(self.source, 0..self.lines, 0..self.terms, bytemuck::cast_slice_mut(data));
        Operand { data, terms: self.terms }
    }

    fn right<'t>(self, to: &'t mut [f32]) -> Operand<'t> {
        let data = &mut to[..packed_len(self.lines, self.terms)];
        pack::right(self.source, 0..self.lines, 0..self.terms, bytemuck::cast_slice_mut(data));
        Operand { data, terms: self.terms }
    }
}

/// A packed operand: panels of [`BLOCK`] lines.
#[derive(Debug, Clone, Copy)]
struct Operand<'t> {
    data: &'t [f32],
    terms: usize,
}

impl<'t> Operand<'t> {
    /// The first `k` terms of the panels.
    fn panels(self, k: usize) -> impl Iterator<Item = &'t [bf16]> {
        let (panel, used) = (packed_len(BLOCK, self.terms), packed_len(BLOCK, k));
        self.data.chunks_exact(panel).map(move |panel| bytemuck::cast_slice(&panel[..used]))
    }
}

fn numbers(data: Floats<'_>) -> pack::Numbers<'_> {
    match data {
        Floats::Bf16(data) => pack::Numbers::Bf16(data),
        Floats::F32(data) => pack::Numbers::F32(data),
        Floats::F16(_) => unreachable!("a unit is chosen for heads of bf16 alone"),
    }
}

/// Elements of f32 that a packed operand takes.
fn packed_len(lines: usize, terms: usize) -> usize {
    lines.next_multiple_of(BLOCK) * terms.next_multiple_of(STEP) / 2
}

/// `c (+)= a b`, rows of `c` being `c_row` elements apart; `size.n` is a multiple of 16.
fn multiply(tiles: &Session, size: Size, (a, b): (Operand<'_>, Operand<'_>), c: &mut [f32], c_row: usize) {
    let Size { m, n, k, add } = size;
    assert!(n.is_multiple_of(TILE) && (m.max(1) - 1) * c_row + n <= c.len(), "result of {m} x {n}");
    for (b, j) in b.panels(k).zip((0..n).step_by(BLOCK)) {
        let columns = BLOCK.min(n - j);
        for (a, i) in a.panels(k).zip((0..m).step_by(BLOCK)) {
            let rows = BLOCK.min(m - i);
            let block = |to: Sums| Multiply { a, b, rows, columns, from: add.then_some(to), to, next: b };
            if rows.is_multiple_of(TILE) || tiles.keeps_to_rows() {
                let to = Sums { first: c[i * c_row + j..].as_mut_ptr(), row: c_row };
                // SAFETY: the rows and whole tiles of them are inside the result, which is borrowed.
                unsafe { tiles.multiply(block(to)) };
                continue;
            }
            // What follows the last rows is another's, or not there.
            let mut edge = [0.0; BLOCK * BLOCK];
            let place = |row: usize| row * c_row + j..row * c_row + j + columns;
            for (row, edge) in (i..i + rows).zip(edge.chunks_exact_mut(BLOCK)).filter(|_| add) {
                edge[..columns].copy_from_slice(&c[place(row)]);
            }
            // SAFETY: these are the sums of a whole block.
            unsafe { tiles.multiply(block(Sums { first: edge.as_mut_ptr(), row: BLOCK })) };
            for (row, edge) in (i..i + rows).zip(edge.chunks_exact(BLOCK)) {
                c[place(row)].copy_from_slice(&edge[..columns]);
            }
        }
    }
}

/// Products of the forward pass for a block of queries.
pub(super) struct Blocks<'s> {
    tiles: Session,
    query: Operand<'s>,
    /// Keys, then values.
    key: &'s mut [f32],
    probabilities: &'s mut [f32],
}

impl<'s> Blocks<'s> {
    /// Packs the queries. `regions` are for them, for keys and for probabilities.
    pub(super) fn new(unit: Unit, largest: &Tiles, queries: Matrix<'_>, regions: [&'s mut Region; 3]) -> Self {
        let Tiles { queries: rows, keys, head } = *largest;
        let [query, key, probabilities] = regions;
        Blocks {
            tiles: unit.begin(),
            query: queries.left(query.take(packed_len(rows, head))),
            key: key.take(packed_len(keys, head)),
            probabilities: probabilities.take(packed_len(rows, keys)),
        }
    }

    /// Scores without the scale.
    pub(super) fn scores(&mut self, size: Size, keys: Matrix<'_>, scores: &mut [f32], row: usize) {
        multiply(&self.tiles, size, (self.query, keys.right(self.key)), scores, row);
    }

    /// Adds values by their probabilities.
    pub(super) fn add_values(
        &mut self,
        size: Size,
        (probabilities, values): (Matrix<'_>, Matrix<'_>),
        out: &mut [f32],
        row: usize,
    ) {
        let probabilities = probabilities.left(self.probabilities);
        multiply(&self.tiles, size, (probabilities, values.right(self.key)), out, row);
    }
}

/// The gradients that a piece of work computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    All,
    OfQueries,
    OfKeys,
}

impl Wanted {
    fn of_queries(self) -> bool {
        matches!(self, Wanted::All | Wanted::OfQueries)
    }

    /// And of values.
    fn of_keys(self) -> bool {
        matches!(self, Wanted::All | Wanted::OfKeys)
    }
}

/// Operands of the backward pass.
pub(super) struct Packed<'s> {
    tiles: Session,
    /// Queries and gradients of the result, as lines and as terms.
    query: [Slot<'s>; 2],
    dout: [Slot<'s>; 2],
    /// Keys as lines and as terms, values as lines.
    key: [Slot<'s>; 2],
    value: Slot<'s>,
    scores: &'s mut [f32],
    wanted: Wanted,
}

/// Memory of an operand, and the terms of what it holds.
struct Slot<'s> {
    data: &'s mut [f32],
    terms: usize,
}

impl<'s> Slot<'s> {
    fn new(region: &'s mut Region, len: usize) -> Self {
        Slot { data: region.take(len), terms: 0 }
    }

    fn left(&mut self, from: Matrix<'_>) {
        self.terms = from.left(self.data).terms;
    }

    fn right(&mut self, from: Matrix<'_>) {
        self.terms = from.right(self.data).terms;
    }

    fn operand(&self) -> Operand<'_> {
        Operand { data: self.data, terms: self.terms }
    }
}

/// Rows of a head in place: their numbers, and the distance between two of them.
type InPlace<'a> = (Floats<'a>, usize);

impl<'s> Packed<'s> {
    /// Memory for the largest tiles of the operands that what is wanted needs.
    pub(super) fn new(unit: Unit, largest: &Tiles, wanted: Wanted, regions: PackedRegions<'s>) -> Self {
        let Tiles { queries, keys, head } = *largest;
        let PackedRegions { query, query_across, dout, dout_across, key, key_across, value, scores } = regions;
        let slot = |region: &'s mut Region, rows: usize| Slot::new(region, packed_len(rows, head));
        let slot_if = |is_wanted: bool, region, rows| slot(region, if is_wanted { rows } else { 0 });
        let (of_keys, of_queries) = (wanted.of_keys(), wanted.of_queries());
        Packed {
            tiles: unit.begin(),
            query: [slot(query, queries), slot_if(of_keys, query_across, queries)],
            dout: [slot(dout, queries), slot_if(of_keys, dout_across, queries)],
            key: [slot(key, keys), slot_if(of_queries, key_across, keys)],
            value: slot(value, keys),
            scores: scores.take(packed_len(queries, keys)),
            wanted,
        }
    }

    /// Packs keys and values, `(rows, head size)`.
    pub(super) fn load_keys(&mut self, key: InPlace<'_>, value: InPlace<'_>, size: (usize, usize)) {
        self.key[0].right(Matrix::rows(key, size));
        if self.wanted.of_queries() {
            self.key[1].right(Matrix::across(key, size));
        }
        self.value.right(Matrix::rows(value, size));
    }

    /// Packs queries and gradients of the result, `(rows, head size)`.
    pub(super) fn load_queries(&mut self, query: InPlace<'_>, dout: InPlace<'_>, size: (usize, usize)) {
        self.query[0].left(Matrix::rows(query, size));
        self.dout[0].left(Matrix::rows(dout, size));
        if self.wanted.of_keys() {
            self.query[1].right(Matrix::across(query, size));
            self.dout[1].right(Matrix::across(dout, size));
        }
    }

    /// Scores without the scale, and gradients of dropped probabilities.
    pub(super) fn tile(&self, size: Size, scores: &mut [f32], dscores: &mut [f32], row: usize) {
        multiply(&self.tiles, size, (self.query[0].operand(), self.key[0].operand()), scores, row);
        multiply(&self.tiles, size, (self.dout[0].operand(), self.value.operand()), dscores, row);
    }

    /// Adds to the gradients of values, and of keys but for the scale.
    pub(super) fn add_key_sums(
        &mut self,
        size: Size,
        (scores, dscores, row): (&[f32], &[f32], usize),
        (dvalue, dkey, head): (&mut [f32], &mut [f32], usize),
    ) {
        let transposed = |data| Matrix::across((Floats::F32(data), row), (size.k, size.m));
        let dropped = transposed(scores).left(self.scores);
        multiply(&self.tiles, size, (dropped, self.dout[1].operand()), dvalue, head);
        let dscores = transposed(dscores).left(self.scores);
        multiply(&self.tiles, size, (dscores, self.query[1].operand()), dkey, head);
    }

    /// Adds to the gradients of queries, but for the scale.
    pub(super) fn add_query_sums(
        &mut self,
        size: Size,
        (dscores, row): (&[f32], usize),
        (to, head): (&mut [f32], usize),
    ) {
        let dscores = Matrix::rows((Floats::F32(dscores), row), (size.m, size.k)).left(self.scores);
        multiply(&self.tiles, size, (dscores, self.key[1].operand()), to, head);
    }
}

/// Memory of [`Packed`].
pub(super) struct PackedRegions<'s> {
    pub(super) query: &'s mut Region,
    pub(super) query_across: &'s mut Region,
    pub(super) dout: &'s mut Region,
    pub(super) dout_across: &'s mut Region,
    pub(super) key: &'s mut Region,
    pub(super) key_across: &'s mut Region,
    pub(super) value: &'s mut Region,
    pub(super) scores: &'s mut Region,
}
