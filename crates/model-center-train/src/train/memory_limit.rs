//! Whether a limit on memory leaves room for a run's weights, known before they are read.
//!
//! Defines [`check`]. The limit of a control group is not refused but ends the process by a signal, so a run that
//! certainly exceeds it is refused here. What the run needs beside its weights is what the program `plan` states.

use super::setup::Setup;
use crate::Result;
use bmtrain_core::Error as CoreError;
use bmtrain_core::limits::{Resource, limits};
use bmtrain_dist::Launch;
use bmtrain_dist::shard::ZeroLevel;
use model_center_recipe::Resolved;

/// Compare the weights of the ranks of this process, which compute on processors, with what limits of this process
/// leave.
///
/// # Errors
/// [`CoreError::Refused`] where a limit on memory leaves less than the weights.
pub(super) fn check(setup: &Setup, resolved: &Resolved, launch: &Launch) -> Result<()> {
    let needed =
        weights(setup.parameters + setup.teacher.as_ref().map_or(0, |teacher| teacher.parameters), resolved, launch);
    let left = limits(Some(Resource::Memory)).iter().filter_map(|limit| limit.left()).min();
    if left.is_none_or(|left| needed <= left) {
        return Ok(());
    }
    let what = format!("weights of {} parameters", setup.parameters);
    let reason = format!("the weights alone take {} MiB on the ranks of this process", needed >> 20);
    Err(CoreError::refused(what, Resource::Memory, reason).into())
}

/// Bytes of the weights on all ranks of this process: the least it needs.
fn weights(parameters: usize, resolved: &Resolved, launch: &Launch) -> u64 {
    let all = parameters as u64 * resolved.model.dtype.size() as u64;
    let of_rank = match resolved.parallel.zero {
        ZeroLevel::Three => all / launch.world.max(1) as u64,
        ZeroLevel::Zero | ZeroLevel::One | ZeroLevel::Two => all / resolved.parallel.ranks_of_copy() as u64,
    };
    of_rank * launch.ranks_in_process() as u64
}
