//! Muon: momentum whose matrices are orthogonalised, for the weight matrices of blocks; other parameters are left to
//! another optimizer of the manager.
//!
//! [`MuonOptions`] is a [`WholeRule`] of [`DeviceOptimizer`]: a rank updates what it owns, and transforms each
//! matrix that it owns a part of as a whole, from the gathered directions of all ranks. So the bits are the same
//! however the parameters are sharded. The matrices of a fused parameter are transformed one by one.

use super::on_device::{
    DeviceOptimizer, DeviceRule, DirectionElements, Rule, StepElements, StepNumbers, WholeDirection, WholeRule,
};
use crate::error::{Error, Result};
use crate::param::Param;
use bmtrain_core::buffer::View;
use bmtrain_core::exact::WORDS;
use bmtrain_core::kernel::{
    AddScaled, ClipFactor, Dest, Gemm, GradNorm, Matrix, NormOrder, ScaleBy, Update, UpdateRule, UpdateSettings,
};
use bmtrain_core::{DType, Device, Segment, Storage, Tensor};
use std::ops::Range;

/// Factor of an orthogonalised matrix, besides the learning rate. `[A, B]` is its shape in the original model, which
/// may have the transpose ([`FusedTensor::transposed`](crate::param::FusedTensor::transposed)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MuonScale {
    /// `sqrt(max(1, A / B))`, of Keller Jordan's Muon and by default PyTorch's.
    #[default]
    Original,
    /// `0.2 sqrt(max(A, B))`: changes as large as AdamW's, so that both take one learning rate (Liu et al., 2025).
    MatchAdamW,
}

impl MuonScale {
    /// Factor of a matrix of this shape in the original model.
    fn of(self, [a, b]: [usize; 2]) -> f32 {
        let (a, b) = (a as f32, b as f32);
        match self {
            MuonScale::Original => (a / b).max(1.0).sqrt(),
            MuonScale::MatchAdamW => 0.2 * a.max(b).sqrt(),
        }
    }
}

/// Settings of [`Muon`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MuonOptions {
    /// Decay of the average of gradients.
    pub momentum: f32,
    /// Mix the gradient into the average once more.
    pub nesterov: bool,
    /// Newton-Schulz iterations.
    pub iterations: u32,
    /// Factor of a matrix.
    pub scale: MuonScale,
}

impl Default for MuonOptions {
    fn default() -> Self {
        MuonOptions { momentum: 0.95, nesterov: true, iterations: 5, scale: MuonScale::default() }
    }
}

/// `b = momentum b + (1 - momentum) g`, `u = b` or with Nesterov `(1 - momentum) g + momentum b`, and
/// `p = p - lr decay p - lr scale O(u)`, where `O` of a matrix, over its norm or 1e-7, are iterations of
/// `X = 3.4445 X + (-4.775 G + 2.0315 G^2) X` with `G = X X^T`.
///
/// Source: `torch.optim.Muon`, which iterates in bf16; here it is f32.
pub type Muon = DeviceOptimizer<MuonOptions>;

const COEFFICIENTS: [f32; 3] = [3.4445, -4.775, 2.0315];

/// The least norm that a matrix is divided by, `eps` of PyTorch.
const LEAST_NORM: f64 = 1e-7;

/// Norms are multiplied by this where [`ClipFactor`] adds 1e-6 to them, a power of two.
pub(super) const AMPLIFIED: f32 = (1u32 << 20) as f32;

impl Rule for MuonOptions {
    fn check(&self) -> Result<()> {
        if !(0.0..1.0).contains(&self.momentum) {
            return Err(Error::setting("muon", format!("momentum {} is not in [0, 1)", self.momentum)));
        }
        Ok(())
    }

    fn check_param(&self, param: &Param) -> Result<()> {
        let dims = param.spec().shape.dims().len();
        if dims != 2 {
            let reason = format!("Muon updates matrices, and this has {dims} dimensions; give it to another optimizer");
            return Err(Error::parameter(param.name(), reason));
        }
        if param.local_shape() != param.spec().shape {
            let reason =
                "Muon orthogonalises whole matrices, and tensor-parallel ranks hold parts of it, or it is padded";
            return Err(Error::parameter(param.name(), reason));
        }
        Ok(())
    }

    fn states(&self) -> Vec<&'static str> {
        vec!["momentum"]
    }

    fn records_delta(&self) -> bool {
        false
    }
}

impl DeviceRule for MuonOptions {
    fn launch(&self, device: &Device, elements: StepElements<'_>, numbers: StepNumbers) -> Result<()> {
        let StepElements { parameter, master, grad, factor, .. } = elements;
        let settings = descent(numbers.lr, f64::from(numbers.decay));
        let [first, second, third] = [None, None, None];
        Ok(device.launch(Update { parameter, master, first, second, third, grad, factor, settings })?)
    }

    fn of_whole(&self) -> Option<&dyn WholeRule> {
        Some(self)
    }
}

/// `p = (1 - lr decay) p - lr g`.
pub(super) fn descent(lr: f64, decay: f64) -> UpdateSettings {
    let rule = UpdateRule::Sgd { momentum: 0.0, dampening: 0.0, nesterov: false };
    UpdateSettings { rule, lr, decay, decoupled: true, maximize: false, step: 1 }
}

impl WholeRule for MuonOptions {
    fn direct(&self, elements: DirectionElements<'_>) -> Result<()> {
        let DirectionElements { states, grads, factor, range, direction } = elements;
        let [average] = states.as_slice() else {
            return Err(Error::setting("muon", "a step takes one average"));
        };
        let (device, rest) = (direction.device(), 1.0 - self.momentum);
        move_average((average, range.clone()), f64::from(rest), grads.view(range.clone())?, factor)?;
        let mut alpha = 1.0;
        if self.nesterov {
            let out = Dest { view: direction.view_mut(range.clone())?, add: false };
            device.launch(ScaleBy {
                factor: factor.view()?,
                divisor: None,
                x: Some(grads.view(range.clone())?),
                out,
            })?;
            alpha = self.momentum;
        }
        let (a, out) = (average.view(range.clone())?, direction.view_mut(range)?);
        device.launch(AddScaled { alpha, a, beta: 1.0 - alpha, b: None, out })?;
        Ok(())
    }

    fn transform(&self, direction: WholeDirection<'_>) -> Result<Option<Tensor>> {
        let WholeDirection { storage: matrix, range, tensor, .. } = direction;
        let [rows, columns] = *tensor.shape.dims() else { return Ok(None) };
        let (device, len, inner) = (matrix.device(), range.len(), rows.min(columns));
        let f32s = |len: usize| Storage::empty(device, len, DType::F32, Segment::Workspace);
        let copy = |from: &Storage, to: &Storage| -> Result<()> {
            let (a, out) = (from.view(0..from.len())?, to.view_mut(0..to.len())?);
            Ok(device.launch(AddScaled { alpha: 1.0, a, beta: 0.0, b: None, out })?)
        };
        let (mut x, mut next) = (f32s(len)?, f32s(len)?);
        divided_by_norm(matrix.view(range.clone())?, &x)?;
        let (gram, polynomial) = (f32s(inner * inner)?, f32s(inner * inner)?);
        let [linear, third, fifth] = COEFFICIENTS;
        for _ in 0..self.iterations {
            let plain = || -> Result<_> { Ok(Matrix::plain(x.view(0..len)?, columns)) };
            let transposed = || -> Result<_> { Ok(Matrix::transposed(x.view(0..len)?, columns)) };
            // The smaller of X X^T and X^T X: what follows of the two is the same.
            let (a, b) = if rows <= columns { (plain()?, transposed()?) } else { (transposed()?, plain()?) };
            let out = Dest { view: gram.view_mut(0..gram.len())?, add: false };
            device.launch(Gemm::single([inner, inner, rows.max(columns)], a, b, out))?;
            copy(&gram, &polynomial)?;
            let square = || -> Result<_> { Ok(Matrix::plain(gram.view(0..gram.len())?, inner)) };
            let out = Dest { view: polynomial.view_mut(0..gram.len())?, add: true };
            let product = Gemm::single([inner; 3], square()?, square()?, out);
            device.launch(Gemm { alpha: fifth, beta: third, ..product })?;
            copy(&x, &next)?;
            let factor = Matrix::plain(polynomial.view(0..gram.len())?, inner);
            let (a, b) = if rows <= columns { (factor, plain()?) } else { (plain()?, factor) };
            let out = Dest { view: next.view_mut(0..len)?, add: true };
            device.launch(Gemm { beta: linear, ..Gemm::single([rows, columns, inner], a, b, out) })?;
            std::mem::swap(&mut x, &mut next);
        }
        let alpha = self.scale.of(if tensor.transposed { [columns, rows] } else { [rows, columns] });
        let (a, out) = (x.view(0..len)?, matrix.view_mut(range)?);
        device.launch(AddScaled { alpha, a, beta: 0.0, b: None, out })?;
        Ok(None)
    }
}

/// `average = (1 - rest) average + rest factor x` of a range of a storage. A factor that is not finite leaves it as it
/// is.
pub(super) fn move_average(
    (average, range): (&Storage, Range<usize>),
    rest: f64,
    x: View<'_>,
    factor: &Tensor,
) -> Result<()> {
    // The average as a parameter: of itself it keeps 1 - (-rest) (-1), and it descends by -rest.
    let [master, first, second, third] = [None, None, None, None];
    Ok(average.device().launch(Update {
        parameter: average.view_mut(range)?,
        master,
        first,
        second,
        third,
        grad: x,
        factor: factor.view()?,
        settings: descent(-rest, -1.0),
    })?)
}

/// A matrix over its norm, or over [`LEAST_NORM`] if that is larger.
fn divided_by_norm(matrix: View<'_>, out: &Storage) -> Result<()> {
    let device = out.device();
    let words = Storage::zeros(device, WORDS, DType::I64, Segment::Workspace)?;
    let sum = Dest { view: words.view_mut(0..WORDS)?, add: false };
    device.launch(GradNorm { order: NormOrder::Two, xs: vec![matrix], out: sum })?;
    // min(1, least / norm) over the least norm.
    let factor = at_most(device, words.view(0..WORDS)?, LEAST_NORM)?;
    let least = scalar(device, AMPLIFIED * LEAST_NORM as f32)?;
    let out = Dest { view: out.view_mut(0..out.len())?, add: false };
    let (factor, divisor) = (factor.view()?, Some(least.view()?));
    Ok(device.launch(ScaleBy { factor, divisor, x: Some(matrix), out })?)
}

pub(super) fn scalar(device: &Device, value: f32) -> Result<Tensor> {
    Ok(Tensor::full_in(device, [1], DType::F32, value, Segment::Workspace)?)
}

/// `min(1, bound / norm)`, times [`AMPLIFIED`], of a norm whose squares were summed.
pub(super) fn at_most(device: &Device, squares: View<'_>, bound: f64) -> Result<Tensor> {
    let (mut norm, mut factor) = (scalar(device, 0.0)?, scalar(device, 0.0)?);
    device.launch(ClipFactor {
        order: NormOrder::Two,
        max_norm: bound as f32 * AMPLIFIED,
        scale: 1.0 / AMPLIFIED,
        accumulated: squares,
        norm: norm.view_mut()?,
        factor: factor.view_mut()?,
    })?;
    Ok(factor)
}
