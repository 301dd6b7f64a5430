//! Reference of a step: the time of its matrix products alone.

use super::{Extent, Product, Shape};
use anyhow::Result;
use bmtrain_core::bench::{Rounds, measure, seconds};
use bmtrain_core::kernel::{Gemm, Matrix};
use bmtrain_core::{DType, Device, Segment, Tensor};

/// Median time of all matrix products of a step's linear layers, forward and both gradients, in their real shapes.
pub fn gemm_floor(device: &Device, shape: Shape, extent: Extent) -> Result<f64> {
    let mut total = 0.0;
    for Product { tokens, n, k, count } in shape.products(extent) {
        let tensor = |rows: usize, columns: usize| {
            Tensor::full_in(device, [rows, columns], DType::F32, 0.01, Segment::Workspace)
        };
        let (y, x, w) = (tensor(tokens, n)?, tensor(tokens, k)?, tensor(n, k)?);
        // Results of their own: a product of products leaves the range in which all numbers take equally long.
        let (mut to_y, mut to_x, mut to_w) = (tensor(tokens, n)?, tensor(tokens, k)?, tensor(n, k)?);
        let mut products = || -> Result<()> {
            let (a, b) = (Matrix::plain(x.view()?, k), Matrix::transposed(w.view()?, k));
            device.launch(Gemm::single([tokens, n, k], a, b, to_y.dest(false)?))?;
            let (a, b) = (Matrix::plain(y.view()?, n), Matrix::plain(w.view()?, k));
            device.launch(Gemm::single([tokens, k, n], a, b, to_x.dest(false)?))?;
            let (a, b) = (Matrix::transposed(y.view()?, n), Matrix::plain(x.view()?, k));
            device.launch(Gemm::single([n, k, tokens], a, b, to_w.dest(false)?))?;
            Ok(device.sync()?)
        };
        let [times] = measure(Rounds::exactly(0, 5), || Ok::<_, anyhow::Error>([seconds(&mut products)?]))?;
        total += times.median() * count as f64;
    }
    Ok(total)
}
