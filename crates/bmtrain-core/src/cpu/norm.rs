//! Kernels of this stem.
use super::threads::Threads; use crate::error::Result; use crate::kernel::*;
pub(super) fn forward(_threads: &Threads, _a: NormForward<'_>) -> Result<()> { Ok(()) }
pub(super) fn backward(_threads: &Threads, _a: NormBackward<'_>) -> Result<()> { Ok(()) }
