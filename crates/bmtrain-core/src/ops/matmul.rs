//! Products between activations: [`matmul`].

use super::*;
use crate::kernel::{Fill, Gemm, Matrix};

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
