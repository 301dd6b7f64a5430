//! What a step is compared with: the time of its matrix products alone.

use anyhow::Result;
use bmtrain_core::bench::{Rounds, measure, seconds};
use bmtrain_core::kernel::{Batch, Epilogue, Gemm, Matrix, MatrixMut};
use bmtrain_core::{DType, Device, Segment, Tensor};
use bmtrain_examples::step::{Extent, Product, Shape};

/// Median time of all matrix products of a step's linear layers, forward and both gradients, in their real shapes.
pub fn gemm_floor(device: &Device, shape: Shape, extent: Extent) -> Result<f64> {
    let mut total = 0.0;
    for Product { tokens, n, k, count } in shape.products(extent) {
        let tensor = |rows: usize, columns: usize| {
            Tensor::full_in(device, [rows, columns], DType::F32, 0.01, Segment::Workspace)
        };
        let (mut y, mut x, mut w) = (tensor(tokens, n)?, tensor(tokens, k)?, tensor(n, k)?);
        let mut products = || -> Result<()> {
            let plain = |t: &'_ Tensor, ld| Ok::<_, bmtrain_core::Error>((t.clone(), ld));
            let (xs, ws) = (plain(&x, k)?, plain(&w, k)?);
            launch_product(device, (tokens, n, k), (&xs.0, k, false), (&ws.0, k, true), &mut y, n)?;
            drop((xs, ws));
            let ys = y.clone();
            let ws = w.clone();
            launch_product(device, (tokens, k, n), (&ys, n, false), (&ws, k, false), &mut x, k)?;
            drop((ys, ws));
            let (ys, xs) = (y.clone(), x.clone());
            launch_product(device, (n, k, tokens), (&ys, n, true), (&xs, k, false), &mut w, k)?;
            drop((ys, xs));
            Ok(device.sync()?)
        };
        let [times] = measure(Rounds::exactly(0, 5), || Ok::<_, anyhow::Error>([seconds(&mut products)?]))?;
        total += times.median() * count as f64;
    }
    Ok(total)
}

fn launch_product(
    device: &Device,
    (m, n, k): (usize, usize, usize),
    (a, a_ld, a_transposed): (&Tensor, usize, bool),
    (b, b_ld, b_transposed): (&Tensor, usize, bool),
    c: &mut Tensor,
    c_ld: usize,
) -> Result<()> {
    device.launch(Gemm {
        m,
        n,
        k,
        alpha: 1.0,
        a: Matrix { view: a.view()?, ld: a_ld, transposed: a_transposed, batch: [0, 0] },
        b: Matrix { view: b.view()?, ld: b_ld, transposed: b_transposed, batch: [0, 0] },
        beta: 0.0,
        c: MatrixMut { view: c.view_mut()?, ld: c_ld, batch: [0, 0] },
        batch: Batch::ONE,
        epilogue: Epilogue::default(),
    })?;
    Ok(())
}
