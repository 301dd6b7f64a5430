//! Lanes as streams, and marks as events that are used again.
//!
//! A mark's ticket is a count per lane, so it tells which of two marks is later. The event of a ticket is
//! kept until the device has passed it; from then on a wait for that ticket is nothing, and the event serves another
//! one.

use super::driver::{Context, Event, GraphCounts, Stream, failure};
use crate::error::Result;
use crate::lane::{Lane, Mark};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
pub(super) struct Lanes {
    context: Arc<Context>,
    streams: [Arc<Stream>; Lane::ALL.len()],
    tickets: Mutex<Tickets>,
}

#[derive(Debug, Default)]
struct Tickets {
    lanes: [LaneTickets; Lane::ALL.len()],
    /// Events that no ticket needs.
    spare: Vec<Event>,
}

#[derive(Debug, Default)]
struct LaneTickets {
    /// The latest ticket; 0 stands for a lane that never had work.
    latest: u64,
    /// The device is known to have passed this one and all before it.
    passed: u64,
    /// Tickets the device may not have passed, in order.
    pending: VecDeque<(u64, Event)>,
    /// Whether work was given since the latest ticket.
    has_new_work: bool,
    /// The latest ticket of each other lane that this one was told to wait for: earlier ones need no wait of their own.
    waited: [u64; Lane::ALL.len()],
}

impl Lanes {
    /// Lanes of a device. With `graphs`, launches that the compute lane repeats are replayed as graphs.
    pub(super) fn new(context: &Arc<Context>, graphs: bool) -> Result<Self> {
        let stream = || Stream::new(context).map(Arc::new);
        let compute = if graphs { Arc::new(Stream::with_graphs(context)?) } else { stream()? };
        let streams = [compute, stream()?, stream()?, stream()?, stream()?];
        context.drains(&streams);
        Ok(Lanes { context: Arc::clone(context), streams, tickets: Mutex::default() })
    }

    /// Give work to a lane: `work` queues it on the lane's stream.
    pub(super) fn give<T>(&self, on: Lane, work: impl FnOnce(&Stream) -> Result<T>) -> Result<T> {
        let given = work(&self.streams[on as usize]);
        // After the work: a mark made in between would not cover it. After an error part of the work may be queued.
        self.lock().lanes[on as usize].has_new_work = true;
        given
    }

    /// Counts of graphs; `None` on a lane without them.
    pub(super) fn graph_counts(&self, on: Lane) -> Option<GraphCounts> {
        self.streams[on as usize].graph_counts()
    }

    pub(super) fn mark(&self, on: Lane) -> Result<Mark> {
        let mut tickets = self.lock();
        let Tickets { lanes, spare } = &mut *tickets;
        let lane = &mut lanes[on as usize];
        if lane.has_new_work {
            lane.retire(spare)?;
            let event = match spare.pop() {
                Some(event) => event,
                None => Event::new(&self.context)?,
            };
            event.record(&self.streams[on as usize])?;
            lane.latest += 1;
            lane.pending.push_back((lane.latest, event));
            lane.has_new_work = false;
        }
        Ok(Mark { lane: on, ticket: lane.latest })
    }

    pub(super) fn wait(&self, on: Lane, mark: Mark) -> Result<()> {
        let mut tickets = self.lock();
        let marked = &tickets.lanes[mark.lane as usize];
        if mark.ticket > marked.latest {
            let reason = format!("lane {:?} has made {} marks, not {}", mark.lane, marked.latest, mark.ticket);
            return Err(failure("wait", reason));
        }
        // A lane follows its own marks anyway.
        let waited = tickets.lanes[on as usize].waited[mark.lane as usize];
        if on == mark.lane || mark.ticket <= marked.passed.max(waited) {
            return Ok(());
        }
        let Some((ticket, event)) = marked.pending.iter().find(|(ticket, _)| *ticket >= mark.ticket) else {
            return Err(failure("wait", format!("mark {} of lane {:?} has no event", mark.ticket, mark.lane)));
        };
        self.streams[on as usize].wait(event)?;
        let ticket = *ticket;
        let lane = &mut tickets.lanes[on as usize];
        (lane.waited[mark.lane as usize], lane.has_new_work) = (ticket, true);
        Ok(())
    }

    pub(super) fn has_reached(&self, mark: Mark) -> Result<bool> {
        let mut tickets = self.lock();
        let Tickets { lanes, spare } = &mut *tickets;
        let lane = &mut lanes[mark.lane as usize];
        lane.retire(spare)?;
        Ok(mark.ticket <= lane.passed)
    }

    /// Let the host wait for a lane; `wait` returns when the lane's stream is idle.
    pub(super) fn sync(&self, on: Lane, wait: impl FnOnce(&Stream) -> Result<()>) -> Result<()> {
        let before = self.lock().lanes[on as usize].latest;
        wait(&self.streams[on as usize])?;
        let mut tickets = self.lock();
        let Tickets { lanes, spare } = &mut *tickets;
        lanes[on as usize].pass(before, spare);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Tickets> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LaneTickets {
    fn retire(&mut self, spare: &mut Vec<Event>) -> Result<()> {
        while let Some((ticket, event)) = self.pending.front() {
            if !event.is_reached()? {
                return Ok(());
            }
            let ticket = *ticket;
            self.pass(ticket, spare);
        }
        Ok(())
    }

    fn pass(&mut self, ticket: u64, spare: &mut Vec<Event>) {
        while self.pending.front().is_some_and(|(pending, _)| *pending <= ticket) {
            spare.extend(self.pending.pop_front().map(|(_, event)| event));
        }
        self.passed = self.passed.max(ticket);
    }
}
