//! Bottleneck adapters of a linear layer's outputs, as options of a builder beside low-rank updates.

use crate::error::{Error, Result};
pub use crate::param::BottleneckOptions;
use crate::param::{Builder, Init, LinearLayer, Param, Split, TensorSplit};
use bmtrain_core::kernel::{Activation, Distribution};
use bmtrain_core::{Ctx, Var, ops};
use std::cell::Cell;
use std::rc::Rc;

/// The bottleneck of a layer.
#[derive(Debug, Clone)]
pub(super) struct Bottleneck {
    /// Weight and bias of each map.
    down: [Param; 2],
    up: [Param; 2],
    activation: Activation,
    left_out: Rc<Cell<bool>>,
}

impl Bottleneck {
    /// Declare the bottleneck of a layer, if the builder's options have one.
    pub(super) fn of_layer(builder: &Builder, layer: &LinearLayer) -> Result<Option<Self>> {
        let adapters = builder.options().adapters.as_ref();
        let options = adapters.and_then(|adapters| adapters.bottlenecks.get(&layer.name));
        let Some(&BottleneckOptions { size, activation }) = options else { return Ok(None) };
        layer.check_adapter("bottleneck")?;
        if layer.split == TensorSplit::Columns {
            let reason = "has a bottleneck, which is of all outputs, and tensor-parallel ranks have some each";
            return Err(Error::parameter(layer.weight(), reason));
        }
        if size == 0 {
            return Err(Error::parameter(layer.weight(), "its bottleneck has size 0: use at least 1"));
        }
        let (outputs, place) = (layer.rows(), builder.adapter().at("bottleneck"));
        let map = |name: &str, shape: [usize; 2], init| -> Result<[Param; 2]> {
            let place = place.at(name);
            let weight = place.param("weight", shape, init, Split::Replicated, true)?;
            Ok([weight, place.param("bias", [shape[0]], Init::ZEROS, Split::Replicated, false)?])
        };
        // PyTorch's initial values of a linear layer.
        let bound = 1.0 / (outputs as f32).sqrt();
        let init = Init::Random(Distribution::Uniform(-bound, bound));
        let (down, up) = (map("down", [size, outputs], init)?, map("up", [outputs, size], Init::ZEROS)?);
        Ok(Some(Bottleneck { down, up, activation, left_out: builder.updates_left_out() }))
    }

    /// The outputs `y` of the layer after the bottleneck.
    pub(super) fn after(&self, y: Var, cx: &Ctx) -> Result<Var> {
        if self.left_out.get() {
            return Ok(y);
        }
        let ([w_down, b_down], [w_up, b_up]) = (&self.down, &self.up);
        let bias = b_down.var(cx)?;
        let hidden = ops::linear(cx, &y, &w_down.var(cx)?, Some(&bias), Some(self.activation))?; // [.., R]
        let added = ops::linear(cx, &hidden, &w_up.var(cx)?, Some(&b_up.var(cx)?), None)?; // [.., N]
        Ok(ops::add(cx, &y, &added)?) // [.., N]
    }
}
