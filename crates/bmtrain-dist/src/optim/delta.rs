//! Size of the last update of each parameter, for optimizers that record it.
//!
//! [`Delta`] is what is shown; [`Before`] measures a kernel's update on the device, and [`norms`] brings the ranks'
//! sums together. Sums are exact ([`bmtrain_core::exact`]), so that the figures do not depend on how the work is
//! shared.
//!
//! The predecessor's `record_delta` kept mean and variance of the update's direction for 16-bit parameters on the host;
//! here it is the norm of the update itself, for every type and both optimizers. Beside the norm of the parameter it
//! shows a learning rate that is too high or a layer that does not change.

use crate::error::Result;
use crate::param::Flat;
use bmtrain_core::comm::{Collective, Reduction};
use bmtrain_core::exact::{Sum, WORDS};
use bmtrain_core::kernel::{AddScaled, Dest, GradNorm, NormOrder};
use bmtrain_core::{DType, Lane, Segment, Storage};
use std::ops::Range;

/// Size of the last update of a parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct Delta {
    /// Full name of the parameter.
    pub name: String,
    /// Square root of the sum of squares of `new - old`, over all ranks that share the parameter, of the f32 master
    /// where there is one: what a rounded 16-bit parameter does not show yet counts. 0 where the step changed nothing.
    pub norm: f64,
}

pub(super) struct Before<'a> {
    values: &'a Storage,
    range: Range<usize>,
    kept: Storage,
}

impl<'a> Before<'a> {
    /// Keep the f32 `values` of this range, which no other rank counts.
    pub(super) fn keep(values: &'a Storage, range: Range<usize>) -> Result<Self> {
        let device = values.device();
        let kept = Storage::empty(device, range.len(), DType::F32, Segment::Workspace)?;
        device.backend().copy(values.view(range.clone())?, kept.view_mut(0..range.len())?, Lane::Compute)?;
        Ok(Before { values, range, kept })
    }

    /// Add the sum of the squares of what has changed since to the sum of parameter `index`.
    pub(super) fn measure(self, words: &Storage, index: usize) -> Result<()> {
        let (device, all) = (self.values.device(), 0..self.kept.len());
        let (a, out) = (self.values.view(self.range)?, self.kept.view_mut(all.clone())?);
        device.launch(AddScaled { alpha: 1.0, a, beta: -1.0, b: None, out })?;
        let out = Dest { view: words.view_mut(index * WORDS..(index + 1) * WORDS)?, add: true };
        Ok(device.launch(GradNorm { order: NormOrder::Two, xs: vec![self.kept.view(all)?], out })?)
    }
}

/// The norms of all parameters of a flat storage from this rank's exact sums. Data-parallel and tensor-parallel ranks
/// have to do the same. Waits for the device.
pub(super) fn norms(flat: &Flat, words: &[i64]) -> Result<Vec<f64>> {
    let device = flat.device();
    let all = Storage::empty(device, words.len(), DType::I64, Segment::Workspace)?;
    let range = 0..words.len();
    device.backend().upload(bytemuck::cast_slice(words), all.view_mut(range.clone())?, Lane::Compute)?;
    for ranks in [&flat.sharding().ranks, flat.tensor_ranks()].into_iter().filter(|ranks| ranks.size() > 1) {
        let collective = Collective::AllReduce { data: all.view_mut(range.clone())?, by: Reduction::Sum };
        ranks.launch(device.backend(), collective, Lane::Compute)?;
    }
    let words: Vec<i64> = all.tensor(0, [words.len()])?.to_vec()?;
    let (sums, _) = words.as_chunks::<WORDS>();
    Ok(sums.iter().map(|words| Sum::from_words(*words).to_f64().sqrt()).collect())
}
