//! Record of a stream's commands, and replay of those that repeat.
//!
//! The work of a stream is cut into segments: at every point where something else than a command comes, and after
//! [`MAX_COMMANDS`] commands. A segment that comes a second time is captured, when the host next waits for the device;
//! from then on its commands are held back and replayed together. Which segment begins is told by the segments before
//! it (`history`): a training step is a chain of them. A command that differs from what was expected sets everything
//! right: what is held back is queued one by one, and the segment becomes another one. So the stream gets the same
//! commands in the same order, always.

mod history;
mod segments;

use super::{Command, Given};
use crate::cuda::driver::failure;
use crate::error::{Error, Result};
use history::History;
use segments::{Id, Segment, Segments};

/// Most commands of a segment. The device has nothing to do while the first ones of a step are held back, so they are
/// some tens of microseconds of the host's time; a replay costs as much as a few launches.
const MAX_COMMANDS: usize = 64;

/// Most segments that are kept. Batches of many lengths make many. Beyond this all are forgotten.
const MAX_SEGMENTS: usize = 512;

/// Receiver of commands.
pub(in crate::cuda) trait Queue {
    type Graph;

    /// Queue one command; false, with nothing queued, if a library refuses it.
    ///
    /// # Safety
    /// What the command reads and writes is valid until it has run, and large enough.
    unsafe fn queue(&self, given: &Given<'_>) -> Result<bool>;

    /// A graph of these commands. Nothing is queued.
    fn capture(&self, commands: &[Command]) -> Result<Self::Graph>;

    /// Queue a graph of these commands, after the arguments of those that changed were set in it.
    ///
    /// # Safety
    /// As [`Queue::queue`] for each of them.
    unsafe fn replay(&self, graph: &Self::Graph, commands: &[Command]) -> Result<()>;
}

/// Counts of captures and replays of a device with graphs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GraphCounts {
    /// Graphs that were captured.
    pub captured: u64,
    /// Replays of graphs.
    pub replays: u64,
    /// Kernels, fills, copies and products in these replays.
    pub replayed: u64,
    /// Kernels in these replays whose arguments were others in the replay before.
    pub changed: u64,
    /// Kernels, fills, copies and products that were queued one by one.
    pub queued: u64,
}

/// The first `count` commands of segment `id`; `held` if none of them was queued.
#[derive(Debug, Clone, Copy)]
struct Followed {
    id: Id,
    count: usize,
    held: bool,
}

/// State of the current segment.
#[derive(Debug)]
enum Now {
    /// The next command begins one.
    Between,
    /// So far it is a known one.
    Following(Followed),
    /// It is another one than all that are known.
    New(Vec<Command>),
}

/// See the module.
#[derive(Debug)]
pub(in crate::cuda) struct Recorder<G> {
    segments: Segments<G>,
    history: History,
    now: Now,
    /// The segment that has just ended, if it may go on: what ended it before, such as the loading of a kernel, may not
    /// come again.
    open: Option<Id>,
    counts: GraphCounts,
    /// Commands that were held back are lost by this; reported until the host has waited for the stream.
    failed: Option<Error>,
    /// A graph could not be replayed: nothing is recorded any more.
    is_off: bool,
}

impl<G> Default for Recorder<G> {
    fn default() -> Self {
        Recorder {
            segments: Segments::default(),
            history: History::default(),
            now: Now::Between,
            open: None,
            counts: GraphCounts::default(),
            failed: None,
            is_off: false,
        }
    }
}

impl<G> Recorder<G> {
    pub(in crate::cuda) fn counts(&self) -> GraphCounts {
        self.counts
    }

    /// Give a command to the stream, now or with those that follow; false if a library refuses it.
    ///
    /// # Errors
    /// What failed may be this command, or one before it that was held back.
    ///
    /// # Safety
    /// As [`Queue::queue`], and until [`Recorder::settle`] was called.
    pub(in crate::cuda) unsafe fn give(&mut self, queue: &impl Queue<Graph = G>, given: &Given<'_>) -> Result<bool> {
        self.check()?;
        let is_held = matches!(self.now, Now::Following(Followed { held: true, .. }));
        // SAFETY: promised by the caller, here and below.
        let given = unsafe { self.advance(queue, given) };
        self.or_forget(is_held, given)
    }

    /// Queue what is held back, because something else comes next.
    pub(in crate::cuda) fn settle(&mut self, queue: &impl Queue<Graph = G>) -> Result<()> {
        self.check()?;
        self.open = None;
        let is_held = matches!(self.now, Now::Following(Followed { held: true, .. }));
        let begun = match std::mem::replace(&mut self.now, Now::Between) {
            Now::Between => Ok(Vec::new()),
            Now::New(commands) => Ok(commands),
            Now::Following(followed) => self.queue_held(queue, followed),
        };
        let ended = begun.map(|begun| self.end(begun));
        self.or_forget(is_held, ended)
    }

    /// Whether there is a segment to be captured, which [`Recorder::capture`] does.
    pub(in crate::cuda) fn has_due(&self) -> bool {
        self.segments.all().iter().any(Segment::is_due)
    }

    /// Capture what came a second time. Nothing is held back, and the device is idle: making graphs takes memory.
    pub(in crate::cuda) fn capture(&mut self, queue: &impl Queue<Graph = G>) {
        let mut is_known = self.segments.all().iter().any(|segment| segment.is_refused);
        for segment in self.segments.all_mut().iter_mut().filter(|segment| segment.is_due()) {
            match queue.capture(&segment.commands) {
                Ok(graph) => {
                    segment.graph = Some(graph);
                    segment.commands.iter_mut().for_each(Command::set_captured);
                    self.counts.captured += 1;
                }
                Err(error) => {
                    // Where none can be made, one warning is enough.
                    if !std::mem::replace(&mut is_known, true) {
                        tracing::warn!(%error, "launches that repeat are not captured as a CUDA graph");
                    }
                    segment.is_refused = true;
                }
            }
        }
    }

    /// Give the memory of graphs back, after what is held back; false if there are none.
    pub(in crate::cuda) fn drop_graphs(&mut self, queue: &impl Queue<Graph = G>) -> Result<bool> {
        self.settle(queue)?;
        let has_graphs = self.segments.all().iter().any(|segment| segment.graph.is_some());
        self.forget();
        Ok(has_graphs)
    }

    /// The failure of lost work, to be reported once more.
    pub(in crate::cuda) fn take_failure(&mut self) -> Option<Error> {
        self.failed.take()
    }

    /// Every call fails by this from now on, until it is taken.
    pub(in crate::cuda) fn fail(&mut self, error: Error) {
        (self.now, self.open, self.failed) = (Now::Between, None, Some(error));
        self.history.break_off();
    }

    fn check(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// After a failure it is unknown what the stream was given. What was held back was given by others, who have to
    /// hear of it.
    fn or_forget<T>(&mut self, is_held: bool, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| {
            (self.now, self.open) = (Now::Between, None);
            self.history.break_off();
            if is_held {
                self.failed = Some(error.clone());
            }
        })
    }

    unsafe fn advance(&mut self, queue: &impl Queue<Graph = G>, given: &Given<'_>) -> Result<bool> {
        match std::mem::replace(&mut self.now, Now::Between) {
            Now::Between if self.is_off => self.queue(queue, given),
            Now::Between => match self.open.take() {
                Some(id) => {
                    self.history.take_back();
                    let count = self.segments[id].commands.len();
                    let begun = self.queue_held(queue, Followed { id, count, held: false })?;
                    self.diverge(queue, begun, given)
                }
                None => match self.expected(given) {
                    Some(id) => {
                        let held = self.segments[id].graph.is_some();
                        self.follow(queue, Followed { id, count: 0, held }, given)
                    }
                    None => self.extend(queue, Vec::new(), given),
                },
            },
            Now::New(commands) => self.extend(queue, commands, given),
            Now::Following(followed) => {
                if self.segments[followed.id].commands[followed.count].matches(given) {
                    return self.follow(queue, followed, given);
                }
                let begun = self.queue_held(queue, followed)?;
                self.diverge(queue, begun, given)
            }
        }
    }

    /// A segment that began as a known one goes on in another way.
    fn diverge(&mut self, queue: &impl Queue<Graph = G>, begun: Vec<Command>, given: &Given<'_>) -> Result<bool> {
        let Some(id) = self.segments.find(&begun, Some(given)) else { return self.extend(queue, begun, given) };
        self.segments.take_over(id, &begun);
        self.follow(queue, Followed { id, count: begun.len(), held: false }, given)
    }

    /// The segment that begins with a command: the one that came after the segments before, else the latest.
    fn expected(&self, given: &Given<'_>) -> Option<Id> {
        let begins = |id: &Id| self.segments[*id].commands.first().is_some_and(|first| first.matches(given));
        self.history.expected().find(begins).or_else(|| self.segments.find(&[], Some(given)))
    }

    /// The next command of a known segment, which it matches.
    fn follow(
        &mut self,
        queue: &impl Queue<Graph = G>,
        Followed { id, count, held }: Followed,
        given: &Given<'_>,
    ) -> Result<bool> {
        if !held && !self.queue(queue, given)? {
            // It was not refused when it came before.
            let begun = self.queue_held(queue, Followed { id, count, held: false })?;
            self.end(begun);
            return Ok(false);
        }
        self.segments.update(id, count, given);
        let length = self.segments[id].commands.len();
        if count + 1 < length {
            self.now = Now::Following(Followed { id, count: count + 1, held });
            return Ok(true);
        }
        self.came_again(id);
        if held {
            self.replay(queue, id)?;
        }
        self.open = (length < MAX_COMMANDS && !self.is_off).then_some(id);
        Ok(true)
    }

    /// The next command of a segment that is new.
    fn extend(&mut self, queue: &impl Queue<Graph = G>, mut commands: Vec<Command>, given: &Given<'_>) -> Result<bool> {
        let is_given = self.queue(queue, given)?;
        if is_given {
            commands.push(Command::of(given));
        }
        if commands.len() >= MAX_COMMANDS {
            self.end(commands);
        } else if !commands.is_empty() {
            self.now = Now::New(commands);
        }
        Ok(is_given)
    }

    /// Queue the graph of a segment whose commands were all held back.
    fn replay(&mut self, queue: &impl Queue<Graph = G>, id: Id) -> Result<()> {
        let segment = &self.segments[id];
        let (Some(graph), count) = (&segment.graph, segment.commands.len()) else { return Ok(()) };
        let changed = segment.commands.iter().filter(|command| command.is_changed()).count();
        // SAFETY: each command was given by a caller who promised it.
        let Err(error) = (unsafe { queue.replay(graph, &segment.commands) }) else {
            self.segments.set_captured(id);
            self.counts.replays += 1;
            self.counts.replayed += count as u64;
            self.counts.changed += changed as u64;
            return Ok(());
        };
        tracing::warn!(%error, "CUDA graphs are not used any more: launches are queued one by one");
        self.queue_held(queue, Followed { id, count, held: true })?;
        self.is_off = true;
        self.forget();
        Ok(())
    }

    /// The first commands of a known segment, as they were given; they are queued if they were held back.
    fn queue_held(
        &mut self,
        queue: &impl Queue<Graph = G>,
        Followed { id, count, held }: Followed,
    ) -> Result<Vec<Command>> {
        let begun: Vec<Command> =
            self.segments[id].commands[..count].iter().map(|command| Command::of(&command.given())).collect();
        for command in begun.iter().filter(|_| held) {
            if !self.queue(queue, &command.given())? {
                return Err(failure("queue", "a library refuses a call that it took before"));
            }
        }
        Ok(begun)
    }

    /// A segment has ended, of commands that were queued.
    fn end(&mut self, commands: Vec<Command>) {
        if let Some(id) = self.segments.find(&commands, None) {
            self.segments.take_over(id, &commands);
            self.came_again(id);
        } else if !commands.is_empty() {
            if self.segments.len() >= MAX_SEGMENTS {
                self.forget();
            }
            let id = self.segments.add(commands);
            self.history.add(id);
        }
    }

    fn came_again(&mut self, id: Id) {
        self.history.add(id);
        self.segments.came_again(id);
    }

    fn forget(&mut self) {
        (self.segments, self.history, self.open) = (Segments::default(), History::default(), None);
    }

    fn queue(&mut self, queue: &impl Queue<Graph = G>, given: &Given<'_>) -> Result<bool> {
        // SAFETY: promised by the caller of `give`, for this command and for those that were held back.
        let queued = unsafe { queue.queue(given) }?;
        self.counts.queued += u64::from(queued);
        Ok(queued)
    }
}

#[cfg(test)]
mod tests;
