//! Trained lengths of the rows of an updated weight, as DoRA has them. Defines [`Magnitude`].

use crate::error::Result;
use crate::param::{Builder, Init, LinearLayer, Param, Split, TensorSplit};
use bmtrain_core::comm::Communicator;
use bmtrain_core::ops::{self, RowUpdate};
use bmtrain_core::{Ctx, Tensor, Var};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// The magnitudes of rows of a weight `[N, K]`.
#[derive(Debug, Clone)]
pub(crate) struct Magnitude {
    /// f32 `[rows]`.
    value: Param,
    weight: Param,
    /// Rows of this rank's part of the weight.
    rows: Range<usize>,
    /// The tensor-parallel ranks, where each has some columns of every row.
    ranks: Option<Arc<dyn Communicator>>,
}

impl Magnitude {
    /// Declare `magnitude` at the place of an update of a layer's weight, with a size and a split over tensor-parallel
    /// ranks. `rows` are the updated ones of this rank's part of the weight.
    pub(super) fn new(
        place: &Builder,
        (layer, weight): (&LinearLayer, &Param),
        (size, split): (usize, Split),
        rows: Range<usize>,
    ) -> Result<Self> {
        let value = place.in_f32(true).param("magnitude", [size], Init::ONES, split, true)?;
        let ranks = place.tensor_ranks().filter(|_| layer.split == TensorSplit::Rows).cloned();
        let magnitude = Magnitude { value, weight: weight.clone(), rows, ranks };
        let deferred = magnitude.clone();
        place.note_deferred(&magnitude.value, Rc::new(move || deferred.initialize()))?;
        Ok(magnitude)
    }

    /// Factors of the updated weight's outputs, f32 `[rows]`.
    pub(super) fn factors(&self, update: RowUpdate<'_>, cx: &Ctx) -> Result<Var> {
        let norms = self.norms(Some(update), cx)?; // [rows]
        Ok(ops::divide_by_norms(cx, &self.value.var(cx)?, &norms)?)
    }

    /// The lengths of the rows of the weight, updated or as it is, over all ranks' columns.
    fn norms(&self, update: Option<RowUpdate<'_>>, cx: &Ctx) -> Result<Tensor> {
        let norms = ops::updated_row_norms(cx, &self.weight.value()?, self.rows.clone(), update)?; // [rows]
        let Some(ranks) = &self.ranks else { return Ok(norms) };
        let own = Var::constant(norms.reshape([norms.elements(), 1])?); // [rows, 1]
        Ok(ops::row_norms(cx, ops::gather_last(cx, ranks, &own)?.value())?)
    }

    /// Set the magnitudes to the lengths of the rows of the weight, where this pipeline stage holds them. Collective.
    /// Waits for the device.
    pub(crate) fn initialize(&self) -> Result<()> {
        if !self.value.is_held() {
            return Ok(());
        }
        let gathered = if self.weight.is_in_blocks() { None } else { Some(self.weight.place()?.0) };
        gathered.map_or(Ok(()), |flat| flat.gather())?;
        let cx = Ctx::inference(self.value.place()?.0.device());
        let norms = self.norms(None, &cx).and_then(|norms| Ok(norms.to_vec::<f32>()?));
        if let Some(flat) = gathered {
            flat.release();
        }
        self.value.load_local(&norms?)
    }
}
