//! Statistics of parameters and their gradients: [`inspect_model`].
//!
//! Every rank looks at what it owns, and the parts are merged: nothing is gathered, whatever the ZeRO level, and no
//! value counts twice. One all-gather for all parameters, beside those that bring gradients to their owners where that
//! has not happened yet.

use super::moments::Moments;
use super::table::SummaryRow;
use crate::error::{Error, Result};
use crate::param::{Flat, Param, Parameters, matches_whole};
use bmtrain_core::{Storage, Tensor};
use std::ops::Range;
use std::rc::Rc;

/// A row for each parameter whose full name matches `pattern`, where `*` stands for any letters and `?` for one.
///
/// Gradients are of the whole batch so far: of all ranks and of all micro-batches since the last step, divided by
/// `gradient_scale`, which is what losses were multiplied by
/// ([`OptimManager::loss_scale`](crate::OptimManager::loss_scale)), 1 without scaling. Look between the backward pass
/// and the step; the step that follows is the same as without a look. Of a parameter that is split over tensor-parallel
/// ranks this is this rank's part. Waits for the device; all ranks have to call it.
pub fn inspect_model(parameters: &Parameters, pattern: &str, gradient_scale: f32) -> Result<Vec<SummaryRow>> {
    if !gradient_scale.is_finite() || gradient_scale <= 0.0 {
        let reason = format!("gradient scale {gradient_scale} must be above 0: it is the loss scale, or 1");
        return Err(Error::setting("inspect_model", reason));
    }
    let chosen: Vec<&Param> =
        parameters.iter().filter(|param| matches_whole(pattern, param.name(), Some('?'))).collect();
    let mut own = Vec::with_capacity(2 * chosen.len());
    let mut sums: Option<Sums> = None;
    for param in &chosen {
        if !param.is_initialized() {
            return Err(Error::parameter(param.name(), "has no values yet: initialize or load it first"));
        }
        let (flat, index) = param.place()?;
        let part = flat.counted(index);
        own.push(of_range(flat.values(), part.in_values.clone())?);
        // Parameters of one storage come one after the other: its gradients are brought together once.
        if !sums.as_ref().is_some_and(|sums| Rc::ptr_eq(&sums.flat, flat)) {
            sums = Some(Sums { flat: Rc::clone(flat), shard: flat.gradient_sums()? });
        }
        let gradients = sums.as_ref().and_then(|sums| sums.shard.as_ref()).filter(|_| flat.has_grad(index));
        own.push(match gradients {
            Some((storage, shard)) => of_range(storage, in_shard(flat, index, *shard))?,
            None => Moments::NONE,
        });
    }
    let all = match parameters.flats().first() {
        Some(flat) => Moments::over_ranks(&*flat.sharding().ranks, flat.values().device(), &own)?,
        None => own,
    };
    let row = |(param, moments): (&&Param, &[Moments])| SummaryRow {
        name: param.name().to_owned(),
        shape: param.local_shape().to_string(),
        values: moments[0],
        gradient: (moments[1].count > 0).then(|| moments[1].divided_by(f64::from(gradient_scale))),
    };
    Ok(chosen.iter().zip(all.chunks_exact(2)).map(row).collect())
}

struct Sums {
    flat: Rc<Flat>,
    /// What holds this rank's shard, and the element at which that begins.
    shard: Option<(Storage, usize)>,
}

/// The position of the part of a parameter that this rank counts in a storage whose element `shard` is the first of the
/// shard.
fn in_shard(flat: &Flat, index: usize, shard: usize) -> Range<usize> {
    let rank = flat.sharding().ranks.rank();
    let part = flat.layout().owned_part(index, rank);
    if part.is_empty() {
        return 0..0;
    }
    let start = flat.layout().spans().get(index).map_or(0, |span| span.start) + part.start;
    let start = start - flat.layout().owned(rank).start + shard;
    start..start + part.len()
}

fn of_range(storage: &Storage, range: Range<usize>) -> Result<Moments> {
    let tensor: Tensor = storage.tensor(range.start, [range.len()])?;
    Ok(Moments::of_tensor(&tensor)?)
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
