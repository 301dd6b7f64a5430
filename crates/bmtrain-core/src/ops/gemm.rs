//! Products with weights: [`linear`], and the parts that the other ops with weights are made of.

use super::product_input::{ProductOperands, SavedInput};
use super::product_weight::OutputRanks;
use super::*;
use crate::fp8::Fp8Factors;
use crate::kernel::{
    Activation, ActivationBackward, ColumnSum, Epilogue, Gemm, Matrix, QuantisedInputGradient, QuantisedLinear,
};
use crate::view::ViewMut;

/// Precision of the factors of a layer's matrix multiplications.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ProductPrecision {
    /// Nothing: they are multiplied in their dtypes.
    #[default]
    Full,
    /// 8 bits, with a scale for each tensor from its largest magnitude: E4M3, and E5M2 for gradients of results. The
    /// results are in the dtypes that they have otherwise.
    Fp8,
}

impl ProductPrecision {
    fn forward(self) -> Option<Fp8Factors> {
        (self == ProductPrecision::Fp8).then_some(Fp8Factors::FORWARD)
    }

    fn backward(self) -> Option<Fp8Factors> {
        (self == ProductPrecision::Fp8).then_some(Fp8Factors::BACKWARD)
    }
}

/// `y = activation(x weight^T + bias)`.
///
/// Shapes: x `[.., K]`, weight `[N, K]`, bias `[N]` → `[.., N]`. A weight in quantised blocks is `[N, bytes of a row]`
/// and is dequantised on the way, in the backward pass too; it has no gradient.
/// Where x comes from several tensor-parallel ranks it is a [`ProductInput`], and where y goes to them, or is added to
/// a residual, the weight is a [`ProductWeight`].
/// Errors: shapes that do not fit.
/// Numerics: sums over K in f32. Saves x and, with an activation, its input; never its output.
pub fn linear<'a>(
    cx: &Ctx,
    x: impl Into<ProductInput<'a>>,
    weight: impl Into<ProductWeight<'a>>,
    bias: Option<&Var>,
    activation: Option<Activation>,
) -> Result<Var> {
    linear_of(cx, &x.into(), &weight.into(), bias, activation)
}

fn linear_of(
    cx: &Ctx,
    input: &ProductInput<'_>,
    output: &ProductWeight<'_>,
    bias: Option<&Var>,
    activation: Option<Activation>,
) -> Result<Var> {
    let (x, shape, weight) = (input.x(), input.shape("linear")?, output.var());
    let [n, k] = check_linear("linear", shape, weight, bias)?;
    output.check("linear", x.value(), shape, (n, activation.is_some()))?;
    let absent = x.detach();
    let inputs = [x, weight, bias.unwrap_or(&absent), output.residual().unwrap_or(&absent)];
    let mut pre_activation = match activation {
        Some(_) if cx.records(&inputs) => Some(empty(cx, shape.with_last(n)?, x.dtype())?), // [.., N]
        _ => None,
    };
    let y = match output.ranks() {
        OutputRanks::One if output.residual().is_none() => {
            let mut y = empty(cx, shape.with_last(n)?, x.dtype())?; // [.., N]
            input.project(weight.value(), bias, activation, pre_activation.as_mut(), &mut y)?;
            y
        }
        _ => output.product(&input.value()?.reshape(shape)?, bias, n)?, // [.., N], or [own, N]
    };
    Ok(cx.record(y, &inputs, || {
        Box::new(LinearBackward {
            input: input.saved(weight.needs_grad()),
            weight: x.needs_grad().then(|| Saved::of(weight)),
            activation: activation.zip(pre_activation),
            output: output.ranks(),
            size: [n, k],
            dtypes: [x.dtype(), gradient_dtype(weight.value(), x.dtype())],
        })
    }))
}

/// Check the operands of `x weight^T + bias`; returns the shape `[N, K]` of the weight.
pub(super) fn check_linear(op: &'static str, x: Shape, weight: &Var, bias: Option<&Var>) -> Result<[usize; 2]> {
    let [n, k] = matrix_dims(op, weight.value())?;
    if x.rank() == 0 || x.last() != k {
        return Err(Error::shape(op, "innermost axis of x", format!("{k} for a weight {}", weight.shape()), x));
    }
    if let Some(bias) = bias {
        expect_elements(op, "bias", n, bias.shape())?;
    }
    Ok([n, k])
}

/// Rows and columns of a matrix, in elements where it is in quantised blocks.
pub(super) fn matrix_dims(op: &'static str, matrix: &Tensor) -> Result<[usize; 2]> {
    let [rows, columns] = matrix.dims(op)?;
    match matrix.dtype() {
        DType::Blocks(format) => match format.columns(columns) {
            Some(columns) => Ok([rows, columns]),
            None => Err(Error::shape(op, "bytes of a row", format!("whole blocks of {}", format.bytes()), columns)),
        },
        _ => Ok([rows, columns]),
    }
}

/// `y = epilogue(x weight^T)`.
pub(super) fn project(
    device: &Device,
    x: &Tensor,
    weight: &Tensor,
    epilogue: Epilogue<'_>,
    precision: ProductPrecision,
    y: &mut Tensor,
) -> Result<()> {
    let sizes = [x.shape().rows(), y.shape().last(), x.shape().last()];
    project_rows(device, x.view()?, weight, sizes, epilogue, precision, y.view_mut()?)
}

/// `y = epilogue(x weight^T)` with x `[M, K]`, weight `[N, K]` and y `[M, N]`.
pub(super) fn project_rows(
    device: &Device,
    x: View<'_>,
    weight: &Tensor,
    [m, n, k]: [usize; 3],
    epilogue: Epilogue<'_>,
    precision: ProductPrecision,
    y: ViewMut<'_>,
) -> Result<()> {
    if let DType::Blocks(_) = weight.dtype() {
        return device.launch(QuantisedLinear { m, n, k, x, weight: weight.view()?, y, epilogue });
    }
    let (a, b) = (Matrix::plain(x, k), Matrix::transposed(weight.view()?, k));
    let fp8 = precision.forward();
    device.launch(Gemm { epilogue, fp8, ..Gemm::single([m, n, k], a, b, Dest { view: y, add: false }) })
}

/// `dx (+)= dy weight`, with dy `[M, N]` and weight `[N, K]`; times the derivative of an activation at `[M, K]`.
pub(super) fn input_gradient(
    device: &Device,
    dy: &Tensor,
    weight: &Tensor,
    [n, k]: [usize; 2],
    derivative: Option<(Activation, &Tensor)>,
    precision: ProductPrecision,
    dx: Dest<'_>,
) -> Result<()> {
    let derivative = derivative.map(|(activation, at)| Ok::<_, Error>((activation, at.view()?))).transpose()?;
    if let DType::Blocks(_) = weight.dtype() {
        let (m, dy, weight) = (rows_of(dy, n), dy.view()?, weight.view()?);
        return device.launch(QuantisedInputGradient { m, n, k, dy, weight, dx, derivative });
    }
    let (a, b) = (Matrix::plain(dy.view()?, n), Matrix::plain(weight.view()?, k));
    let (epilogue, fp8) = (Epilogue { derivative, ..Epilogue::default() }, precision.backward());
    device.launch(Gemm { epilogue, fp8, ..Gemm::single([rows_of(dy, n), k, n], a, b, dx) })
}

/// The dtype of the gradients of a weight and its bias, beside an input of dtype `x`: a weight in blocks has none.
pub(super) fn gradient_dtype(weight: &Tensor, x: DType) -> DType {
    if let DType::Blocks(_) = weight.dtype() { x } else { weight.dtype() }
}

/// The parameters of a product whose gradients are wanted, by their numbers among the op's inputs.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProductParameters {
    /// A weight `[N, K]`.
    pub(super) weight: usize,
    /// A bias `[N]`, if its gradient has not been computed yet.
    pub(super) bias: Option<usize>,
    /// N and K.
    pub(super) size: [usize; 2],
    /// Dtype of the gradients.
    pub(super) dtype: DType,
    pub(super) precision: ProductPrecision,
}

/// The gradients of the parameters with dy `[M, N]` and x `[M, K]`: now, or when the backward pass comes to the
/// gradients of weights. Without x the gradient of the weight is not computed.
pub(super) fn parameter_gradients(
    cx: &mut BackwardCtx<'_>,
    of: ProductParameters,
    dy: &Tensor,
    x: Option<&Tensor>,
) -> Result<()> {
    let (dy, x) = (cx.keep(dy)?, x.cloned());
    match of.bias {
        Some(bias) => cx.later([of.weight, bias], move |cx, [weight, bias]| {
            gradients_of(cx, ProductParameters { weight, bias: Some(bias), ..of }, &dy, x.as_ref())
        }),
        None => cx.later([of.weight], move |cx, [weight]| {
            gradients_of(cx, ProductParameters { weight, ..of }, &dy, x.as_ref())
        }),
    }
}

fn gradients_of(
    cx: &mut BackwardCtx<'_>,
    ProductParameters { weight, bias, size: [n, k], dtype, precision }: ProductParameters,
    dy: &Tensor,
    x: Option<&Tensor>,
) -> Result<()> {
    let Some(bias) = bias else {
        let Some(x) = x else { return Ok(()) };
        return cx.write(weight, Shape::from([n, k]), dtype, |device, dweight| {
            weight_gradient(device, dy, x, [n, k], precision, dweight, None)
        });
    };
    let (of_weight, of_bias) = (Shape::from([n, k]), Shape::from([n]));
    match x {
        None => bias_gradient(cx, bias, dy, n, dtype),
        Some(x) if cx.device().backend().fuses_gradients() => {
            cx.write_many([(weight, of_weight, dtype), (bias, of_bias, dtype)], |device, dests| match dests {
                [Some(dweight), dbias] => weight_gradient(device, dy, x, [n, k], precision, dweight, dbias),
                [None, Some(dbias)] => sum_rows(device, dy, n, dbias),
                [None, None] => Ok(()),
            })
        }
        Some(x) => {
            bias_gradient(cx, bias, dy, n, dtype)?;
            cx.write(weight, of_weight, dtype, |device, dw| weight_gradient(device, dy, x, [n, k], precision, dw, None))
        }
    }
}

/// `dweight (+)= dy^T x`, with dy `[M, N]` and x `[M, K]`, and `dbias (+)= sum over rows of dy` beside it.
fn weight_gradient(
    device: &Device,
    dy: &Tensor,
    x: &Tensor,
    [n, k]: [usize; 2],
    precision: ProductPrecision,
    dweight: Dest<'_>,
    dbias: Option<Dest<'_>>,
) -> Result<()> {
    let (a, b) = (Matrix::transposed(dy.view()?, n), Matrix::plain(x.view()?, k));
    let (epilogue, fp8) = (Epilogue { sums_of_a: dbias, ..Epilogue::default() }, precision.backward());
    device.launch(Gemm { epilogue, fp8, ..Gemm::single([n, k, rows_of(dy, n)], a, b, dweight) })
}

/// `dbias (+)= sum over rows of dy`.
pub(super) fn bias_gradient(cx: &mut BackwardCtx<'_>, index: usize, dy: &Tensor, n: usize, dtype: DType) -> Result<()> {
    cx.write(index, Shape::from([n]), dtype, |device, dbias| sum_rows(device, dy, n, dbias))
}

/// `y += bias` in every row.
pub(super) fn add_to_rows(bias: &Tensor, y: &mut Tensor) -> Result<()> {
    let (device, n) = (bias.device().clone(), bias.elements());
    let rows = rows_of(y, n);
    let ones = Tensor::full_in(&device, [rows], bias.dtype(), 1.0, Segment::Workspace)?; // [rows]
    let (a, b) = (Matrix::plain(ones.view()?, 1), Matrix::plain(bias.view()?, n));
    device.launch(Gemm::single([rows, n, 1], a, b, y.dest(true)?))
}

fn sum_rows(device: &Device, dy: &Tensor, n: usize, out: Dest<'_>) -> Result<()> {
    device.launch(ColumnSum { rows: rows_of(dy, n), columns: n, x: dy.view()?, out })
}

/// Rows of a gradient, which may come in another shape than the result had.
fn rows_of(dy: &Tensor, columns: usize) -> usize {
    dy.elements().checked_div(columns).unwrap_or(0)
}

#[derive(Debug)]
struct LinearBackward {
    input: SavedInput,
    /// Present when the input's gradient is wanted.
    weight: Option<Saved>,
    activation: Option<(Activation, Tensor)>,
    output: OutputRanks,
    /// N and K.
    size: [usize; 2],
    /// Dtypes of the input and of the weight.
    dtypes: [DType; 2],
}

impl Backward for LinearBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let LinearBackward { input, weight, activation, output, size, dtypes } = *self;
        let dy = only("linear", dy)?;
        if cx.needs(3) {
            cx.give(3, dy.clone())?;
        }
        let (dy, bias) = output.gradient(cx, dy, (2, size[0]), dtypes)?;
        let dpre = match activation {
            None => dy,
            Some((activation, pre)) => {
                let mut dpre = Tensor::empty_in(cx.device(), pre.shape(), dy.dtype(), Segment::Activations)?; // [.., N]
                let (x, dx) = (pre.view()?, dpre.dest(false)?);
                cx.device().launch(ActivationBackward { activation, x, dy: dy.view()?, dx })?;
                drop(dy);
                dpre
            }
        };
        input.gradients(
            cx,
            &dpre,
            ProductOperands { input: 0, weight: 1, bias, size, dtype: dtypes[1], factor: weight },
        )
    }

    fn saved_bytes(&self) -> usize {
        bytes_of(self.input.tensors().chain(self.activation.iter().map(|(_, pre)| pre)))
    }
}
