//! Gradients over tensor-parallel ranks: terms of one gradient that several ranks computed are summed. Called by
//! [`OptimManager`](super::OptimManager) between the reduction over the data-parallel ranks and the norm, which counts
//! what several ranks have once ([`Param::counted`]), and by the inspection of gradients; ranks of a tensor group own
//! the same elements there.

use crate::error::Result;
use crate::param::{Flat, OwnedPart, Param, SharedRange};
use bmtrain_core::comm::{Collective, Communicator, Reduction};
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
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    /// In the reduced gradients.
    pub(crate) range: Range<usize>,
    /// Number of ranks that share them.
    pub(crate) replicas: usize,
}

/// Sums of terms beside the gradients, and where in them each of this rank's terms is.
pub(crate) struct SummedTerms {
    pub(crate) sums: Storage,
    pub(crate) own: Vec<Range<usize>>,
}

/// Sums the terms of one storage and its parameters.
fn sum_terms<'p>(device: &Device, flat: &Flat, params: impl Iterator<Item = &'p Param>) -> Result<()> {
    let ranks = flat.tensor_ranks();
    let Some(gradients) = flat.reduced() else { return Ok(()) };
    let mut terms = Vec::new();
    for param in params.filter(|param| param.is_trainable()) {
        let index = param.place()?.1;
        if flat.has_grad(index) {
            terms.extend(terms_of(&flat.owned(index), &param.shared_ranges()));
        }
    }
    let Some(SummedTerms { sums, own }) = sum_beside(device, &**ranks, &gradients, &terms)? else { return Ok(()) };
    for (slot, terms) in own.into_iter().zip(terms) {
        device.backend().copy(sums.view(slot)?, gradients.view_mut(terms.range)?, Lane::Compute)?;
    }
    Ok(())
}

/// The sums of these terms over the tensor-parallel ranks, which have as many; `None` without terms.
pub(crate) fn sum_beside(
    device: &Device,
    ranks: &dyn Communicator,
    gradients: &Storage,
    terms: &[Terms],
) -> Result<Option<SummedTerms>> {
    // Groups of replicas are neighbours. Each group has a slot of its own, in which the others have zeros, so that one
    // sum over all ranks is the sum of every group.
    let slots = |terms: &Terms| ranks.size() / terms.replicas;
    let len = terms.iter().map(|terms| slots(terms) * terms.range.len()).sum();
    if len == 0 {
        return Ok(None);
    }
    let sums = Storage::empty(device, len, gradients.dtype(), Segment::Workspace)?;
    device.launch(Fill { value: 0.0, out: sums.view_mut(0..len)? })?;
    let (mut start, mut own, backend) = (0, Vec::with_capacity(terms.len()), device.backend());
    for terms in terms {
        let at = start + ranks.rank() / terms.replicas * terms.range.len();
        start += slots(terms) * terms.range.len();
        let slot = at..at + terms.range.len();
        backend.copy(gradients.view(terms.range.clone())?, sums.view_mut(slot.clone())?, Lane::Compute)?;
        own.push(slot);
    }
    let sum = Collective::AllReduce { data: sums.view_mut(0..len)?, by: Reduction::Sum };
    ranks.launch(backend, sum, Lane::Compute)?;
    Ok(Some(SummedTerms { sums, own }))
}

/// The shared ranges of a parameter, as far as this rank owns them.
pub(crate) fn terms_of(owned: &OwnedPart, shared: &[SharedRange]) -> Vec<Terms> {
    let in_state = |shared: &SharedRange| {
        let (start, end) = (shared.range.start.max(owned.of_param.start), shared.range.end.min(owned.of_param.end));
        let first = (start + owned.in_state.start).checked_sub(owned.of_param.start)?;
        (start < end).then(|| Terms { range: first..first + end - start, replicas: shared.replicas })
    };
    shared.iter().filter_map(in_state).collect()
}
