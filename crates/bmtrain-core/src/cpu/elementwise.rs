//! Kernels of this stem.
use super::threads::Threads; use crate::error::Result; use crate::kernel::*;
pub(super) fn add_scaled(_threads: &Threads, _a: AddScaled<'_>) -> Result<()> { Ok(()) }
pub(super) fn multiply(_threads: &Threads, _a: Multiply<'_>) -> Result<()> { Ok(()) }
pub(super) fn fill(_threads: &Threads, _a: Fill<'_>) -> Result<()> { Ok(()) }
pub(super) fn cast(_threads: &Threads, _a: Cast<'_>) -> Result<()> { Ok(()) }
pub(super) fn activation_forward(_threads: &Threads, _a: ActivationForward<'_>) -> Result<()> { Ok(()) }
pub(super) fn activation_backward(_threads: &Threads, _a: ActivationBackward<'_>) -> Result<()> { Ok(()) }
pub(super) fn activation_split(_threads: &Threads, _a: ActivationSplit<'_>) -> Result<()> { Ok(()) }
pub(super) fn gated_forward(_threads: &Threads, _a: GatedForward<'_>) -> Result<()> { Ok(()) }
pub(super) fn gated_backward(_threads: &Threads, _a: GatedBackward<'_>) -> Result<()> { Ok(()) }
