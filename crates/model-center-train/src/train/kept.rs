//! Checkpoints of a run: how many are kept, and what they hold beside the parameters.

use model_center_recipe::{Interval, Resolved};

/// The bytes and the tensors of a checkpoint for each value and parameter that is trained and has the dtype of most,
/// beside the values: the optimizer's, and a master beside 16-bit values. 0 where they are left out.
pub(crate) fn saved_state(resolved: &Resolved) -> (f64, u64) {
    match resolved.checkpoint.optimizer_state {
        true => {
            let (bytes, tensors) = resolved.train.optimizer.kept(resolved.model.dtype);
            let averages = u64::from(resolved.train.average.is_some());
            (bytes + 4.0 * averages as f64, tensors as u64 + averages)
        }
        false => (0.0, 0),
    }
}

/// The most checkpoints that a run keeps: the newest ones, and the best weights' where evaluations come before
/// the end. 0 where none is saved.
pub(crate) fn kept_checkpoints(resolved: &Resolved) -> u64 {
    let settings = resolved.checkpoint;
    if settings.every == Interval::Never && settings.minutes == 0.0 {
        return 0;
    }
    let keeps_best = resolved.save.which.keeps_best() && resolved.eval.every != Interval::End;
    (settings.keep + usize::from(keeps_best)) as u64
}
