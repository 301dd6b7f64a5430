//! Sums, activations, casts, masks.

use super::*;

pub(super) fn time(bench: &mut Bench<'_>, dtype: DType) -> Result<()> {
    let sizes = bench.sizes();
    let (rows, columns, size) = (sizes.rows(), sizes.inner, dtype.size());
    let len = rows * columns;
    let (a, b) = (bench.tensor(len, dtype)?, bench.tensor(len, dtype)?);
    let mut out = bench.tensor(len, dtype)?;
    bench.moving("add_scaled", dtype, 3 * size * len, |launch| {
        let (a, b) = (a.view()?, Some(b.view()?));
        launch(AddScaled { alpha: 1.0, a, beta: 1.0, b, out: out.view_mut()? }.into())
    })?;
    for activation in Activation::ALL {
        bench.moving(activation.name(), dtype, 2 * size * len, |launch| {
            launch(ActivationForward { activation, x: a.view()?, y: out.view_mut()? }.into())
        })?;
        bench.moving(&format!("{} backward", activation.name()), dtype, 3 * size * len, |launch| {
            let (x, dy) = (a.view()?, b.view()?);
            launch(ActivationBackward { activation, x, dy, dx: out.dest(false)? }.into())
        })?;
    }
    let mut x = bench.tensor(len, dtype)?;
    bench.moving("gelu in place", dtype, 4 * size * len, |launch| {
        let activation = Activation::Gelu;
        launch(ActivationInPlace { activation, x: x.view_mut()?, dy: out.view_mut()? }.into())
    })?;
    let mut wide = bench.tensor(len, DType::F32)?;
    bench.moving("cast to f32", dtype, (size + 4) * len, |launch| {
        launch(Cast { x: a.view()?, out: wide.dest(false)? }.into())
    })?;
    gated(bench, dtype)?;
    random(bench, dtype)
}

fn gated(bench: &mut Bench<'_>, dtype: DType) -> Result<()> {
    let sizes = bench.sizes();
    let (rows, columns, size) = (sizes.rows(), sizes.inner / 2, dtype.size());
    let (mut x, mut y, mut dx) = (
        bench.tensor(rows * 2 * columns, dtype)?,
        bench.tensor(rows * columns, dtype)?,
        bench.tensor(rows * 2 * columns, dtype)?,
    );
    let activation = Activation::Silu;
    bench.moving("gated silu", dtype, 3 * size * rows * columns, |launch| {
        let (ld, len) = (2 * columns, rows * 2 * columns - columns);
        let (gate, up) = (x.view()?.part(0, len)?, x.view()?.part(columns, len)?);
        launch(GatedForward { activation, rows, columns, ld, gate, up, y: y.view_mut()? }.into())
    })?;
    let dy = bench.tensor(rows * columns, dtype)?;
    bench.moving("gated silu backward", dtype, 5 * size * rows * columns, |launch| {
        let (x, dy, dx) = (x.view()?, dy.view()?, dx.dest(false)?);
        launch(GatedBackward { activation, rows, columns, x, dy, dx }.into())
    })?;
    bench.moving("gated silu in place", dtype, 6 * size * rows * columns, |launch| {
        let (x, dy) = (x.view_mut()?, y.view_mut()?);
        launch(GatedInPlace { activation, rows, columns, x, dy }.into())
    })
}

fn random(bench: &mut Bench<'_>, dtype: DType) -> Result<()> {
    let sizes = bench.sizes();
    let (rows, columns, size) = (sizes.rows(), sizes.hidden, dtype.size());
    let len = rows * columns;
    let (x, mut y) = (bench.tensor(len, dtype)?, bench.tensor(len, dtype)?);
    if let Some(dropout) = Dropout::new(0.1, Key::new(0, "speed"), 1, 0)? {
        bench.moving("dropout", dtype, 2 * size * len, |launch| {
            let (x, y) = (Some(x.view()?), y.dest(false)?);
            launch(DropoutApply { dropout, rows, columns, x, y }.into())
        })?;
    }
    bench.moving("fill normal", dtype, size * len, |launch| {
        let (distribution, key) = (Distribution::Normal(0.0, 0.02), Key::new(0, "speed"));
        launch(FillRandom { distribution, key, offset: 0, out: y.view_mut()? }.into())
    })
}
