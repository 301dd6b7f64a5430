//! Events: points in the work of a stream.
#![allow(unsafe_code)]

use super::functions::NOT_READY;
use super::{Context, Stream, answer, owned, warn_of};
use crate::error::Result;
use cudarc::driver::sys;
use std::ptr;
use std::sync::Arc;

owned! {
    Event(sys::CUevent), "cuEventDestroy", event_destroy
}

impl Event {
    pub(in crate::cuda) fn new(context: &Arc<Context>) -> Result<Self> {
        Event::with(context, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    fn with(context: &Arc<Context>, flags: sys::CUevent_flags) -> Result<Self> {
        context.bind()?;
        let mut handle = ptr::null_mut();
        // SAFETY: one handle is written.
        answer("cuEventCreate", unsafe { (context.driver.event_create)(&mut handle, flags as u32) })?;
        Ok(Event { handle, context: Arc::clone(context) })
    }

    pub(in crate::cuda) fn timed(context: &Arc<Context>) -> Result<Self> {
        Event::with(context, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    /// Seconds from this event to another, both timed and reached. The driver counts in half microseconds or so.
    pub(in crate::cuda) fn seconds_to(&self, later: &Event) -> Result<f64> {
        self.context.bind()?;
        let mut milliseconds = 0.0;
        // SAFETY: both events live; one number is written.
        let status = unsafe { (self.context.driver.event_elapsed)(&mut milliseconds, self.handle, later.handle) };
        answer("cuEventElapsedTime", status)?;
        Ok(f64::from(milliseconds) / 1e3)
    }

    pub(in crate::cuda) fn record(&self, stream: &Stream) -> Result<()> {
        stream.settle()?;
        // SAFETY: both live and belong to the same context.
        answer("cuEventRecord", unsafe { (self.context.driver.event_record)(self.handle, stream.handle) })
    }

    pub(in crate::cuda) fn is_reached(&self) -> Result<bool> {
        self.context.bind()?;
        // SAFETY: the event lives.
        match unsafe { (self.context.driver.event_query)(self.handle) } {
            NOT_READY => Ok(false),
            status => answer("cuEventQuery", status).map(|()| true),
        }
    }

    pub(in crate::cuda) fn synchronize(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the event lives.
        answer("cuEventSynchronize", unsafe { (self.context.driver.event_synchronize)(self.handle) })
    }
}
