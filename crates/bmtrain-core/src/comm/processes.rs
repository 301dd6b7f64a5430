//! The process of a rank, and whether it still runs.
//!
//! A process that ends without leaving (it was killed, or ran out of memory) is noticed through a descriptor of it,
//! which stays true when its number is given to another process.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    /// Its number; never zero.
    pub(super) process: u64,
    /// The PID namespace of this number: containers have their own. Zero if unknown.
    pub(super) namespace: u64,
    /// Start time, in [`TICKS`] since the machine was booted, which tells it from a later process of the same number.
    /// Zero if unknown.
    pub(super) start: u64,
}

/// Ticks of a second in which Linux counts when processes were started, on all machines of the target.
pub(super) const TICKS: u64 = 100;

impl Identity {
    pub(super) fn own() -> Self {
        let process = getpid().as_raw_nonzero().get() as u64;
        let namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |facts| facts.ino());
        Identity { process, namespace, start: start_of(process) }
    }

    /// Whether this process is known to have been killed or to be ending: it may still return its memory to the system,
    /// and keeps its locks until it has. Of a process in another namespace nothing is known.
    pub(super) fn is_ending(&self) -> bool {
        let own = Identity::own();
        if self.process == 0 || self.process == own.process || self.namespace != own.namespace || own.namespace == 0 {
            return false;
        }
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process)).unwrap_or_default();
        let start = start_of(self.process);
        is_ending(&status) || (self.start != 0 && start != 0 && start != self.start)
    }
}

/// Whether a `/proc/PID/status` is of a process that has released its memory, writes it to a file, or has
/// SIGKILL pending.
fn is_ending(status: &str) -> bool {
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let is_killed = |name| {
        field(name).and_then(|set| u64::from_str_radix(set, 16).ok()).is_some_and(|set| set >> (KILL - 1) & 1 == 1)
    };
    field("VmSize:").is_none() || field("CoreDumping:") == Some("1") || is_killed("SigPnd:") || is_killed("ShdPnd:")
}

/// The number of SIGKILL.
const KILL: u32 = 9;

/// Start time of a process; zero if the system does not tell.
fn start_of(process: u64) -> u64 {
    let facts = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name, in parentheses, may have any characters. What follows begins with the third field; the 22nd is wanted.
    let numbers = facts.rsplit_once(')').map_or("", |(_, numbers)| numbers);
    numbers.split_ascii_whitespace().nth(19).and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// Whether no other open file holds a lock on this one.
pub(super) fn is_unlocked(file: &File) -> bool {
    let is_free = flock(file, FlockOperation::NonBlockingLockShared).is_ok();
    if is_free {
        let _ = flock(file, FlockOperation::Unlock);
    }
    is_free
}

/// Way to see whether a rank's process has ended.
#[derive(Debug)]
pub(super) enum Watch {
    /// It is this process, or one that cannot be watched from here: the deadline has to do.
    Nothing,
    /// It had ended before it could be watched.
    Ended,
    /// Becomes readable when it ends.
    Process(OwnedFd),
    /// Stays locked until it ends: for a process whose number is not valid here.
    Lock(File),
}

impl Watch {
    /// Watch a process that may be this one.
    pub(super) fn over(whom: Identity) -> Self {
        let own = Identity::own();
        if whom.process == own.process || whom.namespace != own.namespace || own.namespace == 0 {
            return Watch::Nothing;
        }
        let Some(process) = i32::try_from(whom.process).ok().and_then(Pid::from_raw) else { return Watch::Nothing };
        match pidfd_open(process, PidfdFlags::empty()) {
            Ok(descriptor) => {
                // The descriptor may be of a later process with the same number.
                let start = start_of(whom.process);
                let is_another = whom.start != 0 && start != 0 && start != whom.start;
                if is_another { Watch::Ended } else { Watch::Process(descriptor) }
            }
            Err(Errno::SRCH) => Watch::Ended,
            Err(error) => {
                tracing::debug!(%error, "a rank's process cannot be watched");
                Watch::Nothing
            }
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        match self {
            Watch::Nothing => false,
            Watch::Ended => true,
            Watch::Lock(file) => is_unlocked(file),
            Watch::Process(descriptor) => {
                let mut states = [PollFd::new(descriptor, PollFlags::IN)];
                matches!(poll(&mut states, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(count) if count > 0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_seen_to_end_even_before_it_is_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = u64::from(child.id());
        let whom = Identity { process, start: start_of(process), ..Identity::own() };
        assert!(whom.start >= Identity::own().start && whom.start > 0, "{whom:?}");
        let watch = Watch::over(whom);
        assert!(matches!(watch, Watch::Process(_)) && !watch.has_ended());
        assert!(!whom.is_ending() && !Identity::own().is_ending());
        child.kill().unwrap();
        let begin = std::time::Instant::now();
        while !watch.has_ended() {
            assert!(begin.elapsed().as_secs() < 5, "a killed process was not noticed");
        }
        assert!(whom.is_ending(), "a process that was not waited for");
        child.wait().unwrap();
        assert!(watch.has_ended() && whom.is_ending());
        assert!(Watch::over(whom).has_ended(), "a process that is gone already");
    }

    #[test]
    fn a_process_with_a_pending_kill_or_without_memory_is_ending() {
        let status = |signals: &str| format!("State:\tD\nVmSize:\t 9 kB\nSigPnd:\t{signals}\nShdPnd:\t0000\n");
        assert!(is_ending(&status("0000000000000100")) && !is_ending(&status("0000000000000200")));
        assert!(is_ending("State:\tR\nSigPnd:\t0000\n"));
    }

    #[test]
    fn this_process_and_those_of_other_worlds_are_not_watched() {
        let own = Identity::own();
        assert!(matches!(Watch::over(own), Watch::Nothing));
        let elsewhere = Identity { process: 1, namespace: own.namespace + 1, start: 0 };
        assert!(matches!(Watch::over(elsewhere), Watch::Nothing));
    }

    #[test]
    fn a_number_that_was_given_to_another_process_is_not_the_same_process() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = u64::from(child.id());
        let whom = Identity { process, start: start_of(process), ..Identity::own() };
        assert!(!Watch::over(whom).has_ended());
        assert!(Watch::over(Identity { start: whom.start - 1, ..whom }).has_ended());
        // A system that does not tell when processes were started.
        assert!(!Watch::over(Identity { start: 0, ..whom }).has_ended());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_is_watched_through_a_file_that_it_keeps_locked() {
        let path = std::env::temp_dir().join(format!("bmtrain-watched-{}", std::process::id()));
        let held = File::create(&path).unwrap();
        flock(&held, FlockOperation::LockExclusive).unwrap();
        let watch = Watch::Lock(File::open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        assert!(!watch.has_ended() && !watch.has_ended());
        drop(held);
        assert!(watch.has_ended() && watch.has_ended());
    }
}
