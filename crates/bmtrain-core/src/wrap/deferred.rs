//! A backend that runs everything as late as it is allowed to, in a seeded random order of its lanes.
//!
//! Each lane is a queue. Nothing runs until the host waits for a lane; then lanes take turns at random, held up only by
//! the waits they were given. Code that forgets a wait, or frees memory that a lane still uses, gives other bits under
//! some seed: this proves the ordering of a step before any device that is really asynchronous exists.
#![allow(unsafe_code)]

use crate::backend::{Backend, HostWork, Kernels};
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::lane::{Lane, Mark};
use crate::philox::{self, Key};
use crate::view::{View, ViewMut};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

enum Task {
    Launch(Box<Kernel<'static>>),
    Upload(Vec<u8>, ViewMut<'static>),
    Copy(View<'static>, ViewMut<'static>),
    Host(Option<View<'static>>, Option<ViewMut<'static>>, HostWork),
    Wait(Mark),
}

// SAFETY: views are addresses and lengths; what makes them stay on one thread is that their memory may only be used by
// one thread at a time. Tasks are run by the holder of the state's lock, on the thread that owns the device.
unsafe impl Send for Task {}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    /// Tasks given and done since the start; a mark's ticket is the number given.
    given: u64,
    done: u64,
}

struct State {
    queues: [Queue; Lane::ALL.len()],
    samples: u32,
    failure: Option<Error>,
}

/// The wrapping backend.
pub struct Deferred {
    inner: Arc<dyn Backend>,
    seed: u64,
    state: Mutex<State>,
}

impl std::fmt::Debug for Deferred {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Deferred({}, seed {})", self.inner.name(), self.seed)
    }
}

impl Deferred {
    /// Wrap a backend that runs work at once.
    pub fn new(inner: Arc<dyn Backend>, seed: u64) -> Self {
        let state = State { queues: Default::default(), samples: 0, failure: None };
        Deferred { inner, seed, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give(&self, task: Task, on: Lane) {
        let mut state = self.lock();
        let queue = &mut state.queues[on as usize];
        queue.tasks.push_back(task);
        queue.given += 1;
    }

    fn run(&self, task: Task, on: Lane) -> Result<()> {
        match task {
            Task::Launch(kernel) => self.inner.launch(*kernel, on),
            Task::Upload(bytes, to) => self.inner.upload(&bytes, to, on),
            Task::Copy(from, to) => self.inner.copy(from, to, on),
            Task::Host(read, write, work) => {
                self.inner.on_host(read, write, work, on)?;
                // A wrapped device that runs late by itself would hide from whom this one makes late.
                self.inner.sync(on)
            }
            Task::Wait(_) => Ok(()),
        }
    }

    /// Run lanes in random order until one is empty.
    fn drain(&self, on: Lane) -> Result<()> {
        let mut state = self.lock();
        while !state.queues[on as usize].tasks.is_empty() {
            let ready: Vec<Lane> = Lane::ALL.into_iter().filter(|lane| state.ready(*lane)).collect();
            if ready.is_empty() {
                return Err(Error::argument("deferred", "every lane waits for another: a circle of waits"));
            }
            let random = philox::block(Key::new(self.seed, "lanes"), [state.samples, 0, 0, 0])[0];
            state.samples = state.samples.wrapping_add(1);
            let lane = ready[random as usize % ready.len()];
            let queue = &mut state.queues[lane as usize];
            queue.done += 1;
            if let Some(task) = queue.tasks.pop_front()
                && let Err(error) = self.run(task, lane)
            {
                state.failure.get_or_insert(error);
            }
        }
        state.failure.clone().map_or(Ok(()), Err)
    }
}

impl State {
    fn ready(&self, lane: Lane) -> bool {
        match self.queues[lane as usize].tasks.front() {
            None => false,
            Some(Task::Wait(mark)) => self.queues[mark.lane as usize].done >= mark.ticket,
            Some(_) => true,
        }
    }
}

impl Kernels for Deferred {
    fn launch(&self, kernel: Kernel<'_>, on: Lane) -> Result<()> {
        // What a real device would refuse at once is refused at once.
        kernel.check(self.inner.id(), on)?;
        // SAFETY: the task runs before a sync of its lane returns, and the pool releases memory only after such a sync.
        self.give(Task::Launch(Box::new(unsafe { kernel.detach() })), on);
        Ok(())
    }
}

impl Backend for Deferred {
    fn name(&self) -> String {
        format!("{}, deferred", self.inner.name())
    }

    crate::forward_to_inner!(id memory abilities);

    fn upload(&self, host: &[u8], to: ViewMut<'_>, on: Lane) -> Result<()> {
        if host.len() != to.bytes() {
            return Err(Error::shape("upload", "bytes", to.bytes(), host.len()));
        }
        // SAFETY: as in `launch`.
        self.give(Task::Upload(host.to_vec(), unsafe { to.detach() }), on);
        Ok(())
    }

    fn download(&self, from: View<'_>, host: &mut [u8], on: Lane) -> Result<()> {
        self.drain(on)?;
        self.inner.download(from, host, on)
    }

    fn copy(&self, from: View<'_>, to: ViewMut<'_>, on: Lane) -> Result<()> {
        // SAFETY: as in `launch`.
        self.give(unsafe { Task::Copy(from.detach(), to.detach()) }, on);
        Ok(())
    }

    fn on_host(&self, read: Option<View<'_>>, write: Option<ViewMut<'_>>, work: HostWork, on: Lane) -> Result<()> {
        // SAFETY: as in `launch`.
        let task = unsafe { Task::Host(read.map(|view| view.detach()), write.map(|view| view.detach()), work) };
        self.give(task, on);
        Ok(())
    }

    fn fill_on_host(&self, read: Option<View<'_>>, write: ViewMut<'_>, work: HostWork, on: Lane) -> Result<()> {
        // Work that keeps anything of what it is to overwrite keeps this.
        let spoilt: HostWork = Box::new(move |read, write| {
            write.fill(0xff);
            work(read, write)
        });
        self.on_host(read, Some(write), spoilt, on)
    }

    fn mark(&self, on: Lane) -> Result<Mark> {
        Ok(Mark { lane: on, ticket: self.lock().queues[on as usize].given })
    }

    fn wait(&self, on: Lane, mark: Mark) -> Result<()> {
        self.give(Task::Wait(mark), on);
        Ok(())
    }

    fn sync(&self, on: Lane) -> Result<()> {
        self.drain(on)
    }
}
