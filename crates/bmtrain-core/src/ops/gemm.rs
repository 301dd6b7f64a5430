//! Products with weights and between activations: [`linear`] and [`matmul`]. Layers, heads and tests call them.

use super::*;
use crate::kernel::{Activation, ActivationBackward, ColumnSum, Epilogue, Fill, Gemm, Matrix, QuantisedLinear};

/// `y = activation(x weight^T + bias)`.
///
/// Shapes: x `[.., K]`, weight `[N, K]`, bias `[N]` → `[.., N]`. A weight in quantised blocks is `[N, bytes of a row]`
/// and is dequantised on the way.
/// Errors: shapes that do not fit; a weight in quantised blocks where x needs a gradient.
/// Numerics: sums over K in f32. Saves x and, with an activation, its input; never its output.
pub fn linear(cx: &Ctx, x: &Var, weight: &Var, bias: Option<&Var>, activation: Option<Activation>) -> Result<Var> {
    let [n, k] = check_linear("linear", x.shape(), weight, bias)?;
    expect_gradient(cx, "linear", x, &[weight])?;
    let mut y = empty(cx, x.shape().with_last(n)?, x.dtype())?; // [.., N]
    let absent = x.detach();
    let inputs = [x, weight, bias.unwrap_or(&absent)];
    let mut pre_activation = match activation {
        Some(_) if cx.records(&inputs) => Some(empty(cx, y.shape(), x.dtype())?), // [.., N]
        _ => None,
    };
    let epilogue = Epilogue {
        bias: view_of(bias)?,
        activation,
        pre_activation: pre_activation.as_mut().map(Tensor::view_mut).transpose()?,
        ..Epilogue::default()
    };
    project(cx.device(), x.value(), weight.value(), epilogue, &mut y)?;
    Ok(cx.record(y, &inputs, || {
        Box::new(LinearBackward {
            x: weight.needs_grad().then(|| x.value().clone()),
            weight: x.needs_grad().then(|| Saved::of(weight)),
            activation: activation.zip(pre_activation),
            n,
            k,
            x_shape: x.shape(),
            x_dtype: x.dtype(),
            weight_dtype: weight.dtype(),
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

/// Refuse weights in quantised blocks where x needs a gradient, which would be found missing in the backward pass.
pub(super) fn expect_gradient(cx: &Ctx, op: &'static str, x: &Var, weights: &[&Var]) -> Result<()> {
    let in_blocks = |weight: &&Var| matches!(weight.dtype(), DType::Blocks(_));
    if cx.records(&[x]) && weights.iter().any(in_blocks) {
        return Err(Error::argument(
            op,
            "x needs a gradient, and there is none through a weight in quantised blocks: dequantise it",
        ));
    }
    Ok(())
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
    y: &mut Tensor,
) -> Result<()> {
    let sizes @ [m, n, k] = [x.shape().rows(), y.shape().last(), x.shape().last()];
    if let DType::Blocks(_) = weight.dtype() {
        let (x, weight, y) = (x.view()?, weight.view()?, y.view_mut()?);
        return device.launch(QuantisedLinear { m, n, k, x, weight, y, epilogue });
    }
    let (a, b) = (Matrix::plain(x.view()?, k), Matrix::transposed(weight.view()?, k));
    device.launch(Gemm { epilogue, ..Gemm::single(sizes, a, b, y.dest(false)?) })
}

/// `dx (+)= dy weight`, with dy `[M, N]` and weight `[N, K]`; times the derivative of an activation at `[M, K]`.
pub(super) fn input_gradient(
    device: &Device,
    dy: &Tensor,
    weight: &Tensor,
    [n, k]: [usize; 2],
    derivative: Option<(Activation, &Tensor)>,
    dx: Dest<'_>,
) -> Result<()> {
    let derivative = derivative.map(|(activation, at)| Ok::<_, Error>((activation, at.view()?))).transpose()?;
    let (a, b) = (Matrix::plain(dy.view()?, n), Matrix::plain(weight.view()?, k));
    let epilogue = Epilogue { derivative, ..Epilogue::default() };
    device.launch(Gemm { epilogue, ..Gemm::single([rows_of(dy, n), k, n], a, b, dx) })
}

/// The gradients of a weight `[N, K]` and a bias `[N]`, the inputs of these numbers, with dy `[M, N]` and x `[M, K]`:
/// now, or when the backward pass comes to the gradients of weights. Without x the gradient of the weight is not
/// computed.
pub(super) fn parameter_gradients(
    cx: &mut BackwardCtx<'_>,
    inputs: [usize; 2],
    dy: &Tensor,
    x: Option<&Tensor>,
    sizes: [usize; 2],
    dtype: DType,
) -> Result<()> {
    let (dy, x) = (cx.keep(dy)?, x.cloned());
    cx.later(inputs, move |cx, inputs| gradients_of(cx, inputs, &dy, x.as_ref(), sizes, dtype))
}

fn gradients_of(
    cx: &mut BackwardCtx<'_>,
    [weight, bias]: [usize; 2],
    dy: &Tensor,
    x: Option<&Tensor>,
    [n, k]: [usize; 2],
    dtype: DType,
) -> Result<()> {
    let (of_weight, of_bias) = (Shape::from([n, k]), Shape::from([n]));
    match x {
        None => bias_gradient(cx, bias, dy, n, dtype),
        Some(x) if cx.device().backend().fuses_gradients() => {
            cx.write_many([(weight, of_weight, dtype), (bias, of_bias, dtype)], |device, dests| match dests {
                [Some(dweight), dbias] => weight_gradient(device, dy, x, [n, k], dweight, dbias),
                [None, Some(dbias)] => sum_rows(device, dy, n, dbias),
                [None, None] => Ok(()),
            })
        }
        Some(x) => {
            bias_gradient(cx, bias, dy, n, dtype)?;
            cx.write(weight, of_weight, dtype, |device, dw| weight_gradient(device, dy, x, [n, k], dw, None))
        }
    }
}

/// `dweight (+)= dy^T x`, with dy `[M, N]` and x `[M, K]`, and `dbias (+)= sum over rows of dy` beside it.
fn weight_gradient(
    device: &Device,
    dy: &Tensor,
    x: &Tensor,
    [n, k]: [usize; 2],
    dweight: Dest<'_>,
    dbias: Option<Dest<'_>>,
) -> Result<()> {
    let (a, b) = (Matrix::transposed(dy.view()?, n), Matrix::plain(x.view()?, k));
    let epilogue = Epilogue { sums_of_a: dbias, ..Epilogue::default() };
    device.launch(Gemm { epilogue, ..Gemm::single([n, k, rows_of(dy, n)], a, b, dweight) })
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
    /// Present when the weight's gradient is wanted.
    x: Option<Tensor>,
    /// Present when the input's gradient is wanted.
    weight: Option<Saved>,
    activation: Option<(Activation, Tensor)>,
    n: usize,
    k: usize,
    x_shape: Shape,
    x_dtype: DType,
    weight_dtype: DType,
}

impl Backward for LinearBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let LinearBackward { x, weight, activation, n, k, x_shape, x_dtype, weight_dtype } = *self;
        let dy = only("linear", dy)?;
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
        parameter_gradients(cx, [1, 2], &dpre, x.as_ref(), [n, k], weight_dtype)?;
        drop(x);
        // Last, when what was saved is free again.
        match weight {
            Some(weight) => {
                let weight = weight.get()?;
                cx.write(0, x_shape, x_dtype, |device, dx| input_gradient(device, &dpre, &weight, [n, k], None, dx))
            }
            None => Ok(()),
        }
    }

    fn saved_bytes(&self) -> usize {
        bytes_of(self.x.iter().chain(self.activation.iter().map(|(_, pre)| pre)))
    }
}

/// `c = op(a) op(b)`, where `op` transposes the two inner axes if asked to.
///
/// Shapes: a `[.., M, K]` (`[.., K, M]` if transposed), b `[.., K, N]` (`[.., N, K]`), leading axes alike, or b with
/// two axes for all of them → `[.., M, N]`.
pub fn matmul(cx: &Ctx, a: &Var, b: &Var, transpose_a: bool, transpose_b: bool) -> Result<Var> {
    let (plan, shape) = Product::plan(a.shape(), b.shape(), transpose_a, transpose_b)?;
    let mut c = empty(cx, shape, a.dtype())?; // [.., M, N]
    let Product { m, n, k, .. } = plan;
    let left = (a.value(), transpose_a, [m, k], plan.a_stride());
    let right = (b.value(), transpose_b, [k, n], plan.b_stride());
    multiply(cx.device(), plan.batch, left, right, c.dest(false)?)?;
    Ok(cx.record(c, &[a, b], || {
        Box::new(MatmulBackward {
            plan,
            a: b.needs_grad().then(|| Saved::of(a)),
            b: a.needs_grad().then(|| Saved::of(b)),
            shapes: [a.shape(), b.shape()],
            dtypes: [a.dtype(), b.dtype()],
        })
    }))
}

#[derive(Debug, Clone, Copy)]
struct Product {
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
    transpose_a: bool,
    transpose_b: bool,
    /// One `b` for the whole batch.
    shared: bool,
}

impl Product {
    fn plan(a: Shape, b: Shape, transpose_a: bool, transpose_b: bool) -> Result<(Product, Shape)> {
        let inner = |what: &str, shape: Shape, transpose: bool| match *shape.dims() {
            [.., rows, columns] if transpose => Ok([columns, rows]),
            [.., rows, columns] => Ok([rows, columns]),
            _ => Err(Error::shape("matmul", what, "at least 2 axes", shape)),
        };
        let [m, k] = inner("a", a, transpose_a)?;
        let [b_k, n] = inner("b", b, transpose_b)?;
        if k != b_k {
            let expected = format!("{k} as in a {a}");
            return Err(Error::shape("matmul", "summed axis of b", expected, format!("{b_k} of {b}")));
        }
        let leading = &a.dims()[..a.rank() - 2];
        let shared = b.rank() == 2 && a.rank() > 2;
        if !shared && leading != &b.dims()[..b.rank() - 2] {
            return Err(Error::shape("matmul", "leading axes of b", format!("as in a {a}, or none"), b));
        }
        let shape = Shape::new(&[leading, &[m, n]].concat())?;
        let batch = leading.iter().product();
        let plan = Product { batch, m, n, k, transpose_a, transpose_b, shared };
        // All rows of `a` against one `b` are a single product.
        let plan =
            if shared && !transpose_a { Product { batch: 1, m: m * batch, shared: false, ..plan } } else { plan };
        Ok((plan, shape))
    }

    fn a_stride(&self) -> usize {
        self.m * self.k
    }

    fn b_stride(&self) -> usize {
        if self.shared { 0 } else { self.k * self.n }
    }
}

/// A factor: its elements, whether they are the transpose of what the product sees, what it sees, and its batch stride.
type Factor<'t> = (&'t Tensor, bool, [usize; 2], usize);

fn matrix((tensor, transposed, [rows, columns], stride): Factor<'_>) -> Result<Matrix<'_>> {
    let ld = if transposed { rows } else { columns };
    Ok(Matrix { view: tensor.view()?, ld, transposed, batch: [0, stride] })
}

/// `c (+)= a b` for every entry of the batch.
fn multiply(device: &Device, batch: usize, a: Factor<'_>, b: Factor<'_>, c: Dest<'_>) -> Result<()> {
    let ([m, k], [_, n]) = (a.2, b.2);
    let mut gemm = Gemm::single([m, n, k], matrix(a)?, matrix(b)?, c);
    (gemm.batch.inner, gemm.c.batch) = (batch, [0, m * n]);
    device.launch(gemm)
}

#[derive(Debug)]
struct MatmulBackward {
    plan: Product,
    /// Present when the gradient of `b` is wanted.
    a: Option<Saved>,
    /// Present when the gradient of `a` is wanted.
    b: Option<Saved>,
    shapes: [Shape; 2],
    dtypes: [DType; 2],
}

impl Backward for MatmulBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let MatmulBackward { plan, a, b, shapes, dtypes } = *self;
        let Product { batch, m, n, k, transpose_a, transpose_b, .. } = plan;
        let dc = only("matmul", dy)?;
        if let Some(b) = b {
            let b = b.get()?;
            cx.write(0, shapes[0], dtypes[0], |device, da| {
                let (left, right) = if transpose_a {
                    // da [K, M] = op(b) dc^T
                    ((&b, transpose_b, [k, n], plan.b_stride()), (&dc, true, [n, m], m * n))
                } else {
                    // da [M, K] = dc op(b)^T
                    ((&dc, false, [m, n], m * n), (&b, !transpose_b, [n, k], plan.b_stride()))
                };
                multiply(device, batch, left, right, da)
            })?;
        }
        if let Some(a) = a {
            let a = a.get()?;
            cx.write(1, shapes[1], dtypes[1], |device, db| {
                let (left, right) = if transpose_b {
                    // db [N, K] = dc^T op(a)
                    ((&dc, true, [n, m], m * n), (&a, transpose_a, [m, k], plan.a_stride()))
                } else {
                    // db [K, N] = op(a)^T dc
                    ((&a, !transpose_a, [k, m], plan.a_stride()), (&dc, false, [m, n], m * n))
                };
                if plan.shared {
                    sum_over_batch(device, batch, left, right, db)
                } else {
                    multiply(device, batch, left, right, db)
                }
            })?;
        }
        Ok(())
    }

    fn saved_bytes(&self) -> usize {
        self.a.iter().chain(&self.b).map(Saved::bytes).sum()
    }
}

/// `c (+)= sum over the batch of a b`, in the order of the batch.
fn sum_over_batch(device: &Device, batch: usize, a: Factor<'_>, b: Factor<'_>, mut c: Dest<'_>) -> Result<()> {
    if batch == 0 && !c.add {
        return device.launch(Fill { value: 0.0, out: c.view });
    }
    for entry in 0..batch {
        let of_entry = |(tensor, transposed, seen, stride): Factor<'_>| {
            let entries = tensor.reshape([batch, stride])?.slice(entry..entry + 1)?;
            Ok::<_, Error>((entries, transposed, seen))
        };
        let ((a, a_transposed, a_seen), (b, b_transposed, b_seen)) = (of_entry(a)?, of_entry(b)?);
        let add = c.add || entry > 0;
        let (left, right) = ((&a, a_transposed, a_seen, 0), (&b, b_transposed, b_seen, 0));
        multiply(device, 1, left, right, Dest { view: c.view.reborrow(), add })?;
    }
    Ok(())
}
