//! Learned factors of columns, and lengths of rows: [`scale_columns`], [`updated_row_norms`], [`row_norms`],
//! [`divide_by_norms`].
//!
//! They are made of kernels that every backend has, a band of rows at a time, whose scratch stays in the caches.

use super::elementwise::mul;
use super::gemm::{add_to_rows, bias_gradient, matrix_dims};
use super::*;
use crate::kernel::{AddScaled, ColumnSum, Gemm, Matrix, Multiply, NormForward, NormKind, QuantisedRows};
use std::ops::Range;

/// Elements of a band of rows: 1 MiB in f32.
const BAND: usize = 1 << 18;
/// Added to mean squares, so that a row of zeros has a reciprocal.
const TINY: f32 = f32::MIN_POSITIVE;

/// Rows of a band, of `rows` rows in all: at least one.
fn band_of(rows: usize, columns: usize) -> usize {
    (BAND / columns.max(1)).clamp(1, rows.max(1))
}

/// `y[.., c] = x[.., c] · factors[c] + bias[c]`, in place when x owns its memory alone and the factors have no
/// gradient.
///
/// Shapes: x `[.., N]`, factors `[N]`, bias `[N]` → `[.., N]`.
/// Numerics: f32, rounded after the product and after the sum. Saves x where the factors have a gradient.
///
/// # Errors
/// Shapes that do not fit.
pub fn scale_columns(cx: &Ctx, x: Var, factors: &Var, bias: Option<&Var>) -> Result<Var> {
    let (shape, dtype, columns) = (x.shape(), x.dtype(), x.shape().last());
    expect_elements("scale_columns", "factors", columns, factors.shape())?;
    bias.map_or(Ok(()), |bias| expect_elements("scale_columns", "bias", columns, bias.shape()))?;
    let (value, source) = x.into_parts();
    let saved = cx.records(&[factors]).then(|| value.clone());
    let mut y = scaled(cx, value, factors.value())?; // [.., N]
    if let Some(bias) = bias.filter(|_| y.elements() > 0) {
        add_to_rows(bias.value(), &mut y)?;
    }
    let x = Var::from_parts(y.clone(), source);
    let absent = x.detach();
    Ok(cx.record(y, &[&x, factors, bias.unwrap_or(&absent)], || {
        Box::new(ScaleColumnsBackward {
            x: saved,
            factors: Saved::of(factors),
            shape,
            dtypes: [dtype, factors.dtype(), bias.map_or(dtype, Var::dtype)],
        })
    }))
}

/// The columns of x times their factors, in its memory if that may be overwritten.
fn scaled(cx: &Ctx, x: Tensor, factors: &Tensor) -> Result<Tensor> {
    if x.may_be_overwritten() {
        let mut y = x;
        each_band(factors, y.shape().rows(), |range, copies| {
            let out = Dest { view: y.view_mut()?.part(range.start, range.len())?, add: false };
            cx.device().launch(Multiply { a: copies, b: None, out })
        })?;
        return Ok(y);
    }
    let mut y = empty(cx, x.shape(), x.dtype())?; // [.., N]
    times(cx.device(), &x, factors, y.dest(false)?)?;
    Ok(y)
}

/// `out (+)=` the columns of x times their factors.
fn times(device: &Device, x: &Tensor, factors: &Tensor, out: Dest<'_>) -> Result<()> {
    let Dest { mut view, add } = out;
    each_band(factors, x.elements().checked_div(factors.elements()).unwrap_or(0), |range, copies| {
        let out = Dest { view: view.reborrow().part(range.start, range.len())?, add };
        device.launch(Multiply { a: x.view()?.part(range.start, range.len())?, b: Some(copies), out })
    })
}

/// Bands of `rows` rows of as many columns as there are factors: their elements, and the factors once for each row, in
/// f32.
fn each_band(factors: &Tensor, rows: usize, mut work: impl FnMut(Range<usize>, View<'_>) -> Result<()>) -> Result<()> {
    let (device, columns) = (factors.device().clone(), factors.elements());
    if rows == 0 || columns == 0 {
        return Ok(());
    }
    let band = band_of(rows, columns);
    let factors = in_dtype(factors.clone(), DType::F32)?; // [N]
    let ones = Tensor::full_in(&device, [band], DType::F32, 1.0, Segment::Workspace)?; // [band]
    let mut copies = Tensor::empty_in(&device, [band, columns], DType::F32, Segment::Workspace)?; // [band, N]
    let (a, b) = (Matrix::plain(ones.view()?, 1), Matrix::plain(factors.view()?, columns));
    device.launch(Gemm::single([band, columns, 1], a, b, copies.dest(false)?))?;
    for first in (0..rows).step_by(band) {
        let count = band.min(rows - first);
        work(first * columns..(first + count) * columns, copies.view()?.part(0, count * columns)?)?;
    }
    Ok(())
}

#[derive(Debug)]
struct ScaleColumnsBackward {
    /// Present when the gradient of the factors is wanted.
    x: Option<Tensor>,
    factors: Saved,
    /// Shape of x.
    shape: Shape,
    /// Dtypes of x, of the factors and of the bias.
    dtypes: [DType; 3],
}

impl Backward for ScaleColumnsBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let ScaleColumnsBackward { x, factors, shape, dtypes } = *self;
        let (dy, factors) = (only("scale_columns", dy)?, factors.get()?);
        let columns = factors.elements();
        bias_gradient(cx, 2, &dy, columns, dtypes[2])?;
        if let Some(x) = x {
            cx.write(1, factors.shape(), dtypes[1], |device, out| sums_of_products(device, &x, &dy, columns, out))?;
        }
        cx.write(0, shape, dtypes[0], |device, dx| times(device, &dy, &factors, dx))
    }

    fn saved_bytes(&self) -> usize {
        bytes_of(&self.x) + self.factors.bytes()
    }
}

/// `out[c] (+)= sum over rows of x[r, c] dy[r, c]`: band by band, in f32.
fn sums_of_products(device: &Device, x: &Tensor, dy: &Tensor, columns: usize, out: Dest<'_>) -> Result<()> {
    let rows = x.elements().checked_div(columns).unwrap_or(0);
    let band = band_of(rows, columns);
    let mut products = Tensor::empty_in(device, [band, columns], DType::F32, Segment::Workspace)?; // [band, N]
    let mut sums = Tensor::full_in(device, [columns], DType::F32, 0.0, Segment::Workspace)?; // [N]
    for first in (0..rows).step_by(band) {
        let count = band.min(rows - first);
        let (start, len) = (first * columns, count * columns);
        let (a, b) = (x.view()?.part(start, len)?, dy.view()?.part(start, len)?);
        let view = products.view_mut()?.part(0, len)?;
        device.launch(Multiply { a, b: Some(b), out: Dest { view, add: false } })?;
        let x = products.view()?.part(0, len)?;
        device.launch(ColumnSum { rows: count, columns, x, out: sums.dest(true)? })?;
    }
    let beta = if out.add { 1.0 } else { 0.0 };
    device.launch(AddScaled { alpha: 1.0, a: sums.view()?, beta, b: None, out: out.view })
}

/// A low-rank update of a matrix, without gradients.
#[derive(Debug, Clone, Copy)]
pub struct RowUpdate<'a> {
    /// `[R, K]`.
    pub a: &'a Tensor,
    /// `[C, R]`.
    pub b: &'a Tensor,
    /// Factor of `b a`.
    pub factor: f32,
}

/// Lengths `‖weight[first + c] + factor · (b a)[c]‖` of rows of an updated matrix, f32 `[C]`, without a gradient.
/// Without an update, of `rows` rows from the first on.
///
/// Shapes: weight `[N, K]`, in quantised blocks too, with the C rows from `first` on inside → `[C]`.
/// Numerics: f32. Memory: two bands of rows, whatever the matrix.
///
/// # Errors
/// Shapes that do not fit.
pub fn updated_row_norms(
    cx: &Ctx,
    weight: &Tensor,
    rows: Range<usize>,
    update: Option<RowUpdate<'_>>,
) -> Result<Tensor> {
    let name = "updated_row_norms";
    let [all, columns] = matrix_dims(name, weight)?;
    if rows.start > rows.end || rows.end > all {
        return Err(Error::shape(name, "rows", format!("inside 0..{all}"), format!("{rows:?}")));
    }
    let update = update
        .map(|RowUpdate { a, b, factor }| {
            let [rank, _] = a.dims(name)?;
            expect_shape(name, "a", Shape::from([rank, columns]), a.shape())?;
            expect_shape(name, "b", Shape::from([rows.len(), rank]), b.shape())?;
            Ok::<_, Error>((in_dtype(a.clone(), DType::F32)?, in_dtype(b.clone(), DType::F32)?, rank, factor))
        })
        .transpose()?;
    let (device, count) = (cx.device(), rows.len());
    let mut reciprocals = Reciprocals::new(device, count, columns)?;
    let band = band_of(count, columns);
    let mut sums = Tensor::empty_in(device, [band, columns], DType::F32, Segment::Workspace)?; // [band, K]
    for first in (0..count).step_by(band) {
        let n = band.min(count - first);
        let rows = weight.slice(rows.start + first..rows.start + first + n)?;
        let out = Dest { view: sums.view_mut()?.part(0, n * columns)?, add: false };
        match rows.dtype() {
            DType::Blocks(_) => {
                let ids = Tensor::arange(device, 0..n as i64)?;
                let (table, ids) = (rows.view()?, ids.view()?);
                device.launch(QuantisedRows { entries: n, columns, table, ids, out })?;
            }
            _ => device.launch(Cast { x: rows.view()?, out })?,
        }
        if let Some((a, b, rank, factor)) = &update {
            let b = b.slice(first..first + n)?;
            let (b, a) = (Matrix::plain(b.view()?, *rank), Matrix::plain(a.view()?, columns));
            let out = Dest { view: sums.view_mut()?.part(0, n * columns)?, add: true };
            device.launch(Gemm { alpha: *factor, ..Gemm::single([n, columns, *rank], b, a, out) })?;
        }
        reciprocals.add(first, n, &sums)?;
    }
    reciprocals.norms()
}

/// Lengths of the rows of x, f32 `[C]`, without a gradient.
///
/// Shapes: x `[C, K]` → `[C]`.
///
/// # Errors
/// An x that is not a matrix.
pub fn row_norms(cx: &Ctx, x: &Tensor) -> Result<Tensor> {
    let [rows, _] = x.dims("row_norms")?;
    updated_row_norms(cx, x, 0..rows, None)
}

/// `values / norms`, elementwise, of lengths that have no gradient.
///
/// Numerics: f32, the reciprocals rounded first.
///
/// # Errors
/// Numbers that differ.
pub fn divide_by_norms(cx: &Ctx, values: &Var, norms: &Tensor) -> Result<Var> {
    expect_shape("divide_by_norms", "norms", values.shape(), norms.shape())?;
    let mut reciprocals = Reciprocals::new(cx.device(), norms.elements(), 1)?;
    reciprocals.add(0, norms.elements(), norms)?;
    mul(cx, values, &Var::constant(reciprocals.values))
}

/// Reciprocal root mean squares of rows.
struct Reciprocals {
    /// Rows of a band.
    band: usize,
    columns: usize,
    ones: Tensor,
    /// Normalised rows, which nothing reads.
    normalised: Tensor,
    /// f32 `[rows]`.
    values: Tensor,
}

impl Reciprocals {
    fn new(device: &Device, rows: usize, columns: usize) -> Result<Self> {
        let band = band_of(rows, columns);
        Ok(Reciprocals {
            band,
            columns,
            ones: Tensor::full_in(device, [columns], DType::F32, 1.0, Segment::Workspace)?,
            normalised: Tensor::empty_in(device, [band * columns], DType::F32, Segment::Workspace)?,
            values: Tensor::empty_in(device, [rows], DType::F32, Segment::Activations)?,
        })
    }

    /// Compute them for the first `count` rows of x, f32, which are the rows from `first` on.
    fn add(&mut self, first: usize, count: usize, x: &Tensor) -> Result<()> {
        let Reciprocals { band, columns, ones, normalised, values } = self;
        let (device, band, columns) = (x.device().clone(), *band, *columns);
        for start in (0..count).step_by(band) {
            let rows = band.min(count - start);
            device.launch(NormForward {
                weight_offset: 0.0,
                kind: NormKind::Rms,
                rows,
                columns,
                epsilon: TINY,
                x: x.view()?.part(start * columns, rows * columns)?,
                dropout: None,
                residual: None,
                sum: None,
                weight: ones.view()?,
                bias: None,
                y: normalised.view_mut()?.part(0, rows * columns)?,
                mean: None,
                rstd: values.view_mut()?.part(first + start, rows)?,
            })?;
        }
        Ok(())
    }

    /// The lengths of the rows.
    fn norms(self) -> Result<Tensor> {
        let (rows, columns) = (self.values.elements(), self.columns);
        let device = self.values.device().clone();
        let mut again = Reciprocals::new(&device, rows, 1)?;
        again.add(0, rows, &self.values)?;
        let mut norms = self.values; // [rows]
        let alpha = (columns as f32).sqrt();
        device.launch(AddScaled { alpha, a: again.values.view()?, beta: 0.0, b: None, out: norms.view_mut()? })?;
        Ok(norms)
    }
}
