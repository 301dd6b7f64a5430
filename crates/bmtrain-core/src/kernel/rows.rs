//! Arguments of kernels that move rows: embeddings, permutations, slices.

use super::elementwise::row_span;
use super::{Arguments, Dest, expect_float, expect_len, expect_operand, expect_single};
use crate::error::{Error, Result};
use crate::shape::MAX_RANK;
use crate::view::View;

/// `out[r] (+)= table[ids[r]]`. An id outside the table is an error, never an access.
#[derive(Debug)]
pub struct EmbeddingForward<'a> {
    /// Rows of the table.
    pub entries: usize,
    /// Columns of the table.
    pub columns: usize,
    /// `[entries, columns]`.
    pub table: View<'a>,
    /// i64 `[rows]`.
    pub ids: View<'a>,
    /// `[rows, columns]`.
    pub out: Dest<'a>,
}

arguments! {
    EmbeddingForward, "embedding_forward", |a| {
        table: Float[a.entries * a.columns], ids: I64, out: Float[a.ids.len() * a.columns]
    }
}

/// Gradient of the table: `dtable[ids[r]] += dy[r]` in the order of the rows, after zeroing unless it is added to.
#[derive(Debug)]
pub struct EmbeddingBackward<'a> {
    /// Rows of the table.
    pub entries: usize,
    /// Columns of the table.
    pub columns: usize,
    /// i64 `[rows]`.
    pub ids: View<'a>,
    /// Rows with this id give no gradient.
    pub padding_index: Option<i64>,
    /// `[rows, columns]`.
    pub dy: View<'a>,
    /// `[entries, columns]`.
    pub dtable: Dest<'a>,
}

arguments! {
    EmbeddingBackward, "embedding_backward", |a| {
        ids: I64, dy: Float[a.ids.len() * a.columns], dtable as "table": Float[a.entries * a.columns]
    }
}

/// Rows from one place to another: `out[r * out_ld + c] (+)= x[r * x_ld + c]`. Slices, concatenations and their
/// gradients.
#[derive(Debug)]
pub struct RowCopy<'a> {
    /// Number of rows.
    pub rows: usize,
    /// Elements of a row.
    pub columns: usize,
    /// Elements from one source row to the next.
    pub x_ld: usize,
    /// Source, from its first element to its last.
    pub x: View<'a>,
    /// Elements from one written row to the next.
    pub out_ld: usize,
    /// Destination; elements between the rows are left alone. Adding is for floating-point types.
    pub out: Dest<'a>,
}

impl Arguments for RowCopy<'_> {
    const NAME: &'static str = "row_copy";

    fn check(&self) -> Result<()> {
        expect_single(Self::NAME, "x", self.x.dtype())?;
        expect_len(Self::NAME, "x", row_span(Self::NAME, self.rows, self.columns, self.x_ld)?, self.x.len())?;
        let out_len = row_span(Self::NAME, self.rows, self.columns, self.out_ld)?;
        expect_operand(Self::NAME, "out", out_len, self.x.dtype(), &self.out.view)?;
        if self.out.add { expect_float(Self::NAME, "x", self.x.dtype()) } else { Ok(()) }
    }

    visits!(x, out);
}

/// Another order of the axes: axis `i` of the result is axis `axes[i]` of the input. Any dtype.
#[derive(Debug)]
pub struct Permute<'a> {
    /// Dimensions of the input; the first `rank` count.
    pub dims: [usize; MAX_RANK],
    /// Input axis of each output axis.
    pub axes: [usize; MAX_RANK],
    /// Number of axes.
    pub rank: usize,
    /// Input.
    pub x: View<'a>,
    /// Output.
    pub out: Dest<'a>,
}

impl Arguments for Permute<'_> {
    const NAME: &'static str = "permute";

    fn check(&self) -> Result<()> {
        let (Some(dims), Some(axes)) = (self.dims.get(..self.rank), self.axes.get(..self.rank)) else {
            return Err(Error::shape(Self::NAME, "rank", format!("at most {MAX_RANK}"), self.rank));
        };
        if !(0..self.rank).all(|axis| axes.contains(&axis)) {
            let expected = format!("each of 0..{} once", self.rank);
            return Err(Error::shape(Self::NAME, "axes", expected, format!("{axes:?}")));
        }
        expect_single(Self::NAME, "x", self.x.dtype())?;
        expect_len(Self::NAME, "x", dims.iter().product(), self.x.len())?;
        expect_operand(Self::NAME, "out", self.x.len(), self.x.dtype(), &self.out.view)?;
        if self.out.add { expect_float(Self::NAME, "x", self.x.dtype()) } else { Ok(()) }
    }

    visits!(x, out);
}
