//! Times at which work of the lanes ran on the device: a begin and an end for each, from events that keep time.
//!
//! Off by default. Events of different lanes are measured from one origin, so that a trace shows which lanes
//! worked at the same time.

use super::driver::{Context, Event};
use super::order::Lanes;
use crate::error::Result;
use crate::lane::Lane;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One piece of work of a lane as the device ran it.
#[derive(Debug, Clone, PartialEq)]
pub struct Traced {
    /// Its lane.
    pub lane: Lane,
    /// The kernel, or `upload`, `download`, `copy`.
    pub name: &'static str,
    /// Seconds from the beginning of the trace to the moment in which the lane came to it.
    pub begin: f64,
    /// Seconds from the beginning of the trace to its end.
    pub end: f64,
}

#[derive(Debug, Default)]
pub(super) struct Trace {
    is_on: AtomicBool,
    noted: Mutex<Option<Noted>>,
}

#[derive(Debug)]
struct Noted {
    origin: Event,
    spans: Vec<(Lane, &'static str, Event, Event)>,
}

impl Trace {
    /// Start anew, with the compute lane's present end as the origin of time.
    pub(super) fn begin(&self, context: &Arc<Context>, lanes: &Lanes) -> Result<()> {
        let origin = Event::timed(context)?;
        lanes.give(Lane::Compute, |stream| origin.record(stream))?;
        // Nothing that is noted begins before it.
        let mark = lanes.mark(Lane::Compute)?;
        Lane::ALL.into_iter().try_for_each(|lane| lanes.wait(lane, mark))?;
        *self.lock() = Some(Noted { origin, spans: Vec::new() });
        self.is_on.store(true, Ordering::Release);
        Ok(())
    }

    /// Call `give`, which queues work on a lane, between two events of that lane. Several threads that give to one lane
    /// at once may come between the events of another.
    pub(super) fn around<T>(
        &self,
        context: &Arc<Context>,
        lanes: &Lanes,
        (on, name): (Lane, &'static str),
        give: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if !self.is_on.load(Ordering::Acquire) {
            return give();
        }
        let (begin, end) = (Event::timed(context)?, Event::timed(context)?);
        lanes.give(on, |stream| begin.record(stream))?;
        let given = give()?;
        lanes.give(on, |stream| end.record(stream))?;
        if let Some(noted) = &mut *self.lock() {
            noted.spans.push((on, name, begin, end));
        }
        Ok(given)
    }

    /// Stop, and give out what was noted. All lanes are idle.
    pub(super) fn take(&self) -> Result<Vec<Traced>> {
        self.is_on.store(false, Ordering::Release);
        let Some(Noted { origin, spans }) = self.lock().take() else { return Ok(Vec::new()) };
        let traced = |(lane, name, begin, end): (Lane, &'static str, Event, Event)| {
            Ok(Traced { lane, name, begin: origin.seconds_to(&begin)?, end: origin.seconds_to(&end)? })
        };
        spans.into_iter().map(traced).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Noted>> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
