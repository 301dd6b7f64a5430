//! Gradients over tensor-parallel ranks: terms of one gradient that several ranks computed are summed, and the norm
//! counts what several ranks have once. Called by [`OptimManager`](super::OptimManager) between the reduction over the
//! data-parallel ranks and the norm; ranks of a tensor group own the same elements there.

use crate::error::Result;
use crate::param::{Flat, Param, SharedRange, Split};
use bmtrain_core::comm::{Collective, Reduction};
use bmtrain_core::kernel::Fill;
use bmtrain_core::{Device, Lane, Segment, Storage};
use std::ops::Range;
use std::rc::Rc;

/// Sum the terms of the gradients of these storages over the tensor-parallel ranks. Collective over these; `params` are
/// in an order that all ranks have.
///
/// Numerics: in the dtype of the gradients, in the order of the ranks.
pub(super) fn sum_all_terms(device: &Device, flats: &[Rc<Flat>], params: &[&Param]) -> Result<()> {
    for flat in flats.iter().filter(|flat| flat.tensor_ranks().size() > 1) {
        let members = params.iter().filter(|param| param.place().is_ok_and(|(home, _)| Rc::ptr_eq(home, flat)));
        sum_terms(device, flat, members.copied())?;
    }
    Ok(())
}

/// Elements of reduced gradients where each rank of a tensor group has a term.
struct Terms {
    /// In the reduced gradients.
    range: Range<usize>,
    /// Number of ranks that share them.
    replicas: usize,
}

/// The same for one storage and its parameters.
fn sum_terms<'p>(device: &Device, flat: &Flat, params: impl Iterator<Item = &'p Param>) -> Result<()> {
    let ranks = flat.tensor_ranks();
    let Some(gradients) = flat.reduced() else { return Ok(()) };
    let mut terms = Vec::new();
    for param in params.filter(|param| param.is_trainable()) {
        let index = param.place()?.1;
        if flat.has_grad(index) {
            terms.extend(terms_of(flat, index, &param.shared_ranges()));
        }
    }
    // Groups of replicas are neighbours. Each group has a slot of its own, in which the others have zeros, so that one
    // sum over all ranks is the sum of every group.
    let slots = |terms: &Terms| ranks.size() / terms.replicas;
    let len = terms.iter().map(|terms| slots(terms) * terms.range.len()).sum();
    if len == 0 {
        return Ok(());
    }
    let buffer = Storage::empty(device, len, gradients.dtype(), Segment::Workspace)?;
    device.launch(Fill { value: 0.0, out: buffer.view_mut(0..len)? })?;
    let mut start = 0;
    let mut own = Vec::with_capacity(terms.len());
    for terms in terms {
        let at = start + ranks.rank() / terms.replicas * terms.range.len();
        start += slots(&terms) * terms.range.len();
        own.push((at..at + terms.range.len(), terms.range));
    }
    let backend = device.backend();
    for (slot, range) in &own {
        backend.copy(gradients.view(range.clone())?, buffer.view_mut(slot.clone())?, Lane::Compute)?;
    }
    let sum = Collective::AllReduce { data: buffer.view_mut(0..len)?, by: Reduction::Sum };
    ranks.launch(backend, sum, Lane::Compute)?;
    for (slot, range) in own {
        backend.copy(buffer.view(slot)?, gradients.view_mut(range)?, Lane::Compute)?;
    }
    Ok(())
}

/// The shared ranges of parameter `index`, as far as this rank owns them.
fn terms_of(flat: &Flat, index: usize, shared: &[SharedRange]) -> Vec<Terms> {
    let owned = flat.owned(index);
    let in_state = |shared: &SharedRange| {
        let (start, end) = (shared.range.start.max(owned.of_param.start), shared.range.end.min(owned.of_param.end));
        let first = (start + owned.in_state.start).checked_sub(owned.of_param.start)?;
        (start < end).then(|| Terms { range: first..first + end - start, replicas: shared.replicas })
    };
    shared.iter().filter_map(in_state).collect()
}

/// The ranges of a parameter's reduced gradient that this rank counts in the norm of all gradients: no element of the
/// full parameter is counted twice over all data-parallel and tensor-parallel ranks and pipeline stages.
pub(super) fn counted(param: &Param) -> Result<Vec<Range<usize>>> {
    let (flat, index) = param.place()?;
    if flat.is_copy() {
        return Ok(Vec::new());
    }
    let (ranks, counted) = (flat.tensor_ranks(), flat.counted(index));
    if ranks.size() == 1 {
        return Ok(vec![counted.in_state]);
    }
    if param.spec().split == Split::Replicated {
        return Ok(if ranks.rank() == 0 { vec![counted.in_state] } else { Vec::new() });
    }
    // Of each group of replicas the first one counts.
    let others = param.shared_ranges().into_iter().filter(|shared| ranks.rank() % shared.replicas != 0);
    let mut left = vec![counted.of_param.clone()];
    for SharedRange { range: out, .. } in others {
        let outside = |range: Range<usize>| {
            let before = range.start..range.end.min(out.start);
            let after = range.start.max(out.end)..range.end;
            [before, after].into_iter().filter(|range| range.start < range.end)
        };
        left = left.into_iter().flat_map(outside).collect();
    }
    let shift = |range: Range<usize>| {
        let at = |element: usize| element - counted.of_param.start + counted.in_state.start;
        at(range.start)..at(range.end)
    };
    Ok(left.into_iter().map(shift).collect())
}
