//! A communicator's use of this device: queue its calls on a lane's stream, see how far they are, and tell of a
//! failure.
//!
//! Used by `comm::nccl` alone.

use super::CudaBackend;
use super::driver::Event;
use crate::backend::Backend as _;
use crate::error::{Error, Result};
use crate::lane::{DeviceId, Lane};
use std::ffi::c_void;

/// Work queued at one time, between two events.
#[derive(Debug)]
pub(crate) struct Span {
    begin: Event,
    end: Event,
}

impl Span {
    pub(crate) fn has_begun(&self) -> Result<bool> {
        self.begin.is_reached()
    }

    /// Whether the device is through with it.
    pub(crate) fn has_ended(&self) -> Result<bool> {
        self.end.is_reached()
    }
}

impl CudaBackend {
    /// Queue the calls of a library on a lane: `work` is given the driver's handle of the lane's stream, with the
    /// device current on this thread. `spare` is an event that is no longer waited for.
    pub(crate) fn exchange(
        &self,
        on: Lane,
        spare: Option<Span>,
        work: impl FnOnce(*mut c_void) -> Result<()>,
    ) -> Result<Span> {
        let span = match spare {
            Some(span) => span,
            None => Span { begin: Event::new(&self.context)?, end: Event::new(&self.context)? },
        };
        self.lanes.give(on, |stream| {
            span.begin.record(stream)?;
            work(stream.handle()?)?;
            span.end.record(stream)
        })?;
        Ok(span)
    }

    pub(crate) fn make_current(&self) -> Result<()> {
        self.context.bind()
    }

    /// A view that a collective on a lane may use.
    pub(crate) fn accept(&self, op: &'static str, (device, lane): (DeviceId, Lane), on: Lane) -> Result<()> {
        self.check(op, device, lane, on)
    }

    /// A collective was aborted: every wait for this device ends in this error from now on.
    pub(crate) fn break_off(&self, error: Error) {
        if self.broken.set(error).is_err() {
            tracing::debug!(device = %self.name(), "a collective was aborted before");
        }
    }
}
