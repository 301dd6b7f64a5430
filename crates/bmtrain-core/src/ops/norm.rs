//! Layer norm and RMS norm, alone ([`norm`]) and after dropout and residual ([`residual_norm`]).

use super::*;
use crate::kernel::{Dropout, DropoutApply, NormBackward, NormForward, NormKind};

/// The formula of a norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormRule {
    /// Layer norm or RMS norm.
    pub kind: NormKind,
    /// Added to the variance (layer) or the mean square (RMS).
    pub epsilon: f32,
    /// Added to the weight, in f32: 1 where weights are stored as differences from 1, as in Gemma.
    pub weight_offset: f32,
}

impl NormRule {
    /// Weights as they are.
    pub fn new(kind: NormKind, epsilon: f32) -> Self {
        NormRule { kind, epsilon, weight_offset: 0.0 }
    }
}

/// `y = normalise(x) * (weight_offset + weight) + bias` along the innermost axis.
///
/// Shapes: x `[.., D]`, weight `[D]`, bias `[D]` → `[.., D]`.
/// Numerics: statistics in f32.
///
/// # Errors
/// Shapes that do not fit, an epsilon that is not positive.
pub fn norm(cx: &Ctx, rule: NormRule, x: &Var, weight: &Var, bias: Option<&Var>) -> Result<Var> {
    check("norm", rule, x.shape(), weight, bias)?;
    let (y, statistics) = normalise(cx, rule, (x, None, None), (weight, bias))?;
    let absent = x.detach();
    Ok(cx.record(y, &[x, weight, bias.unwrap_or(&absent)], || {
        let (x, weight_dtype) = (x.value().clone(), weight.dtype());
        Box::new(Normalised { x, weight: Saved::of(weight), weight_dtype, statistics })
    }))
}

/// `sum = dropout(x) + residual`, `y = normalise(sum) * (weight_offset + weight) + bias`;
/// returns `(sum, y)`.
///
/// A post-norm block goes on with y alone, a pre-norm block carries the sum on too. A sum that is not used costs
/// nothing on the backward pass.
///
/// Shapes: x and residual `[.., D]`, weight `[D]`, bias `[D]` → twice `[.., D]`.
pub fn residual_norm(
    cx: &Ctx,
    rule: NormRule,
    x: &Var,
    residual: &Var,
    dropout: Option<Dropout>,
    weight: &Var,
    bias: Option<&Var>,
) -> Result<(Var, Var)> {
    check("residual_norm", rule, x.shape(), weight, bias)?;
    expect_shape("residual_norm", "residual", x.shape(), residual.shape())?;
    let mut sum = empty(cx, x.shape(), residual.dtype())?; // [.., D]
    let summed = (x, dropout, Some((residual, &mut sum)));
    let (y, statistics) = normalise(cx, rule, summed, (weight, bias))?;
    let absent = x.detach();
    let saved = sum.clone();
    let mut results = cx.record_many(vec![sum, y], &[x, residual, weight, bias.unwrap_or(&absent)], || {
        Box::new(ResidualNormNode {
            dropout,
            x_dtype: x.dtype(),
            normalised: Normalised { x: saved, weight: Saved::of(weight), weight_dtype: weight.dtype(), statistics },
        })
    });
    match (results.pop(), results.pop()) {
        (Some(y), Some(sum)) => Ok((sum, y)),
        _ => unreachable!("two values in, two variables out"),
    }
}

/// Inputs of the normalization: x, its dropout, and a residual with the tensor that receives the sum.
type Summed<'a> = (&'a Var, Option<Dropout>, Option<(&'a Var, &'a mut Tensor)>);

fn normalise(
    cx: &Ctx,
    rule: NormRule,
    (x, dropout, residual): Summed<'_>,
    (weight, bias): (&Var, Option<&Var>),
) -> Result<(Tensor, Statistics)> {
    let mut y = empty(cx, x.shape(), x.dtype())?; // [.., D]
    let mut statistics = Statistics::new(cx.device(), rule, x.shape())?;
    let (residual, sum) = residual.unzip();
    cx.device().launch(NormForward {
        kind: rule.kind,
        rows: x.shape().rows(),
        columns: x.shape().last(),
        epsilon: rule.epsilon,
        weight_offset: rule.weight_offset,
        x: x.value().view()?,
        dropout,
        residual: view_of(residual)?,
        sum: sum.map(Tensor::view_mut).transpose()?,
        weight: weight.value().view()?,
        bias: view_of(bias)?,
        y: y.view_mut()?,
        mean: statistics.mean.as_mut().map(Tensor::view_mut).transpose()?,
        rstd: statistics.rstd.view_mut()?,
    })?;
    Ok((y, statistics))
}

fn check(op: &'static str, rule: NormRule, x: Shape, weight: &Var, bias: Option<&Var>) -> Result<()> {
    if x.rank() == 0 || x.last() == 0 {
        return Err(Error::shape(op, "x", "an innermost axis that is not empty", x));
    }
    let NormRule { epsilon, weight_offset, .. } = rule;
    if !weight_offset.is_finite() {
        return Err(Error::argument(op, format!("weight offset {weight_offset} is not a number")));
    }
    if !(epsilon >= 0.0 && epsilon.is_finite()) {
        return Err(Error::argument(op, format!("epsilon {epsilon} is not a small positive number")));
    }
    expect_elements(op, "weight", x.last(), weight.shape())?;
    bias.map_or(Ok(()), |bias| expect_elements(op, "bias", x.last(), bias.shape()))
}

#[derive(Debug)]
struct Statistics {
    rule: NormRule,
    /// Layer norm only, f32 `[rows]`.
    mean: Option<Tensor>,
    /// f32 `[rows]`.
    rstd: Tensor,
}

impl Statistics {
    fn new(device: &Device, rule: NormRule, x: Shape) -> Result<Self> {
        let rows = || Tensor::empty_in(device, [x.rows()], DType::F32, Segment::Activations);
        Ok(Statistics { rule, mean: if rule.kind == NormKind::Layer { Some(rows()?) } else { None }, rstd: rows()? })
    }
}

#[derive(Debug)]
struct Normalised {
    /// Input of the normalization.
    x: Tensor,
    weight: Saved,
    weight_dtype: DType,
    statistics: Statistics,
}

impl Normalised {
    fn launch<'a>(
        &'a self,
        device: &Device,
        dy: &'a Tensor,
        dx: Option<Dest<'a>>,
        branch: Option<(Dropout, Dest<'a>)>,
        [dweight, dbias]: [Option<Dest<'a>>; 2],
    ) -> Result<()> {
        let weight = self.weight.get()?;
        device.launch(NormBackward {
            kind: self.statistics.rule.kind,
            rows: self.x.shape().rows(),
            columns: self.x.shape().last(),
            x: self.x.view()?,
            mean: self.statistics.mean.as_ref().map(Tensor::view).transpose()?,
            rstd: self.statistics.rstd.view()?,
            weight_offset: self.statistics.rule.weight_offset,
            weight: weight.view()?,
            dy: dy.view()?,
            dx,
            branch,
            dweight,
            dbias,
        })
    }

    fn affine(&self, weight: usize) -> [(usize, Shape, DType); 2] {
        [weight, weight + 1].map(|index| (index, Shape::from([self.x.shape().last()]), self.weight_dtype))
    }

    fn request(&self, index: usize, dtype: DType) -> (usize, Shape, DType) {
        (index, self.x.shape(), dtype)
    }
}

impl Backward for Normalised {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let dy = only("norm", dy)?;
        let [weight, bias] = self.affine(1);
        cx.write_many([self.request(0, self.x.dtype()), weight, bias], |device, [dx, dweight, dbias]| {
            self.launch(device, &dy, dx, None, [dweight, dbias])
        })
    }

    fn saved_bytes(&self) -> usize {
        bytes_of([&self.x, &self.statistics.rstd].into_iter().chain(&self.statistics.mean))
    }
}

#[derive(Debug)]
struct ResidualNormNode {
    dropout: Option<Dropout>,
    x_dtype: DType,
    normalised: Normalised,
}

/// Numbers of the inputs.
const X: usize = 0;
const RESIDUAL: usize = 1;
const WEIGHT: usize = 2;

impl Backward for ResidualNormNode {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let ResidualNormNode { dropout, x_dtype, normalised: saved } = *self;
        let mut dy = dy.into_iter();
        let (dsum, dy) = (dy.next().flatten(), dy.next().flatten());
        let [weight, bias] = saved.affine(WEIGHT);
        let residual = saved.request(RESIDUAL, saved.x.dtype());
        match (dsum, dy) {
            (dsum, None) => dsum.map_or(Ok(()), |total| split(cx, total, dropout, x_dtype)),
            (None, Some(dy)) => match dropout {
                Some(dropout) => {
                    let requests = [saved.request(X, x_dtype), residual, weight, bias];
                    cx.write_many(requests, |device, [branch, dx, dweight, dbias]| {
                        let branch = branch.map(|dest| (dropout, dest));
                        saved.launch(device, &dy, dx, branch, [dweight, dbias])
                    })
                }
                None if cx.needs(X) && cx.needs(RESIDUAL) => {
                    let total = Tensor::empty_in(cx.device(), saved.x.shape(), saved.x.dtype(), Segment::Activations)?;
                    let total = add_norm(cx, &saved, &dy, total, false)?;
                    split(cx, total, None, x_dtype)
                }
                None => {
                    let only = if cx.needs(X) { saved.request(X, x_dtype) } else { residual };
                    cx.write_many([only, weight, bias], |device, [dx, dweight, dbias]| {
                        saved.launch(device, &dy, dx, None, [dweight, dbias])
                    })
                }
            },
            (Some(dsum), Some(dy)) => {
                if !(cx.needs(X) || cx.needs(RESIDUAL)) {
                    return cx.write_many([weight, bias], |device, dests| saved.launch(device, &dy, None, None, dests));
                }
                let total = add_norm(cx, &saved, &dy, dsum.owned()?, true)?;
                split(cx, total, dropout, x_dtype)
            }
        }
    }

    fn saved_bytes(&self) -> usize {
        self.normalised.saved_bytes()
    }
}

/// The gradient of the sum through the normalisation, written or added to `total`, and of scale and shift.
fn add_norm(cx: &mut BackwardCtx<'_>, saved: &Normalised, dy: &Tensor, mut total: Tensor, add: bool) -> Result<Tensor> {
    let device = cx.device().clone();
    let [weight, bias] = saved.affine(WEIGHT);
    if cx.needs(WEIGHT) || cx.needs(WEIGHT + 1) {
        let dx = total.dest(add)?;
        cx.write_many([weight, bias], |device, dests| saved.launch(device, dy, Some(dx), None, dests))?;
    } else {
        saved.launch(&device, dy, Some(total.dest(add)?), None, [None, None])?;
    }
    Ok(total)
}

/// Hand the gradient of the sum to its two terms.
fn split(cx: &mut BackwardCtx<'_>, total: Tensor, dropout: Option<Dropout>, x_dtype: DType) -> Result<()> {
    match dropout {
        Some(dropout) => {
            let (shape, rows, columns) = (total.shape(), total.shape().rows(), total.shape().last());
            cx.write(X, shape, x_dtype, |device, y| {
                device.launch(DropoutApply { dropout, rows, columns, x: Some(total.view()?), y })
            })?;
        }
        None => cx.give(X, super::in_dtype(total.clone(), x_dtype)?)?,
    }
    cx.give(RESIDUAL, total)
}
