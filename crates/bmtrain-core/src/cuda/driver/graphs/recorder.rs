//! What a stream was given before, and what of it is given again.
//!
//! The work of a stream is cut into segments: at every point where something else than a command comes, and after
//! [`LONGEST`] commands. A segment that comes a second time is captured, when the host next waits for the device; from
//! then on its commands are held back and replayed together. Which segment begins is told by the segments before it
//! (`history`): a training step is a chain of them. A command that differs from what was expected sets everything
//! right: what is held back is queued one by one, and the segment becomes another one. So the stream gets the same
//! commands in the same order, always.

mod history;

use super::{Command, Given};
use crate::cuda::driver::failure;
use crate::error::{Error, Result};
use history::History;
use std::collections::HashMap;

/// Most commands of a segment. The device has nothing to do while the first ones of a step are held back, so they are
/// some tens of microseconds of the host's time; a replay costs as much as a few launches.
const LONGEST: usize = 64;

/// Fewest commands that are worth a graph.
const SHORTEST: usize = 4;

/// Most segments that are kept. Batches of many lengths make many. Beyond this all are forgotten.
const MOST_SEGMENTS: usize = 512;

/// How often a segment has come before it is captured.
const SEEN: u32 = 2;

/// What commands are given to.
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

/// What a device with graphs did.
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

/// A number of a segment.
type Id = usize;

#[derive(Debug)]
struct Segment<G> {
    commands: Vec<Command>,
    seen: u32,
    graph: Option<G>,
    /// No graph could be made of it.
    is_refused: bool,
}

impl<G> Segment<G> {
    fn is_due(&self) -> bool {
        self.graph.is_none() && !self.is_refused && self.seen >= SEEN && self.commands.len() >= SHORTEST
    }
}

/// What is known of the segment that is under way.
#[derive(Debug)]
enum Now {
    /// The next command begins one.
    Between,
    /// So far it has the first `count` commands of a known one; `held` if none of them was queued.
    Following { id: Id, count: usize, held: bool },
    /// It is another one than all that are known.
    New(Vec<Command>),
}

/// See the module.
#[derive(Debug)]
pub(in crate::cuda) struct Recorder<G> {
    segments: Vec<Segment<G>>,
    /// By the kind of their first command, the latest first.
    by_first: HashMap<u64, Vec<Id>>,
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
            segments: Vec::new(),
            by_first: HashMap::new(),
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
        let is_held = matches!(self.now, Now::Following { held: true, .. });
        // SAFETY: promised by the caller, here and below.
        let given = unsafe { self.advance(queue, given) };
        self.or_forget(is_held, given)
    }

    /// Queue what is held back, because something else comes next.
    pub(in crate::cuda) fn settle(&mut self, queue: &impl Queue<Graph = G>) -> Result<()> {
        self.check()?;
        self.open = None;
        let is_held = matches!(self.now, Now::Following { held: true, .. });
        let ended = match std::mem::replace(&mut self.now, Now::Between) {
            Now::Between => Ok(()),
            Now::New(commands) => {
                self.keep(commands);
                Ok(())
            }
            Now::Following { id, count, held } => self.end_early(queue, (id, count, held)),
        };
        self.or_forget(is_held, ended)
    }

    /// Whether there is a segment to be captured, which [`Recorder::capture`] does.
    pub(in crate::cuda) fn has_due(&self) -> bool {
        self.segments.iter().any(Segment::is_due)
    }

    /// Capture what came a second time. Nothing is held back, and the device is idle: making graphs takes memory.
    pub(in crate::cuda) fn capture(&mut self, queue: &impl Queue<Graph = G>) {
        for segment in self.segments.iter_mut().filter(|segment| segment.is_due()) {
            match queue.capture(&segment.commands) {
                Ok(graph) => {
                    segment.graph = Some(graph);
                    segment.commands.iter_mut().for_each(Command::set_captured);
                    self.counts.captured += 1;
                }
                Err(error) => {
                    tracing::warn!(%error, launches = segment.commands.len(), "no CUDA graph is made of launches");
                    segment.is_refused = true;
                }
            }
        }
    }

    /// Give the memory of graphs back, with nothing held back; false if there are none.
    pub(in crate::cuda) fn drop_graphs(&mut self) -> bool {
        let has_graphs = self.segments.iter().any(|segment| segment.graph.is_some());
        self.forget();
        has_graphs
    }

    /// What was lost, to be reported once more.
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
                    let begun = self.queue_held(queue, (id, self.segments[id].commands.len(), false))?;
                    self.go_on(queue, begun, given)
                }
                None => match self.expected(given) {
                    Some(id) => {
                        let held = self.segments[id].graph.is_some();
                        self.follow(queue, (id, 0, held), given)
                    }
                    None => self.extend(queue, Vec::new(), given),
                },
            },
            Now::New(commands) => self.extend(queue, commands, given),
            Now::Following { id, count, held } => {
                if self.segments[id].commands[count].matches(given) {
                    return self.follow(queue, (id, count, held), given);
                }
                let begun = self.queue_held(queue, (id, count, held))?;
                self.go_on(queue, begun, given)
            }
        }
    }

    /// A segment that began as a known one goes on in another way.
    fn go_on(&mut self, queue: &impl Queue<Graph = G>, begun: Vec<Command>, given: &Given<'_>) -> Result<bool> {
        let (first, count) = (begun.first().map_or(0, |first| first.given().kind()), begun.len());
        let begins = |commands: &[Command]| {
            commands.len() > count
                && commands.iter().zip(&begun).all(|(command, begun)| command.matches(&begun.given()))
                && commands[count].matches(given)
        };
        match self.known(first, begins) {
            Some(id) => {
                for (command, begun) in self.segments[id].commands.iter_mut().zip(&begun) {
                    command.update(&begun.given());
                }
                self.follow(queue, (id, count, false), given)
            }
            None => self.extend(queue, begun, given),
        }
    }

    /// The segment that begins with a command: the one that came after the segments before, else the latest.
    fn expected(&self, given: &Given<'_>) -> Option<Id> {
        let begins = |id: &Id| self.segments[*id].commands[0].matches(given);
        let next = self.history.expected().find(begins);
        next.or_else(|| self.known(given.kind(), |commands| commands[0].matches(given)))
    }

    /// The latest segment whose first command is of a kind and that has such commands.
    fn known(&self, kind: u64, has: impl Fn(&[Command]) -> bool) -> Option<Id> {
        self.by_first.get(&kind)?.iter().copied().find(|id| has(&self.segments[*id].commands))
    }

    /// The next command of a known segment, which it matches.
    fn follow(
        &mut self,
        queue: &impl Queue<Graph = G>,
        (id, count, held): (Id, usize, bool),
        given: &Given<'_>,
    ) -> Result<bool> {
        if !held && !self.queue(queue, given)? {
            // It was not refused when it came before.
            let begun = self.queue_held(queue, (id, count, false))?;
            self.keep(begun);
            return Ok(false);
        }
        let segment = &mut self.segments[id];
        segment.commands[count].update(given);
        if count + 1 < segment.commands.len() {
            self.now = Now::Following { id, count: count + 1, held };
        } else {
            let is_cut = segment.commands.len() >= LONGEST;
            self.complete(queue, id, held)?;
            self.open = (!is_cut && !self.is_off).then_some(id);
        }
        Ok(true)
    }

    /// The next command of a segment that is new.
    fn extend(&mut self, queue: &impl Queue<Graph = G>, mut commands: Vec<Command>, given: &Given<'_>) -> Result<bool> {
        let is_given = self.queue(queue, given)?;
        if is_given {
            commands.push(Command::of(given));
        }
        if commands.len() >= LONGEST {
            self.keep(commands);
        } else if !commands.is_empty() {
            self.now = Now::New(commands);
        }
        Ok(is_given)
    }

    /// All commands of a segment were given.
    fn complete(&mut self, queue: &impl Queue<Graph = G>, id: Id, held: bool) -> Result<()> {
        self.history.add(id);
        let segment = &mut self.segments[id];
        if let Some(same) = self.by_first.get_mut(&segment.commands[0].given().kind())
            && let Some(place) = same.iter().position(|other| *other == id)
        {
            same[..=place].rotate_right(1);
        }
        segment.seen = segment.seen.saturating_add(1);
        let (true, Some(graph)) = (held, &segment.graph) else { return Ok(()) };
        let changed = segment.commands.iter().filter(|command| command.is_changed()).count();
        // SAFETY: each command was given by a caller who promised it.
        match unsafe { queue.replay(graph, &segment.commands) } {
            Ok(()) => {
                segment.commands.iter_mut().for_each(Command::set_captured);
                self.counts.replays += 1;
                self.counts.replayed += segment.commands.len() as u64;
                self.counts.changed += changed as u64;
                Ok(())
            }
            Err(error) => {
                tracing::warn!(%error, "CUDA graphs are not used any more: launches are queued one by one");
                let count = segment.commands.len();
                self.queue_held(queue, (id, count, true))?;
                self.is_off = true;
                self.forget();
                Ok(())
            }
        }
    }

    /// A segment ends before all of its commands came.
    fn end_early(&mut self, queue: &impl Queue<Graph = G>, of: (Id, usize, bool)) -> Result<()> {
        let begun = self.queue_held(queue, of)?;
        let is_whole = |commands: &[Command]| {
            commands.len() == begun.len()
                && commands.iter().zip(&begun).all(|(command, begun)| command.matches(&begun.given()))
        };
        let first = begun.first().map_or(0, |first| first.given().kind());
        match self.known(first, is_whole) {
            Some(other) => {
                for (command, begun) in self.segments[other].commands.iter_mut().zip(&begun) {
                    command.update(&begun.given());
                }
                self.complete(queue, other, false)
            }
            None => {
                self.keep(begun);
                Ok(())
            }
        }
    }

    /// The first commands of a known segment, as they were given; they are queued if they were held back.
    fn queue_held(
        &mut self,
        queue: &impl Queue<Graph = G>,
        (id, count, held): (Id, usize, bool),
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

    /// Remember a segment that has ended.
    fn keep(&mut self, commands: Vec<Command>) {
        let Some(first) = commands.first() else { return };
        let is_same = |known: &[Command]| {
            known.len() == commands.len()
                && known.iter().zip(&commands).all(|(known, command)| known.matches(&command.given()))
        };
        if let Some(same) = self.known(first.given().kind(), is_same) {
            return self.history.add(same);
        }
        if self.segments.len() >= MOST_SEGMENTS {
            self.forget();
        }
        let (kind, id) = (first.given().kind(), self.segments.len());
        self.segments.push(Segment { commands, seen: 1, graph: None, is_refused: false });
        self.by_first.entry(kind).or_default().insert(0, id);
        self.history.add(id);
    }

    fn forget(&mut self) {
        self.segments.clear();
        self.by_first.clear();
        (self.history, self.open) = (History::default(), None);
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
