//! Arguments of the optimizer step and of gradient clipping.

use super::{Arguments, Elements, Operand, expect};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::exact::WORDS;
use crate::view::{View, ViewMut};

/// Norm of all gradients together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NormOrder {
    /// Square root of the sum of squares.
    Two,
    /// Largest magnitude.
    Infinity,
}

/// From the accumulated [`GradNorm`](super::GradNorm) to the true norm and the factor that gradients are multiplied by:
/// `norm = root / scale`, `factor = min(1, max_norm / (norm + 1e-6)) / scale`. A norm that is not finite gives a factor
/// that is not a number, at which [`Adam`] changes nothing.
///
/// Source: `torch.nn.utils.clip_grad_norm_`, and the predecessor's division by the loss scale.
#[derive(Debug)]
pub struct ClipFactor<'a> {
    /// Norm that was accumulated.
    pub order: NormOrder,
    /// Upper bound of the norm; infinity for none.
    pub max_norm: f32,
    /// Loss scale.
    pub scale: f32,
    /// The accumulated sum of squares or largest magnitude, the integers of [`exact::Sum`](crate::exact::Sum).
    pub accumulated: View<'a>,
    /// Receives the true norm, f32 `[1]`.
    pub norm: ViewMut<'a>,
    /// Receives the factor, f32 `[1]`.
    pub factor: ViewMut<'a>,
}

arguments! {
    ClipFactor, "clip_factor", |a| { accumulated: I64[WORDS], norm: F32[1], factor: F32[1] },
    if a.max_norm > 0.0 && a.scale > 0.0 {
        Ok(())
    } else {
        Err(Error::argument(Self::NAME, format!("max_norm {} and scale {} must be above 0", a.max_norm, a.scale)))
    }
}

/// One Adam step (Kingma and Ba, 2015) over runs of elements, e.g. all parameters of a model.
///
/// With `g = factor * grad` and `t = step`: `m = b1 m + (1 - b1) g`, `v = b2 v + (1 - b2) g^2`,
/// `p = p - lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon) - lr * decay * p` when decoupled
/// (Loshchilov and Hutter, 2019; the decay uses the old p); when coupled, `decay * p` is added to `g` first.
///
/// Numerics: f32 throughout; `p` is the f32 master where there is one, and the parameter is its value rounded to
/// nearest, ties to even.
#[derive(Debug)]
pub struct Adam<'a> {
    /// The elements. All runs have parameters of one type and gradients of one type.
    pub runs: Vec<AdamRun<'a>>,
    /// f32 `[1]`: multiplied into the gradients; if it is not finite nothing is changed.
    pub factor: View<'a>,
}

/// Elements of an [`Adam`] step that share its numbers: ranges of one length.
#[derive(Debug)]
pub struct AdamRun<'a> {
    /// Parameter, any floating-point type.
    pub parameter: ViewMut<'a>,
    /// f32 copy of a parameter of another type.
    pub master: Option<ViewMut<'a>>,
    /// First moment, f32.
    pub m: ViewMut<'a>,
    /// Second moment, f32.
    pub v: ViewMut<'a>,
    /// Gradient, any floating-point type.
    pub grad: View<'a>,
    /// The numbers of the step.
    pub settings: AdamSettings,
}

/// The numbers of an [`Adam`] step, without what it works on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamSettings {
    /// Learning rate.
    pub lr: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root.
    pub epsilon: f32,
    /// Weight decay of this run.
    pub decay: f32,
    /// Decay the parameter itself rather than adding to the gradient.
    pub decoupled: bool,
    /// Climb instead of descend.
    pub maximize: bool,
    /// Number of this step, from 1.
    pub step: u64,
}

/// Numbers that all elements of a step share. Made here for every backend, so that all have the same bits; laid out as
/// `StepNumbers` of steps.cuh.
#[derive(Debug, Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
pub(crate) struct AdamNumbers {
    /// Multiplied into the gradient; negative to climb.
    pub(crate) factor: f32,
    pub(crate) beta1: f32,
    /// `1 - beta1`.
    pub(crate) rest1: f32,
    pub(crate) beta2: f32,
    /// `1 - beta2`.
    pub(crate) rest2: f32,
    pub(crate) epsilon: f32,
    /// `lr / (1 - beta1^t)`.
    pub(crate) rate: f32,
    /// `1 / (1 - beta2^t)`.
    pub(crate) correction: f32,
    /// Added to the gradient, times the parameter.
    pub(crate) coupled: f32,
    /// `1 - lr * decay` when decoupled.
    pub(crate) keep: f32,
}

impl AdamSettings {
    /// The numbers of the step for a factor of the gradient.
    pub(crate) fn numbers(&self, factor: f32) -> AdamNumbers {
        // In doubles: 1 - beta^t loses most of an f32's digits in the first steps.
        let correction = |beta: f32| 1.0 - f64::from(beta).powf(self.step as f64);
        let keep = (1.0 - f64::from(self.lr) * f64::from(self.decay)) as f32;
        AdamNumbers {
            factor: if self.maximize { -factor } else { factor },
            beta1: self.beta1,
            rest1: 1.0 - self.beta1,
            beta2: self.beta2,
            rest2: 1.0 - self.beta2,
            epsilon: self.epsilon,
            rate: (f64::from(self.lr) / correction(self.beta1)) as f32,
            correction: (1.0 / correction(self.beta2)) as f32,
            coupled: if self.decoupled { 0.0 } else { self.decay },
            keep: if self.decoupled { keep } else { 1.0 },
        }
    }
}

impl Operand for AdamRun<'_> {
    visits!(parameter, master, m, v, grad);
}

arguments! {
    Adam, "adam", |a| { runs: Any, factor: F32[1] }, a.check_runs()
}

impl Adam<'_> {
    fn check_runs(&self) -> Result<()> {
        let types = |run: &AdamRun<'_>| (run.parameter.dtype(), run.grad.dtype());
        let Some(first) = self.runs.first().map(types) else { return Ok(()) };
        for run in &self.runs {
            let AdamRun { parameter, master, m, v, grad, settings } = run;
            let len = Some(parameter.len());
            expect(Self::NAME, "parameter", parameter, Elements::Float, None)?;
            expect(Self::NAME, "grad", grad, Elements::Float, len)?;
            expect(Self::NAME, "master", master, Elements::F32, len)?;
            expect(Self::NAME, "m", m, Elements::F32, len)?;
            expect(Self::NAME, "v", v, Elements::F32, len)?;
            check_step(Self::NAME, parameter.dtype(), master.is_some(), settings.step)?;
            if types(run) != first {
                return Err(Error::argument(Self::NAME, "runs have parameters or gradients of several types"));
            }
        }
        Ok(())
    }
}

/// Whether step number `step` of a parameter of this dtype can be taken with or without a master.
pub(crate) fn check_step(op: &'static str, dtype: DType, has_master: bool, step: u64) -> Result<()> {
    if (dtype == DType::F32) == has_master {
        return Err(Error::argument(op, "a master copy belongs to parameters that are not f32, and only to them"));
    }
    if step == 0 {
        return Err(Error::argument(op, "steps are counted from 1"));
    }
    Ok(())
}
