//! Statistics of parameters and their gradients: [`inspect_model`].
//!
//! Every rank looks at what it owns, and the parts are merged: nothing is gathered, whatever the ZeRO level, and no
//! value counts twice, over data-parallel and tensor-parallel ranks and pipeline stages. One all-gather for all
//! parameters on each of the three, and an all-reduce for each parameter whose gradient tensor-parallel ranks have in
//! terms; gradients that their owners do not have yet are reduced to them first.

use super::moments::Moments;
use super::table::SummaryRow;
use crate::error::{Error, Result};
use crate::optim::tensor_terms::{SummedTerms, sum_beside, terms_of};
use crate::param::{Flat, OwnedPart, Param, Parameters, matches_whole, outside};
use bmtrain_core::Storage;
use std::ops::Range;
use std::rc::Rc;

/// A row for each parameter whose full name matches `pattern`, where `*` stands for any letters and `?` for one.
///
/// Gradients are of the whole batch so far: of all ranks and of all micro-batches since the last step, divided by
/// `gradient_scale`, which is what losses were multiplied by
/// ([`OptimManager::loss_scale`](crate::OptimManager::loss_scale)), 1 without scaling. Look between the backward pass
/// and the step; the step that follows is the same as without a look. A parameter that is split over tensor-parallel
/// ranks has one row for all of it, without padding, and every pipeline stage gets the rows of all stages. Waits for
/// the device; all ranks have to call it.
pub fn inspect_model(parameters: &Parameters, pattern: &str, gradient_scale: f32) -> Result<Vec<SummaryRow>> {
    if !gradient_scale.is_finite() || gradient_scale <= 0.0 {
        let reason = format!("gradient scale {gradient_scale} must be above 0: it is the loss scale, or 1");
        return Err(Error::setting("inspect_model", reason));
    }
    let stages = parameters.stages();
    let chosen = parameters.declared().iter().filter(|param| matches_whole(pattern, param.name(), Some('?')));
    let chosen: Vec<&Param> = chosen.collect();
    let mut own = Vec::with_capacity(2 * chosen.len());
    let mut sums: Option<Sums> = None;
    for param in &chosen {
        if !stages.holds(param.part()) {
            own.extend([Moments::NONE; 2]);
            continue;
        }
        if !param.is_initialized() {
            return Err(Error::parameter(param.name(), "has no values yet: initialize or load it first"));
        }
        let (flat, index) = param.place()?;
        let part = flat.counted(index);
        let counted = counted_values(param)?;
        own.push(of_ranges(&flat.values_to_read()?, shifted(&counted, &part.of_param, part.in_values.start))?);
        // Parameters of one storage come one after the other: its gradients are brought together once.
        if !sums.as_ref().is_some_and(|sums| Rc::ptr_eq(&sums.flat, flat)) {
            sums = Some(Sums { flat: Rc::clone(flat), shard: flat.gradient_sums()? });
        }
        let gradients = sums.as_ref().and_then(|sums| sums.shard.as_ref()).filter(|_| flat.has_grad(index));
        own.push(match gradients {
            Some((storage, shard)) => of_gradient(param, &counted, (storage, in_shard(flat, index, *shard)))?,
            None => Moments::NONE,
        });
    }
    let mut all = own;
    if let Some(flat) = parameters.flats().first() {
        for ranks in [&flat.sharding().ranks, flat.tensor_ranks(), stages.ranks()] {
            all = Moments::over_ranks(&**ranks, flat.device(), &all)?;
        }
    }
    let row = |(param, moments): (&&Param, &[Moments])| SummaryRow {
        name: param.name().to_owned(),
        shape: param.spec().shape.to_string(),
        values: moments[0],
        gradient: (moments[1].count > 0).then(|| moments[1].divided_by(f64::from(gradient_scale))),
    };
    Ok(chosen.iter().zip(all.chunks_exact(2)).map(row).collect())
}

struct Sums {
    flat: Rc<Flat>,
    /// Storage of this rank's shard, and the element at which the shard begins.
    shard: Option<(Storage, usize)>,
}

/// The elements of this rank's part of a parameter that it counts and that are no padding.
fn counted_values(param: &Param) -> Result<Vec<Range<usize>>> {
    let is_padded = param.local_part().is_padded();
    let held = |part: OwnedPart| match is_padded {
        false => vec![part.of_param],
        true => {
            let (start, runs) = (part.of_param.start, param.runs_of(&part.of_param));
            runs.into_iter().map(|(_, at, len)| start + at..start + at + len).collect()
        }
    };
    Ok(param.counted()?.into_iter().flat_map(held).collect())
}

/// Ranges of elements in a storage that has the first element of `part` at `start`.
fn shifted(ranges: &[Range<usize>], part: &Range<usize>, start: usize) -> Vec<Range<usize>> {
    let at = |element: usize| element - part.start + start;
    ranges.iter().map(|range| at(range.start)..at(range.end)).collect()
}

/// The position of the part of a parameter that this rank counts in a storage whose element `shard` is the first of the
/// shard.
fn in_shard(flat: &Flat, index: usize, shard: usize) -> OwnedPart {
    let rank = flat.sharding().ranks.rank();
    let part = flat.counted(index);
    if part.of_param.is_empty() {
        return part;
    }
    let start = flat.layout().spans().get(index).map_or(0, |span| span.start) + part.of_param.start;
    let start = start - flat.layout().owned(rank).start + shard;
    OwnedPart { in_state: start..start + part.of_param.len(), ..part }
}

/// Statistics of the `counted` elements of a gradient, whose part of this rank is at [`OwnedPart::in_state`] of a
/// storage. Where several tensor-parallel ranks have terms of it, these are summed beside the storage.
fn of_gradient(param: &Param, counted: &[Range<usize>], (gradients, part): (&Storage, OwnedPart)) -> Result<Moments> {
    let ranks = param.place()?.0.tensor_ranks();
    let in_storage = shifted(counted, &part.of_param, part.in_state.start);
    let shared = if ranks.size() > 1 { param.shared_ranges() } else { Vec::new() };
    let terms = terms_of(&part, &shared);
    let Some(SummedTerms { sums, own }) = sum_beside(gradients.device(), &**ranks, gradients, &terms)? else {
        return of_ranges(gradients, in_storage);
    };
    // The terms that this rank counts from the sums, the rest as it is.
    let is_counted = |range: &Range<usize>| in_storage.iter().any(|counted| counted.contains(&range.start));
    let mut moments = Moments::NONE;
    let mut rest = in_storage.clone();
    let counted_terms = terms.iter().zip(own).filter(|(term, _)| is_counted(&term.range));
    for (term, slot) in counted_terms {
        moments = moments.merge(of_ranges(&sums, vec![slot])?);
        rest = rest.into_iter().flat_map(|range| outside(&range, &term.range)).collect();
    }
    Ok(moments.merge(of_ranges(gradients, rest)?))
}

fn of_ranges(storage: &Storage, ranges: Vec<Range<usize>>) -> Result<Moments> {
    ranges.into_iter().try_fold(Moments::NONE, |all, range| {
        Ok(all.merge(Moments::of_tensor(&storage.tensor(range.start, [range.len()])?)?))
    })
}

#[cfg(test)]
mod tests {
    use super::matches_whole;

    fn matches(pattern: &str, name: &str) -> bool {
        matches_whole(pattern, name, Some('?'))
    }

    #[test]
    fn stars_stand_for_any_letters_and_question_marks_for_one() {
        let name = "encoder.layers.12.ffn.weight";
        for pattern in ["*", name, "encoder*", "*weight", "*.1?.*", "*er*ffn*", "e*n*t", "**"] {
            assert!(matches(pattern, name), "{pattern}");
        }
        for pattern in
            ["", "weight", "*bias", "encoder", "*.1?.*.ffn*", "?", "*weightt", "encoder.layers.12.ffn.weight?"]
        {
            assert!(!matches(pattern, name), "{pattern}");
        }
        assert!(matches("", "") && matches("*", "") && !matches("?", ""));
    }
}
