//! Host functions in the order of a lane: for collectives without NCCL, checkpoints and offloaded optimizers.
//!
//! The lane copies what the work reads, and what it writes unless it overwrites all of it, into page-locked memory,
//! writes a number there when it is done, and waits for another number. A thread of the lane looks for the first
//! number, does the work, and writes the second; the lane copies the result back and goes on.
//!
//! * Not the driver's own host functions: those run one after the other on one thread, and work that waits for another
//!   rank would hold up the work that this rank waits for.
//! * The thread calls the driver for nothing. While a lane waits, a call that drains the device or needs the driver's
//!   lock, such as returning memory or loading kernels, may hold that lock on another thread until the lane goes on.
#![allow(unsafe_code)]

use super::driver::{Context, Event, Pinned, Stream, failure};
use super::pinned_blocks::{Block, Blocks};
use crate::backend::HostWork;
use crate::error::{Error, Result};
use crate::limits::Resource;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Device memory that the work sees: address and bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DeviceRange {
    pub(super) address: u64,
    pub(super) bytes: usize,
}

/// Content, at the start, of the memory that work writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Old {
    /// The content on the device.
    Brought,
    /// Any bytes: it overwrites all of them.
    Left,
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
    blocks: Blocks,
}

#[derive(Debug)]
struct Running {
    give: Option<Sender<QueuedWork>>,
    thread: Option<JoinHandle<()>>,
    numbers: Arc<Numbers>,
    /// Set when the lane no longer waits for the thread's work.
    left: Arc<AtomicBool>,
    /// Number of the latest work.
    latest: u32,
}

/// Two numbers in page-locked memory, each a count of works in a circle.
#[derive(Debug)]
struct Numbers {
    memory: Pinned,
    address: u64,
}

impl Numbers {
    /// Indices into the memory: work whose copies have arrived, written by the device; work that is done, written by
    /// the thread.
    const COPIED: usize = 0;
    const DONE: usize = 1;

    fn new(context: &Arc<Context>) -> Result<Self> {
        let memory = Pinned::new(context, 2 * size_of::<u32>())?;
        Ok(Numbers { address: memory.device_address()?, memory })
    }

    fn address_of(&self, word: usize) -> u64 {
        self.address + (word * size_of::<u32>()) as u64
    }

    fn has_reached(&self, word: usize, number: u32) -> bool {
        self.memory.number(word).wrapping_sub(number).cast_signed() >= 0
    }
}

struct QueuedWork {
    read: (Arc<Block>, usize),
    write: (Arc<Block>, usize),
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
    /// No page-locked memory, no thread, a failing device. What the work returns comes out of
    /// [`HostWorker::take_failure`].
    ///
    /// # Safety
    /// Both places are valid until the stream has run what is queued here, and do not overlap.
    pub(super) unsafe fn give(
        &self,
        stream: &Stream,
        read: DeviceRange,
        (write, old): (DeviceRange, Old),
        work: HostWork,
    ) -> Result<()> {
        let mut state = locked(&self.state);
        let State { running, blocks } = &mut *state;
        // Whatever can fail for want of something comes before anything is queued.
        let running = self.run(running)?;
        let reads = blocks.take(&self.context, read.bytes)?;
        let writes = blocks.take(&self.context, write.bytes)?;
        let free = Arc::new(Event::new(&self.context)?);
        let number = running.latest.wrapping_add(1);
        running.latest = number;
        let numbers = Arc::clone(&running.numbers);
        let queue_before = || {
            for (place, block, wanted) in [(read, &reads, true), (write, &writes, old == Old::Brought)] {
                if place.bytes > 0 && wanted {
                    // SAFETY: the device's side is the caller's promise; the host's side is touched next by the thread,
                    // which looks for the number below, and kept by `blocks`.
                    unsafe { stream.download_later(place.address, block.address(), place.bytes) }?;
                }
            }
            // SAFETY: the numbers live until the thread has ended, which `Drop` waits for after all streams' work.
            unsafe {
                stream.write_number(numbers.address_of(Numbers::COPIED), number)?;
                stream.wait_for_number(numbers.address_of(Numbers::DONE), number)
            }
        };
        let job = QueuedWork {
            read: (Arc::clone(&reads), read.bytes),
            write: (Arc::clone(&writes), write.bytes),
            work,
            number,
        };
        let gone = || failure("on_host", "the thread of this lane has ended");
        let given = queue_before().and_then(|()| {
            let give = running.give.as_ref().ok_or_else(gone)?;
            give.send(job).map_err(|_| gone())
        });
        if given.is_err() {
            // Without the thread the lane would wait forever.
            numbers.memory.publish(Numbers::DONE, number);
        }
        let written = given.and_then(|()| {
            if write.bytes > 0 {
                // SAFETY: the thread writes the memory before it writes the number, and not after; `blocks` hands it
                // out again only after the event below.
                unsafe { stream.upload_later(writes.address(), write.bytes, write.address) }?;
            }
            Ok(())
        });
        let recorded = free.record(stream);
        blocks.release(&free, [reads, writes]);
        written.and(recorded)
    }

    /// Error of the first work that failed since the last call.
    pub(super) fn take_failure(&self) -> Result<()> {
        locked(&self.failed).take().map_or(Ok(()), Err)
    }

    pub(super) fn bytes(&self) -> usize {
        locked(&self.state).blocks.bytes()
    }

    fn run<'s>(&self, running: &'s mut Option<Running>) -> Result<&'s mut Running> {
        if running.is_none() {
            let numbers = Arc::new(Numbers::new(&self.context)?);
            let (give, jobs) = channel();
            let left = Arc::new(AtomicBool::new(false));
            let (failed, seen, is_left) = (Arc::clone(&self.failed), Arc::clone(&numbers), Arc::clone(&left));
            let thread = std::thread::Builder::new()
                .name("bmtrain-host-work".into())
                .spawn(move || work_off(&jobs, &failed, &seen, &is_left))
                .map_err(|error| Error::refused("thread of a lane", Resource::Threads, error))?;
            *running = Some(Running { give: Some(give), thread: Some(thread), numbers, left, latest: 0 });
        }
        running.as_mut().ok_or_else(|| failure("on_host", "the thread of this lane is missing"))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread of a lane. After a failure later works are not run, but the lane goes on, to the wait that reports it.
fn work_off(jobs: &Receiver<QueuedWork>, failed: &Mutex<Option<Error>>, numbers: &Numbers, left: &AtomicBool) {
    for QueuedWork { read, write, work, number } in jobs {
        if !wait_for_copies(numbers, number, left) {
            return;
        }
        let result = if locked(failed).is_some() { Ok(()) } else { run(&read, &write, work) };
        if let Err(error) = result {
            locked(failed).get_or_insert(error);
        }
        // Kept by `Blocks` until the lane has passed, so that dropping them here returns nothing to the driver.
        drop((read, write));
        numbers.memory.publish(Numbers::DONE, number);
    }
}

fn run(read: &(Arc<Block>, usize), write: &(Arc<Block>, usize), work: HostWork) -> Result<()> {
    // SAFETY: the lane has copied to both blocks and waits for the number that is written when this returns.
    let (reads, writes) = unsafe { (read.0.bytes(read.1), write.0.bytes_mut(write.1)) };
    let ran = catch_unwind(AssertUnwindSafe(|| work(reads, writes)));
    ran.unwrap_or_else(|_| Err(failure("on_host", "work of the host panicked")))
}

/// Whether the copies of a work have arrived; false once the lane no longer waits.
fn wait_for_copies(numbers: &Numbers, number: u32, left: &AtomicBool) -> bool {
    /// Copies of small ranges arrive within it; a nap costs about as much.
    const SPIN: Duration = Duration::from_micros(50);
    const NAP: Duration = Duration::from_micros(20);
    let begin = Instant::now();
    while !numbers.has_reached(Numbers::COPIED, number) {
        if left.load(Ordering::Acquire) {
            return false;
        }
        if begin.elapsed() < SPIN { std::hint::spin_loop() } else { std::thread::sleep(NAP) }
    }
    true
}

impl Drop for HostWorker {
    fn drop(&mut self) {
        let mut state = locked(&self.state);
        let Some(mut running) = state.running.take() else { return };
        running.give.take();
        // The device's last work is waited for first; one that has failed writes no number any more.
        if let Err(error) = state.blocks.wait() {
            tracing::warn!(%error, "the device failed after work of the host");
        }
        running.left.store(true, Ordering::Release);
        if let Some(Err(_)) = running.thread.take().map(JoinHandle::join) {
            tracing::warn!("the thread of a lane panicked");
        }
    }
}
