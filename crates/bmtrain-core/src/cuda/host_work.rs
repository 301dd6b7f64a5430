//! Work of the host in the order of a lane: ranks that share no NCCL exchange so, checkpoints and offloaded optimizers too.
//!
//! The lane copies what the work reads and writes into page-locked memory, and then waits for a number in such memory. A
//! thread of the lane waits for the copies, does the work, and writes the number; the lane copies the result back and goes
//! on. It is not the driver's own host function: those run one after the other on one thread, and work that waits for
//! another rank would hold up the work that this rank waits for.
#![allow(unsafe_code)]

use super::driver::{Context, Event, Pinned, Stream, failure};
use crate::backend::HostWork;
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Device memory that the work sees: address and bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Place {
    pub(super) address: u64,
    pub(super) bytes: usize,
}

/// The thread of a lane, started when it is first needed.
#[derive(Debug)]
pub(super) struct HostWorker {
    context: Arc<Context>,
    state: Mutex<State>,
    failed: Arc<Mutex<Option<Error>>>,
}

#[derive(Debug, Default)]
struct State {
    running: Option<Running>,
    /// Page-locked memory, and the event behind the last copy that uses it.
    used: VecDeque<(Event, Arc<Staged>)>,
}

#[derive(Debug)]
struct Running {
    give: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    done: Arc<Done>,
    /// Number of the latest work.
    latest: u32,
}

/// The number of the last work that is done, where the device reads it.
#[derive(Debug)]
struct Done {
    memory: Mutex<Pinned>,
    address: u64,
}

/// The host's side of what one work sees.
#[derive(Debug)]
struct Staged {
    read: Mutex<Pinned>,
    write: Mutex<Pinned>,
    /// Address of `write` in this process.
    written: usize,
    bytes: (usize, usize),
}

struct Job {
    copied: Event,
    staged: Arc<Staged>,
    bytes: (usize, usize),
    work: HostWork,
    number: u32,
}

impl HostWorker {
    /// No thread yet.
    pub(super) fn new(context: &Arc<Context>) -> Self {
        HostWorker { context: Arc::clone(context), state: Mutex::default(), failed: Arc::default() }
    }

    /// Queue work on a stream.
    ///
    /// # Errors
    /// No page-locked memory, no thread, a failing device. What the work returns comes out of [`HostWorker::take_failure`].
    ///
    /// # Safety
    /// Both places are valid until the stream has run what is queued here, and do not overlap.
    pub(super) unsafe fn give(&self, stream: &Stream, read: Place, write: Place, work: HostWork) -> Result<()> {
        let mut state = self.lock();
        let staged = state.staged(&self.context, (read.bytes, write.bytes))?;
        let running = state.running(&self.context, &self.failed)?;
        for (place, memory) in [(read, &staged.read), (write, &staged.write)] {
            if place.bytes > 0 {
                let mut memory = locked(memory);
                // SAFETY: the device's side is the caller's promise; the host's side is touched next by the worker, which waits
                // for the event below.
                unsafe { stream.download(place.address, &mut memory.bytes_mut()[..place.bytes]) }?;
            }
        }
        let copied = Event::blocking(&self.context)?;
        copied.record(stream)?;
        let number = running.latest.wrapping_add(1);
        // SAFETY: the number's memory lives as long as the worker, which outlives its streams' work (see `Drop`).
        unsafe { stream.wait_for_number(running.done.address, number) }?;
        running.latest = number;
        let job = Job { copied, staged: Arc::clone(&staged), bytes: (read.bytes, write.bytes), work, number };
        let gone = || failure("on_host", "the thread of this lane has ended");
        running.give.as_ref().ok_or_else(gone)?.send(job).map_err(|_| gone())?;
        if write.bytes > 0 {
            // SAFETY: the worker writes the memory before it writes the number, and nobody after; it is used again only after
            // the event below.
            unsafe { stream.upload_later(staged.written, write.bytes, write.address) }?;
        }
        let free = Event::new(&self.context)?;
        free.record(stream)?;
        state.used.push_back((free, staged));
        Ok(())
    }

    /// What the first work that failed since the last call returned.
    pub(super) fn take_failure(&self) -> Result<()> {
        locked(&self.failed).take().map_or(Ok(()), Err)
    }

    /// Page-locked bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.lock().used.iter().map(|(_, staged)| staged.bytes.0 + staged.bytes.1).sum()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Memory for a work: the oldest that is free and large enough, or new memory.
    fn staged(&mut self, context: &Arc<Context>, (read, write): (usize, usize)) -> Result<Arc<Staged>> {
        let fits = |staged: &Staged| staged.bytes.0 >= read && staged.bytes.1 >= write;
        for index in 0..self.used.len() {
            if fits(&self.used[index].1)
                && self.used[index].0.is_reached()?
                && let Some((_, staged)) = self.used.remove(index)
            {
                return Ok(staged);
            }
        }
        // What is free but too small will not be asked for again: works of a lane repeat.
        while let Some((event, _)) = self.used.front() {
            if !event.is_reached()? {
                break;
            }
            self.used.pop_front();
        }
        // At least a byte: page-locked memory of no length is refused.
        let memory = |bytes: usize| Pinned::new(context, bytes.max(1));
        let (reads, writes) = (memory(read)?, memory(write)?);
        let written = writes.host_address();
        Ok(Arc::new(Staged { read: Mutex::new(reads), write: Mutex::new(writes), written, bytes: (read, write) }))
    }

    fn running(&mut self, context: &Arc<Context>, failed: &Arc<Mutex<Option<Error>>>) -> Result<&mut Running> {
        if self.running.is_none() {
            let memory = Pinned::new(context, size_of::<u32>())?;
            let done = Arc::new(Done { address: memory.device_address()?, memory: Mutex::new(memory) });
            let (give, jobs) = channel();
            let (context, failed, numbers) = (Arc::clone(context), Arc::clone(failed), Arc::clone(&done));
            let thread = std::thread::Builder::new()
                .name("bmtrain-host-work".into())
                .spawn(move || work_off(&context, &jobs, &failed, &numbers))
                .map_err(|error| failure("on_host", format!("no thread for a lane: {error}")))?;
            self.running = Some(Running { give: Some(give), thread: Some(thread), done, latest: 0 });
        }
        self.running.as_mut().ok_or_else(|| failure("on_host", "the thread of this lane is missing"))
    }
}

/// The thread of a lane. After a failure later works are not run, but the lane goes on, to the wait that reports it.
fn work_off(context: &Context, jobs: &Receiver<Job>, failed: &Mutex<Option<Error>>, done: &Done) {
    for Job { copied, staged, bytes, work, number } in jobs {
        let result = context.bind().and_then(|()| copied.synchronize()).and_then(|()| {
            if locked(failed).is_some() {
                return Ok(());
            }
            let (mut read, mut write) = (locked(&staged.read), locked(&staged.write));
            work(&read.bytes_mut()[..bytes.0], &mut write.bytes_mut()[..bytes.1])
        });
        if let Err(error) = result {
            locked(failed).get_or_insert(error);
        }
        drop(staged);
        locked(&done.memory).publish(number);
    }
}

impl Drop for HostWorker {
    fn drop(&mut self) {
        let Some(mut running) = self.lock().running.take() else { return };
        // The thread ends when the last work is done.
        running.give.take();
        if let Some(Err(_)) = running.thread.take().map(JoinHandle::join) {
            tracing::warn!("the thread of a lane panicked");
        }
        for (free, _) in self.lock().used.drain(..) {
            if let Err(error) = free.synchronize() {
                tracing::warn!(%error, "the device failed after work of the host");
            }
        }
    }
}
