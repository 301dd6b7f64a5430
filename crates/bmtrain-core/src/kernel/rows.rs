//! Arguments of kernels that move rows: embeddings, permutations, slices.

use super::elementwise::row_span;
use super::{Arguments, Dest, expect_dtype, expect_float, expect_float_operand, expect_len, expect_operand};
use crate::buffer::View;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::MAX_RANK;

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

impl Arguments for EmbeddingForward<'_> {
    const NAME: &'static str = "embedding_forward";

    fn check(&self) -> Result<()> {
        check_table(Self::NAME, self.entries, self.columns, (self.table.len(), self.table.dtype()), &self.ids)?;
        expect_float_operand(Self::NAME, "out", self.ids.len() * self.columns, &self.out.view)
    }

    visits!(table, ids, out);
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

impl Arguments for EmbeddingBackward<'_> {
    const NAME: &'static str = "embedding_backward";

    fn check(&self) -> Result<()> {
        let table = (self.dtable.view.len(), self.dtable.view.dtype());
        check_table(Self::NAME, self.entries, self.columns, table, &self.ids)?;
        expect_float_operand(Self::NAME, "dy", self.ids.len() * self.columns, &self.dy)
    }

    visits!(ids, dy, dtable);
}

fn check_table(
    name: &'static str,
    entries: usize,
    columns: usize,
    table: (usize, DType),
    ids: &View<'_>,
) -> Result<()> {
    expect_len(name, "table", entries * columns, table.0)?;
    expect_float(name, "table", table.1)?;
    expect_dtype(name, "ids", DType::I64, ids.dtype())
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
        expect_len(Self::NAME, "x", row_span(Self::NAME, self.rows, self.columns, self.x_ld)?, self.x.len())?;
        expect_len(
            Self::NAME,
            "out",
            row_span(Self::NAME, self.rows, self.columns, self.out_ld)?,
            self.out.view.len(),
        )?;
        expect_dtype(Self::NAME, "out", self.x.dtype(), self.out.view.dtype())?;
        if self.out.add { expect_float(Self::NAME, "x", self.x.dtype()) } else { Ok(()) }
    }

    visits!(x, out);
}

/// Another order of the axes: axis `i` of the result is axis `axes[i]` of the input. Any dtype.
#[derive(Debug)]
pub struct Permute<'a> {
    /// Dimensions of the input; the first `rank` count.
    pub dims: [usize; MAX_RANK],
    /// Which input axis becomes which output axis.
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
            return Err(Error::shape(
                Self::NAME,
                "axes",
                format!("each of 0..{} once", self.rank),
                format!("{axes:?}"),
            ));
        }
        expect_len(Self::NAME, "x", dims.iter().product(), self.x.len())?;
        expect_operand(Self::NAME, "out", self.x.len(), self.x.dtype(), &self.out.view)?;
        if self.out.add { expect_float(Self::NAME, "x", self.x.dtype()) } else { Ok(()) }
    }

    visits!(x, out);
}
