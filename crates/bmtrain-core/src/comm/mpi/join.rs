//! How a process becomes a rank: MPI is started on a thread of its own, and all ranks tell each other who they are.
//!
//! Defines [`join`] and [`Session`], a process's membership in the job, which leaves the job when it is dropped.

use super::MpiOptions;
use super::group::MpiGroup;
use super::job::{End, MpiJob};
use super::message::Kind;
use super::progress::Progress;
use crate::comm::call::{Call, What};
use crate::comm::engine::Group;
use crate::comm::processes::{Identity, Watch};
use crate::error::{Error, Result};
use crate::limits::Resource;
use ferrompi::{Mpi, ThreadLevel};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// How often the end is looked at.
const SLICE: Duration = Duration::from_millis(50);
/// How long the others may take to speak before MPI ends them.
const TO_SPEAK: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Session {
    pub(super) job: Arc<MpiJob>,
}

fn failed(call: &'static str, reason: impl std::fmt::Display) -> Error {
    Error::Device { backend: "MPI".into(), call, reason: reason.to_string() }
}

pub(super) fn join(options: MpiOptions) -> Result<MpiGroup> {
    options.check()?;
    let (tell, told) = channel();
    let (give, given) = channel();
    let thread = std::thread::Builder::new().name("mpi".into()).spawn(move || speak(&tell, &given));
    thread.map_err(|error| Error::refused("thread of MPI", Resource::Threads, error))?;
    let (rank, size) = told.recv_timeout(options.deadline).map_err(|_| {
        let reason = format!(
            "not all processes have started it within {:.1?}; see the messages of the others",
            options.deadline
        );
        failed("MPI_Init_thread", reason)
    })??;
    let job = Arc::new(MpiJob::new(rank, size, options));
    give.send(Arc::clone(&job)).map_err(|_| failed("thread", "the thread of MPI has ended"))?;
    let group = MpiGroup::world(Arc::new(Session { job: Arc::clone(&job) }));
    job.tell_all(Kind::Hello, &hello(options));
    let call = Call { what: What::Join, sequence: 0 };
    group.wait(&call, |state| job.others().filter(|other| !state.hello.contains_key(other)).collect())?;
    compare(&group, &call, options)?;
    let watch = |other| match job.lock().hello.get(&other).map(Vec::as_slice) {
        Some([_, process, namespace, host, start]) if *host == host_number() => {
            Watch::over(Identity { process: *process, namespace: *namespace, start: *start })
        }
        _ => Watch::Nothing,
    };
    let _ = job.watch.set((0..size).map(watch).collect());
    Ok(group)
}

fn speak(tell: &Sender<Result<(usize, usize)>>, given: &Receiver<Arc<MpiJob>>) {
    let mpi = match Mpi::init_thread(ThreadLevel::Funneled) {
        Ok(mpi) => mpi,
        Err(error) => {
            let _ = tell.send(Err(failed("MPI_Init_thread", error)));
            return;
        }
    };
    let world = mpi.world();
    let place = match mpi.thread_level() {
        level if level < ThreadLevel::Funneled => Err(failed(
            "MPI_Init_thread",
            "this MPI is without threads, but the level `funneled` is needed; use an MPI built with threads",
        )),
        _ => Ok((world.rank() as usize, world.size() as usize)),
    };
    let _ = tell.send(place);
    // A rank that gave up waiting sends no job; MPI is ended then, or left if it cannot be.
    if let Ok(job) = given.recv() {
        Progress::new(job, &mpi).run(mpi);
    } else {
        std::mem::forget(mpi);
    }
}

/// Chunk, process, its world of processes, host, when the process was started.
fn hello(options: MpiOptions) -> [u64; 5] {
    let own = Identity::own();
    [options.chunk as u64, own.process, own.namespace, host_number(), own.start]
}

/// A number that differs between hosts, and between two lives of one; zero where the system gives none.
fn host_number() -> u64 {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}

fn compare(group: &MpiGroup, call: &Call, options: MpiOptions) -> Result<()> {
    let own = options.chunk as u64;
    let other = {
        let state = group.session.job.lock();
        let chunk = |rank: &usize| state.hello.get(rank).and_then(|words| words.first()).copied().unwrap_or(0);
        group.session.job.others().map(|rank| (rank, chunk(&rank))).find(|(_, chunk)| *chunk != own)
    };
    let Some((rank, chunk)) = other else { return Ok(()) };
    let reason = format!(
        "rank {} came with chunks of {own} bytes, rank {rank} with {chunk}; give all the same",
        group.members.rank
    );
    Err(group.fail(call, &[group.members.rank, rank], reason))
}

impl Session {
    /// Leave the job, wait until the others have left it, and end MPI.
    fn leave(&self) {
        let job = &self.job;
        if job.lock().failure.is_some() {
            return self.end(End::Park);
        }
        job.tell_all(Kind::Bye, &[]);
        let (mut asked, mut question) = (Instant::now(), None);
        loop {
            let mut state = job.lock();
            if state.failure.is_some() {
                drop(state);
                return self.end(End::Park);
            }
            let missing: Vec<usize> = job.others().filter(|rank| !state.gone.contains(rank)).collect();
            if missing.is_empty() {
                drop(state);
                return self.end(End::Finalize);
            }
            if asked.elapsed() >= job.options.deadline {
                let answered =
                    |rank: &usize| question.is_none() || state.answers.get(rank).map(|answer| answer.0) == question;
                if !missing.iter().all(answered) {
                    tracing::warn!(?missing, "ranks have not come to the end of the job: MPI is left as it is");
                    drop(state);
                    return self.end(End::Park);
                }
                state.questions += 1;
                question = Some(state.questions);
                drop(state);
                job.ask(&missing, question.unwrap_or_default());
                asked = Instant::now();
                continue;
            }
            drop(job.arrived.wait_timeout(state, SLICE));
            let ended = |rank: &&usize| job.watch.get().is_some_and(|watch| watch[**rank].has_ended());
            let ended: HashSet<usize> = missing.iter().filter(ended).copied().collect();
            if ended.iter().any(|rank| !job.lock().gone.contains(rank)) {
                tracing::warn!(?ended, "processes of ranks have ended: MPI is left as it is");
                return self.end(End::Park);
            }
        }
    }

    /// Let the progress thread do it, and wait for that, but not for ever.
    fn end(&self, end: End) {
        let job = &self.job;
        job.lock().end = Some(end);
        job.work.notify_all();
        let begin = Instant::now();
        let mut state = job.lock();
        while !state.ended && begin.elapsed() < job.options.deadline {
            state = match job.arrived.wait_timeout(state, SLICE) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        if !state.ended {
            tracing::warn!("MPI has not ended within {:.1?}: it is left as it is", job.options.deadline);
        }
    }

    /// This rank's user knows what went wrong: when the others' do as well, or after a second, MPI ends all processes.
    pub(super) fn end_job(&self, code: i32) -> ! {
        let job = &self.job;
        job.tell_all(Kind::Spoken, &[]);
        let begin = Instant::now();
        while begin.elapsed() < TO_SPEAK && !job.others().all(|rank| job.lock().spoken.contains(&rank)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.end(End::Abort(code));
        // MPI did not do it.
        std::process::exit(code)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.leave();
    }
}
