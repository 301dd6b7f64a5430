//! Directions in which the tensors of a storage's parameters move, where they depend on whole tensors.
//!
//! Called by [`DeviceOptimizer`](super::DeviceOptimizer) for a [`WholeRule`].

use super::moments::Moments;
use super::on_device::{DirectionElements, Rule, WholeDirection, WholeRule};
use super::state::{DueUpdate, FlatState};
use crate::error::Result;
use crate::param::{Flat, OwnedPart, runs_of_tensors};
use bmtrain_core::buffer::View;
use bmtrain_core::comm::{Collective, Reduction};
use bmtrain_core::exact::WORDS;
use bmtrain_core::kernel::{AddScaled, Dest, GradNorm, NormOrder};
use bmtrain_core::{DType, Lane, Segment, Storage, Tensor};
use std::collections::HashMap;
use std::rc::Rc;

/// Directions in which the parameters of a storage move.
pub(super) struct Directions {
    /// f32, laid out like the whole storage; transformed where this rank owns a part of the tensor.
    pub(super) whole: Storage,
    /// f32 `[1]`: 1, or NaN if the step is to change nothing.
    pub(super) one: Tensor,
    /// Factors of the learning rate, for those tensors that have one: by the number of the parameter, and by the number
    /// of its tensor.
    pub(super) rates: HashMap<usize, HashMap<usize, Tensor>>,
}

/// The directions of a storage's parameters. Data-parallel ranks that share the storage have to do the same.
pub(super) fn directions(
    (rule, settings): (&dyn WholeRule, &impl Rule),
    state: &mut FlatState<Moments>,
    due: &[DueUpdate],
    factor: &Tensor,
) -> Result<Directions> {
    let (device, flat) = (factor.device(), Rc::clone(&state.flat));
    let one = one_of(factor)?;
    let direction = Storage::zeros(device, flat.state_len(), DType::F32, Segment::Workspace)?;
    let owned = || due.iter().map(|due| (due, flat.owned(due.index))).filter(|(_, part)| !part.of_param.is_empty());
    for (DueUpdate { grads, .. }, OwnedPart { in_state: range, .. }) in owned() {
        let states = state.moments.states().map(|(_, state)| state).collect();
        rule.direct(DirectionElements { states, grads, factor, range, direction: &direction })?;
    }
    let squares = if rule.measures_parameters() { Some(squares(&flat, &state.moments, due)?) } else { None };
    let (whole, mut rates) = (flat.gather_state(&direction)?, HashMap::<usize, HashMap<usize, Tensor>>::new());
    for (DueUpdate { index, tensors, .. }, part) in owned() {
        state.moments.statistics_of(settings, (&flat, *index, tensors))?;
        let statistics: Vec<&Storage> = state.moments.statistics.get(index).into_iter().flatten().collect();
        let start = flat.layout().spans()[*index].start;
        for tensor in tensors {
            let is_owned = tensor.elements.start < part.of_param.end && part.of_param.start < tensor.elements.end;
            // What is kept whole for a parameter is the same on all ranks that own a part of it.
            if !is_owned && statistics.is_empty() {
                continue;
            }
            let squares = squares.as_ref().and_then(|squares| squares.of_tensor(*index, tensor.number));
            let rate = rule.transform(WholeDirection {
                storage: &whole,
                range: start + tensor.elements.start..start + tensor.elements.end,
                tensor,
                statistics: statistics.clone(),
                squares: squares.transpose()?,
                one: &one,
                step: state.steps[*index] + 1,
            })?;
            if let Some(rate) = rate {
                rates.entry(*index).or_default().insert(tensor.number, rate);
            }
        }
    }
    Ok(Directions { whole, one, rates })
}

/// f32 `[1]`: 1 where the factor of a step is finite, else NaN.
pub(super) fn one_of(factor: &Tensor) -> Result<Tensor> {
    let device = factor.device();
    let mut one = Tensor::full_in(device, [1], DType::F32, 1.0, Segment::Workspace)?;
    // 0 times what is not finite is not a number.
    device.launch(AddScaled { alpha: 0.0, a: factor.view()?, beta: 1.0, b: None, out: one.view_mut()? })?;
    Ok(one)
}

/// Exact sums of the squares of tensors.
struct Squares {
    words: Storage,
    /// Index of the first tensor of a parameter among all, by the number of the parameter.
    first: HashMap<usize, usize>,
}

impl Squares {
    fn of_tensor(&self, index: usize, tensor: usize) -> Option<bmtrain_core::Result<View<'_>>> {
        let at = self.first.get(&index)? + tensor;
        Some(self.words.view(at * WORDS..(at + 1) * WORDS))
    }
}

/// The sum of the squares of each tensor before the step, over all data-parallel ranks: of its f32 master where there
/// is one.
fn squares(flat: &Flat, moments: &Moments, due: &[DueUpdate]) -> Result<Squares> {
    let (mut first, mut tensors) = (HashMap::new(), 0);
    for due in due {
        first.insert(due.index, tensors);
        tensors += due.tensors.len();
    }
    let (device, len) = (flat.device(), tensors * WORDS);
    let words = Storage::zeros(device, len, DType::I64, Segment::Workspace)?;
    for due in due {
        let owned = flat.counted(due.index);
        // Squares are summed in chunks from the first of a run: runs that begin at blocks make the sum the same on any
        // number of ranks.
        for run in runs_of_tensors(&due.tensors, &owned) {
            let part = owned.part(run.elements);
            let x = match moments.master() {
                Some(master) => master.view(part.in_state)?,
                None => flat.values()?.view(part.in_values)?,
            };
            let at = first.get(&due.index).map_or(0, |first| first + run.tensor);
            let out = Dest { view: words.view_mut(at * WORDS..(at + 1) * WORDS)?, add: true };
            device.launch(GradNorm { order: NormOrder::Two, xs: vec![x], out })?;
        }
    }
    let ranks = &flat.sharding().ranks;
    if ranks.size() > 1 {
        let collective = Collective::AllReduce { data: words.view_mut(0..len)?, by: Reduction::Sum };
        ranks.launch(device.backend(), collective, Lane::Compute)?;
    }
    Ok(Squares { words, first })
}
