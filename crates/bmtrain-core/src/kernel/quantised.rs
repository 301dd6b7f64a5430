//! Arguments of kernels that read matrices in quantised blocks.

use super::elementwise::Activation;
use super::gemm::Epilogue;
use super::{Access, Arguments, Batch, Dest, Matrix, Operand, expect_float_operand, expect_len};
use crate::dtype::{BlockFormat, DType};
use crate::error::{Error, Result};
use crate::view::{View, ViewMut};

/// Text that follows the names of these kernels in the errors of a backend without them.
pub const NOT_HERE: &str =
    ": it reads quantised blocks; dequantise the matrix when it is loaded, or compute on the cpu";

/// `y = activation(x weight^T + bias)` with `x` `[m, k]`, a weight `[n, k]` in blocks and `y` `[m, n]`.
///
/// Numerics: the weight is dequantised to f32, as [`dequantise`](crate::quantised::dequantise) does, and multiplied as
/// [`Gemm`](super::Gemm) multiplies an f32 matrix: the result has the same bits on the CPU.
#[derive(Debug)]
pub struct QuantisedLinear<'a> {
    /// Rows of `x`.
    pub m: usize,
    /// Rows of the weight.
    pub n: usize,
    /// Columns of both.
    pub k: usize,
    /// `[m, k]`.
    pub x: View<'a>,
    /// `[n, bytes of a row]`, of a dtype [`DType::Blocks`].
    pub weight: View<'a>,
    /// `[m, n]`.
    pub y: ViewMut<'a>,
    /// Applied while the result is at hand, without a derivative, sums and a residual.
    pub epilogue: Epilogue<'a>,
}

impl Arguments for QuantisedLinear<'_> {
    const NAME: &'static str = "quantised_linear";

    fn check(&self) -> Result<()> {
        let (name, (m, n, k)) = (Self::NAME, (self.m, self.n, self.k));
        expect_float_operand(name, "x", m * k, &self.x)?;
        expect_float_operand(name, "y", m * n, &self.y)?;
        expect_blocks(name, "weight", &self.weight, [n, k])?;
        if self.epilogue.derivative.is_some() || self.epilogue.sums_of_a.is_some() {
            return Err(Error::argument(name, "a derivative and sums are for products that make gradients"));
        }
        if self.epilogue.residual.is_some() {
            return Err(Error::argument(name, "a residual is for products of floating-point weights"));
        }
        self.epilogue.check(name, &Matrix::plain(self.x, k), [m, n, k], Batch::ONE)
    }

    visits!(x, weight, y, epilogue);

    fn flops(&self) -> u64 {
        [self.m, self.n, self.k].into_iter().fold(2, |product, factor| product.saturating_mul(factor as u64))
    }
}

/// `dx (+)= dy weight`, the gradient of `x` of a [`QuantisedLinear`], with `dy` `[m, n]`, a weight `[n, k]` in blocks
/// and `dx` `[m, k]`; times the derivative of an activation.
///
/// Numerics: as [`QuantisedLinear`], without a copy of the dequantised weight.
#[derive(Debug)]
pub struct QuantisedInputGradient<'a> {
    /// Rows of `dy`.
    pub m: usize,
    /// Rows of the weight.
    pub n: usize,
    /// Columns of the weight.
    pub k: usize,
    /// `[m, n]`.
    pub dy: View<'a>,
    /// `[n, bytes of a row]`, of a dtype [`DType::Blocks`].
    pub weight: View<'a>,
    /// `[m, k]`.
    pub dx: Dest<'a>,
    /// As [`Epilogue::derivative`], at `[m, k]`.
    pub derivative: Option<(Activation, View<'a>)>,
}

impl Arguments for QuantisedInputGradient<'_> {
    const NAME: &'static str = "quantised_input_gradient";

    fn check(&self) -> Result<()> {
        let (name, (m, n, k)) = (Self::NAME, (self.m, self.n, self.k));
        expect_float_operand(name, "dy", m * n, &self.dy)?;
        expect_float_operand(name, "dx", m * k, &self.dx.view)?;
        if let Some((_, points)) = &self.derivative {
            expect_float_operand(name, "points of the derivative", m * k, points)?;
        }
        expect_blocks(name, "weight", &self.weight, [n, k])
    }

    fn visit(&self, visit: &mut dyn FnMut(Access<'_>)) {
        self.dy.visit(visit);
        self.weight.visit(visit);
        self.dx.visit(visit);
        self.derivative.iter().for_each(|(_, points)| points.visit(visit));
    }

    fn flops(&self) -> u64 {
        [self.m, self.n, self.k].into_iter().fold(2, |product, factor| product.saturating_mul(factor as u64))
    }
}

/// `out[r] (+)= table[ids[r]]` of a table in blocks, dequantised. An id outside the table is an error, never an access.
#[derive(Debug)]
pub struct QuantisedRows<'a> {
    /// Rows of the table.
    pub entries: usize,
    /// Columns of the table.
    pub columns: usize,
    /// `[entries, bytes of a row]`, of a dtype [`DType::Blocks`].
    pub table: View<'a>,
    /// i64 `[rows]`.
    pub ids: View<'a>,
    /// `[rows, columns]`.
    pub out: Dest<'a>,
}

impl Arguments for QuantisedRows<'_> {
    const NAME: &'static str = "quantised_rows";

    fn check(&self) -> Result<()> {
        let name = Self::NAME;
        super::expect_dtype(name, "ids", DType::I64, self.ids.dtype())?;
        expect_float_operand(name, "out", self.ids.len() * self.columns, &self.out.view)?;
        expect_blocks(name, "table", &self.table, [self.entries, self.columns])
    }

    visits!(table, ids, out);
}

/// Require a matrix in blocks of this shape.
fn expect_blocks(op: &'static str, what: &'static str, matrix: &View<'_>, [rows, columns]: [usize; 2]) -> Result<()> {
    let format = format_of(op, what, matrix.dtype())?;
    let row = format.row_bytes(columns).filter(|bytes| *bytes > 0);
    let bytes = row.and_then(|bytes| bytes.checked_mul(rows)).ok_or_else(|| {
        let expected = format!("whole blocks of {} elements", format.elements());
        Error::shape(op, format!("row of {what}"), expected, columns)
    })?;
    expect_len(op, what, bytes, matrix.len())
}

/// The format of a dtype of blocks.
pub(crate) fn format_of(op: &'static str, what: &str, dtype: DType) -> Result<BlockFormat> {
    match dtype {
        DType::Blocks(format) => Ok(format),
        got => Err(Error::DType { op, what: what.into(), expected: "quantised blocks".into(), got }),
    }
}
