//! The rows, by stem.

mod adam_8bit;
mod attention;
mod distillation;
mod elementwise;
mod gemm;
mod loss;
mod norm;
mod optimizer;
mod product;
mod product_gradient;
mod quantised;
mod random;
mod reduce;
mod rotary;
mod rows;
mod update;
mod vocabulary;

// What rows are made of: the files here import it from this one.
use super::case::{Case, Role, Values};
use crate::autograd::{Ctx, Var};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::exact::WORDS;
use crate::kernel::*;
use crate::ops;
use crate::philox::Key;
use crate::pool::Segment;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Every row. Names are unique.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    gemm::rows(&mut cases);
    product::rows(&mut cases);
    product_gradient::rows(&mut cases);
    elementwise::rows(&mut cases);
    norm::rows(&mut cases);
    attention::rows(&mut cases);
    reduce::rows(&mut cases);
    rows::rows(&mut cases);
    rotary::rows(&mut cases);
    loss::rows(&mut cases);
    vocabulary::rows(&mut cases);
    distillation::rows(&mut cases);
    quantised::rows(&mut cases);
    random::rows(&mut cases);
    optimizer::rows(&mut cases);
    adam_8bit::rows(&mut cases);
    update::rows(&mut cases);
    cases
}

fn zeros(device: &Device, shape: &[usize], dtype: DType) -> Result<Tensor> {
    Tensor::full_in(device, Shape::new(shape)?, dtype, 0.0, Segment::Activations)
}

fn copy(x: &Tensor) -> Result<Tensor> {
    let mut copy = Tensor::empty_in(x.device(), x.shape(), x.dtype(), Segment::Activations)?;
    x.device().backend().copy(x.view()?, copy.view_mut()?, crate::backend::Lane::Compute)?;
    Ok(copy)
}
