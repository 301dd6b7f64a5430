//! Start of a process as a rank: MPI is started on a thread of its own, and all ranks tell each other who they are.
//!
//! Defines [`join`] and [`Session`], a process's membership in the job.

use super::progress::Progress;
use super::{MpiGroup, MpiOptions};
use crate::comm::call::{Call, CallKind};
use crate::comm::engine::Group;
use crate::comm::messages::job::{End, MessageJob};
use crate::comm::messages::message::Kind;
use crate::comm::processes::{Identity, Watch};
use crate::error::{Error, Result};
use crate::limits::Resource;
use ferrompi::{Mpi, ThreadLevel};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Time for the others to report before MPI ends them.
const TO_SPEAK: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Session {
    pub(super) job: Arc<MessageJob>,
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
    let job = Arc::new(MessageJob::new((rank, size), options.deadline, options.chunk, []));
    give.send(Arc::clone(&job)).map_err(|_| failed("thread", "the thread of MPI has ended"))?;
    let group = MpiGroup::world(Arc::new(Session { job: Arc::clone(&job) }));
    job.tell_all(Kind::Hello, &hello(options));
    let call = Call { kind: CallKind::Join, sequence: 0 };
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

fn speak(tell: &Sender<Result<(usize, usize)>>, given: &Receiver<Arc<MessageJob>>) {
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
        let state = group.job().lock();
        let chunk = |rank: &usize| state.hello.get(rank).and_then(|words| words.first()).copied().unwrap_or(0);
        group.job().others().map(|rank| (rank, chunk(&rank))).find(|(_, chunk)| *chunk != own)
    };
    let Some((rank, chunk)) = other else { return Ok(()) };
    let reason = format!(
        "rank {} came with chunks of {own} bytes, rank {rank} with {chunk}; give all the same",
        group.members.rank
    );
    Err(group.fail(call, &[group.members.rank, rank], reason))
}

impl Session {
    /// This rank's user knows what went wrong: when the others' do as well, or after a second, MPI ends all processes.
    pub(super) fn end_job(&self, code: i32) -> ! {
        let job = &self.job;
        job.tell_all(Kind::Spoken, &[]);
        let begin = Instant::now();
        while begin.elapsed() < TO_SPEAK && !job.others().all(|rank| job.lock().spoken.contains(&rank)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        job.end(End::Abort(code));
        // MPI did not do it.
        std::process::exit(code)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.job.end(self.job.leave());
    }
}

impl crate::comm::messages::Session for Session {
    fn job(&self) -> &MessageJob {
        &self.job
    }
}
