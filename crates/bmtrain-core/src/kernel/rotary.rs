//! Arguments of rotary positions.

use super::{Arguments, Dest, Elements, expect, expect_replaced};
use crate::error::{Error, Result};
use crate::view::View;

/// Pairing of the elements of a head that are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RotaryLayout {
    /// Element `i` and element `i + dims / 2`, as in Llama.
    Halves,
    /// Elements `2i` and `2i + 1`, as in GPT-J.
    Pairs,
}

/// Turn pairs of elements of the first `heads` heads of every row by the angles of the row's position: `(a, b)` becomes
/// `(a cos - b sin, b cos + a sin)`. What is not turned is copied; without `x` the content of `y` is turned and the
/// rest left alone.
///
/// Numerics: f32. A position outside of the table is an error, never an access.
/// Source: Su et al. (2021), equation 34.
#[derive(Debug)]
pub struct RotaryApply<'a> {
    /// Rows of all sequences.
    pub rows: usize,
    /// Rows of a sequence; without positions row `r` is at position `r % length`.
    pub length: usize,
    /// Elements of a row.
    pub columns: usize,
    /// Heads that are turned, the first of the row.
    pub heads: usize,
    /// Length of a head.
    pub head_size: usize,
    /// Elements of a head that are turned, its first ones; an even number.
    pub dims: usize,
    /// Pairing of the elements.
    pub layout: RotaryLayout,
    /// Rotate by the negative angles: the gradient.
    pub inverse: bool,
    /// Positions of the table.
    pub entries: usize,
    /// f32 `[entries, dims]`: of each position the cosines of its `dims / 2` angles, then the sines.
    pub table: View<'a>,
    /// i64 `[rows]`.
    pub positions: Option<View<'a>>,
    /// Input `[rows, columns]`.
    pub x: Option<View<'a>>,
    /// Output `[rows, columns]`.
    pub y: Dest<'a>,
}

impl Arguments for RotaryApply<'_> {
    const NAME: &'static str = "rotary";

    fn check(&self) -> Result<()> {
        let RotaryApply { rows, length, columns, heads, head_size, dims, entries, .. } = *self;
        if !dims.is_multiple_of(2) || dims > head_size {
            return Err(Error::shape(Self::NAME, "turned elements", format!("an even part of {head_size}"), dims));
        }
        if heads.checked_mul(head_size).is_none_or(|width| width > columns) {
            let got = format!("{heads} of {head_size}");
            return Err(Error::shape(Self::NAME, "heads", format!("at most {columns} elements"), got));
        }
        let (Some(len), Some(table)) = (rows.checked_mul(columns), entries.checked_mul(dims)) else {
            return Err(Error::shape(Self::NAME, "sizes", "countable elements", format!("{rows} x {columns}")));
        };
        expect(Self::NAME, "table", &self.table, Elements::F32, Some(table))?;
        expect(Self::NAME, "positions", &self.positions, Elements::I64, Some(rows))?;
        if self.positions.is_none() && rows > 0 && (length == 0 || length > entries) {
            let expected = format!("1 to {entries} as the table");
            return Err(Error::shape(Self::NAME, "rows of a sequence", expected, length));
        }
        expect(Self::NAME, "x", &self.x, Elements::Float, Some(len))?;
        expect_replaced(Self::NAME, self.x.as_ref(), &self.y, "a rotation in place cannot be added")?;
        expect(Self::NAME, "y", &self.y, Elements::Float, Some(len))
    }

    visits!(table, positions, x, y);
}
