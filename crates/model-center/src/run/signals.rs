//! Signals as requests to stop: a scheduler's warning or Ctrl-C ends a run after the step in hand, its state saved.

use super::{ExitStatus, StopFlag};
use crate::{Error, Result};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR2};
use signal_hook::flag;

/// Let SIGTERM, SIGINT and SIGUSR2 set `flag`. A SIGINT after any of them ends the process at once, with
/// [`ExitStatus::Interrupted`].
///
/// # Errors
/// The operating system refuses a handler.
pub fn listen(stop: &StopFlag) -> Result<()> {
    let failed =
        |e| Error::file("listen to signals", std::path::Path::new("this process"), e, "start it in another way");
    // In this order: the first SIGINT must find the flag unset.
    flag::register_conditional_shutdown(SIGINT, i32::from(ExitStatus::Interrupted.code()), stop.shared())
        .map_err(failed)?;
    for signal in [SIGINT, SIGTERM, SIGUSR2] {
        flag::register(signal, stop.shared()).map_err(failed)?;
    }
    Ok(())
}
