//! Matrix products and attention, which are bound by arithmetic.

use super::*;

pub(super) fn time(bench: &mut Bench<'_>, dtype: DType) -> Result<()> {
    let sizes = bench.sizes();
    let (rows, hidden, inner) = (sizes.rows(), sizes.hidden, sizes.inner);
    product(bench, "gemm hidden to inner", dtype, [rows, inner, hidden])?;
    product(bench, "gemm inner to hidden", dtype, [rows, hidden, inner])?;
    attention(bench, dtype)
}

/// `x w^T`, as a linear layer has it.
pub(super) fn product(bench: &mut Bench<'_>, name: &str, dtype: DType, [m, n, k]: [usize; 3]) -> Result<()> {
    let (x, w, mut y) = (bench.tensor(m * k, dtype)?, bench.tensor(n * k, dtype)?, bench.tensor(m * n, dtype)?);
    bench.computing(name, dtype, 2 * (m * n) as u64 * k as u64, |launch| {
        let (a, b) = (Matrix::plain(x.view()?, k), Matrix::transposed(w.view()?, k));
        launch(Gemm::single([m, n, k], a, b, y.dest(false)?).into())
    })
}

/// Heads beside each other in rows of a tensor.
fn heads<'a>(tensor: &'a Tensor, shape: &AttentionShape) -> Result<Heads<'a>> {
    let row_stride = shape.heads * shape.head_size;
    Ok(Heads { view: tensor.view()?, batch_stride: shape.queries * row_stride, row_stride })
}

fn heads_mut<'a>(tensor: &'a mut Tensor, shape: &AttentionShape) -> Result<HeadsMut<'a>> {
    let row_stride = shape.heads * shape.head_size;
    Ok(HeadsMut { view: tensor.view_mut()?, batch_stride: shape.queries * row_stride, row_stride, add: false })
}

fn attention(bench: &mut Bench<'_>, dtype: DType) -> Result<()> {
    let sizes = bench.sizes();
    let count = sizes.hidden / sizes.head_size;
    let shape = AttentionShape {
        batch: sizes.batch,
        heads: count,
        kv_heads: count,
        queries: sizes.length,
        keys: sizes.length,
        head_size: sizes.head_size,
    };
    let len = sizes.rows() * sizes.hidden;
    let scale = 1.0 / (sizes.head_size as f32).sqrt();
    let statistics = sizes.batch * count * sizes.length;
    let tensor = |bench: &Bench<'_>| bench.tensor(len, dtype);
    let (q, k, v, dout) = (tensor(bench)?, tensor(bench)?, tensor(bench)?, tensor(bench)?);
    let (mut out, mut dq, mut dk, mut dv) = (tensor(bench)?, tensor(bench)?, tensor(bench)?, tensor(bench)?);
    let (mut lse, mut delta) = (bench.tensor(statistics, DType::F32)?, bench.tensor(statistics, DType::F32)?);
    for causal in [false, true] {
        // Of the causal scores only half are made.
        let product = 2 * (shape.batch * shape.heads * shape.queries * shape.keys * shape.head_size) as u64;
        let product = if causal { product / 2 } else { product };
        let suffix = if causal { " causal" } else { "" };
        let inputs = AttentionInputs {
            shape,
            scale,
            causal,
            window: None,
            mask: Mask::None,
            documents: None,
            bias: None,
            dropout: None,
            soft_cap: None,
            q: heads(&q, &shape)?,
            k: heads(&k, &shape)?,
            v: heads(&v, &shape)?,
        };
        bench.computing(&format!("attention{suffix}"), dtype, 2 * product, |launch| {
            let kernel = AttentionForward { inputs, out: heads_mut(&mut out, &shape)?, lse: lse.view_mut()? };
            launch(kernel.into())
        })?;
        bench.computing(&format!("attention{suffix} backward"), dtype, 5 * product, |launch| {
            let kernel = AttentionBackward {
                inputs,
                out: heads(&out, &shape)?,
                lse: lse.view()?,
                dout: heads(&dout, &shape)?,
                delta: delta.view_mut()?,
                dq: heads_mut(&mut dq, &shape)?,
                dk: heads_mut(&mut dk, &shape)?,
                dv: heads_mut(&mut dv, &shape)?,
                dbias: None,
            };
            launch(kernel.into())
        })?;
    }
    Ok(())
}
