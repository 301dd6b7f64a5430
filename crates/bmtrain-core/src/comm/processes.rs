//! Which process a rank is, and whether it still runs.
//!
//! Defines [`Watch`] and [`Identity`], which ranks show each other when they meet. A process that ends without leaving
//! (it was killed, or ran out of memory) is noticed through a descriptor of it, which stays true when its number is given
//! to another process.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

/// A process as others know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    /// Its number; never zero.
    pub(super) process: u64,
    /// In which world of processes it has this number: containers have worlds of their own. Zero if nobody knows.
    pub(super) namespace: u64,
}

impl Identity {
    /// This process.
    pub(super) fn own() -> Self {
        let process = getpid().as_raw_nonzero().get() as u64;
        let namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |facts| facts.ino());
        Identity { process, namespace }
    }
}

/// How to see whether a rank's process has ended.
#[derive(Debug)]
pub(super) enum Watch {
    /// It is this process, or one that cannot be watched from here: the deadline has to do.
    Nothing,
    /// It had ended before it could be watched.
    Ended,
    /// Becomes readable when it ends.
    Process(OwnedFd),
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
            Ok(descriptor) => Watch::Process(descriptor),
            Err(Errno::SRCH) => Watch::Ended,
            Err(error) => {
                tracing::debug!(%error, "a rank's process cannot be watched");
                Watch::Nothing
            }
        }
    }

    /// Whether it is known to have ended.
    pub(super) fn has_ended(&self) -> bool {
        match self {
            Watch::Nothing => false,
            Watch::Ended => true,
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
        let whom = Identity { process: u64::from(child.id()), ..Identity::own() };
        let watch = Watch::over(whom);
        assert!(matches!(watch, Watch::Process(_)) && !watch.has_ended());
        child.kill().unwrap();
        let begin = std::time::Instant::now();
        while !watch.has_ended() {
            assert!(begin.elapsed().as_secs() < 5, "a killed process was not noticed");
        }
        child.wait().unwrap();
        assert!(watch.has_ended());
        assert!(Watch::over(whom).has_ended(), "a process that is gone already");
    }

    #[test]
    fn this_process_and_those_of_other_worlds_are_not_watched() {
        let own = Identity::own();
        assert!(matches!(Watch::over(own), Watch::Nothing));
        assert!(matches!(Watch::over(Identity { process: 1, namespace: own.namespace + 1 }), Watch::Nothing));
    }
}
