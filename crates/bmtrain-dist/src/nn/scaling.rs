//! Learned factors of a linear layer's outputs or inputs: IA³, as options of a builder beside low-rank updates.

use super::low_rank::overlap;
use crate::error::{Error, Result};
use crate::param::{Builder, Init, LinearLayer, Param};
pub use crate::param::{ScaledSide, ScalingOptions};
use bmtrain_core::{Ctx, DType, Segment, Tensor, Var, ops};
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

/// The learned factors of a layer.
#[derive(Debug, Clone)]
pub(super) struct Scaling {
    /// With the first of this rank's outputs that each multiplies.
    outputs: Vec<(usize, Param)>,
    inputs: Option<Param>,
    left_out: Rc<Cell<bool>>,
}

impl Scaling {
    /// Declare the factors of a layer that the builder's options have; `weight` is its weight.
    pub(super) fn of_layer(builder: &Builder, layer: &LinearLayer, weight: &Param) -> Result<Self> {
        let mut scaling = Scaling { outputs: Vec::new(), inputs: None, left_out: builder.updates_left_out() };
        let adapters = builder.options().adapters.as_ref();
        let Some(all) = adapters.and_then(|adapters| adapters.scaling.get(&layer.name)) else { return Ok(scaling) };
        let place = builder.adapter().at("ia3").in_f32(true);
        let mut scaled: Vec<&Range<usize>> = Vec::new();
        for ScalingOptions { name, side } in all {
            layer.check_adapter(name)?;
            let wrong = |reason: String| Error::parameter(layer.weight(), format!("the adapter \"{name}\" {reason}"));
            match side {
                ScaledSide::Inputs if scaling.inputs.is_some() => {
                    return Err(wrong("is of inputs that have factors".to_owned()));
                }
                ScaledSide::Inputs => {
                    let split = layer.adapted_inputs(0);
                    scaling.inputs = Some(place.param(name, [layer.inputs], Init::ONES, split, true)?);
                }
                ScaledSide::Outputs(rows) if scaled.iter().any(|other| overlap(rows, other)) => {
                    return Err(wrong(format!("has rows {rows:?}, and some of these have factors")));
                }
                ScaledSide::Outputs(rows) => {
                    let (split, first) = layer.adapted_outputs(name, rows, weight)?;
                    scaled.push(rows);
                    scaling.outputs.push((first, place.param(name, [rows.len()], Init::ONES, split, true)?));
                }
            }
        }
        Ok(scaling)
    }

    /// Whether there are factors at all.
    pub(super) fn is_empty(&self) -> bool {
        self.outputs.is_empty() && self.inputs.is_none()
    }

    /// The inputs times their factors, if they have any.
    pub(super) fn of_inputs(&self, x: &Var, cx: &Ctx) -> Result<Option<Var>> {
        let Some(factors) = self.inputs.as_ref().filter(|_| !self.left_out.get()) else { return Ok(None) };
        Ok(Some(ops::scale_columns(cx, x.clone(), &factors.var(cx)?, None)?)) // [.., inputs]
    }

    /// The outputs times their factors.
    pub(super) fn of_outputs(&self, y: Var, cx: &Ctx) -> Result<Var> {
        if self.outputs.is_empty() || self.left_out.get() {
            return Ok(y);
        }
        let factors = self.outputs.iter().map(|(first, factors)| Ok((*first, factors.var(cx)?)));
        let factors = of_columns(factors.collect::<Result<_>>()?, y.shape().last(), cx)?; // [outputs]
        Ok(ops::scale_columns(cx, y, &factors, None)?)
    }
}

/// Factors of `width` columns, f32, from factors of some columns with the number of each one's first column: ones
/// elsewhere.
pub(super) fn of_columns(mut some: Vec<(usize, Var)>, width: usize, cx: &Ctx) -> Result<Var> {
    some.sort_by_key(|(first, _)| *first);
    let ones = |count: usize| -> Result<Var> {
        Ok(Var::constant(Tensor::full_in(cx.device(), [count], DType::F32, 1.0, Segment::Activations)?))
    };
    let (mut parts, mut at) = (Vec::new(), 0);
    for (first, factors) in some {
        if first > at {
            parts.push(ones(first - at)?);
        }
        at = first + factors.shape().elements();
        parts.push(factors);
    }
    if width > at {
        parts.push(ones(width - at)?);
    }
    match parts.as_slice() {
        [all] => Ok(all.clone()),
        _ => Ok(ops::concat_last(cx, &parts.iter().collect::<Vec<_>>())?), // [width]
    }
}
