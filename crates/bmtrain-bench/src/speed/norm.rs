//! Layer norm, plain and after dropout and residual.

use super::*;

pub(super) fn time(bench: &mut Bench<'_>, dtype: DType) -> Result<()> {
    forward(bench, dtype)?;
    backward(bench, dtype)
}

fn forward(bench: &mut Bench<'_>, dtype: DType) -> Result<()> {
    let sizes = bench.sizes();
    let (rows, columns, size) = (sizes.rows(), sizes.hidden, dtype.size());
    let len = rows * columns;
    let dropout = Dropout::new(0.1, Key::new(0, "speed"), 1, 0)?;
    let (x, residual) = (bench.tensor(len, dtype)?, bench.tensor(len, dtype)?);
    let weight = bench.tensor(columns, dtype)?;
    let (mut sum, mut y) = (bench.tensor(len, dtype)?, bench.tensor(len, dtype)?);
    let (mut mean, mut rstd) = (bench.tensor(rows, DType::F32)?, bench.tensor(rows, DType::F32)?);
    for (name, dropout, fused) in
        [("norm", None, false), ("norm residual", None, true), ("norm dropout residual", dropout, true)]
    {
        bench.moving(name, dtype, if fused { 4 } else { 2 } * size * len, |launch| {
            let kernel = NormForward {
                weight_offset: 0.0,
                kind: NormKind::Layer,
                rows,
                columns,
                epsilon: 1e-12,
                x: x.view()?,
                dropout,
                residual: if fused { Some(residual.view()?) } else { None },
                sum: if fused { Some(sum.view_mut()?) } else { None },
                weight: weight.view()?,
                bias: Some(weight.view()?),
                y: y.view_mut()?,
                mean: Some(mean.view_mut()?),
                rstd: rstd.view_mut()?,
            };
            launch(kernel.into())
        })?;
    }
    Ok(())
}

fn backward(bench: &mut Bench<'_>, dtype: DType) -> Result<()> {
    let sizes = bench.sizes();
    let (rows, columns, size) = (sizes.rows(), sizes.hidden, dtype.size());
    let len = rows * columns;
    let dropout = Dropout::new(0.1, Key::new(0, "speed"), 1, 0)?;
    let (x, dy, weight) = (bench.tensor(len, dtype)?, bench.tensor(len, dtype)?, bench.tensor(columns, dtype)?);
    let (mut dx, mut branch) = (bench.tensor(len, dtype)?, bench.tensor(len, dtype)?);
    let (mean, rstd) = (bench.tensor(rows, DType::F32)?, bench.tensor(rows, DType::F32)?);
    let (mut dweight, mut dbias) = (bench.tensor(columns, DType::F32)?, bench.tensor(columns, DType::F32)?);
    for (name, dropout) in [("norm backward", None), ("norm dropout backward", dropout)] {
        bench.moving(name, dtype, if dropout.is_some() { 4 } else { 3 } * size * len, |launch| {
            let branch = match dropout {
                Some(dropout) => Some((dropout, branch.dest(false)?)),
                None => None,
            };
            let kernel = NormBackward {
                weight_offset: 0.0,
                kind: NormKind::Layer,
                rows,
                columns,
                x: x.view()?,
                mean: Some(mean.view()?),
                rstd: rstd.view()?,
                weight: weight.view()?,
                dy: dy.view()?,
                dx: Some(dx.dest(false)?),
                branch,
                dweight: Some(dweight.dest(true)?),
                dbias: Some(dbias.dest(true)?),
            };
            launch(kernel.into())
        })?;
    }
    Ok(())
}
