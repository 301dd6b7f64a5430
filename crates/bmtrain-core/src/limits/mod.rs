//! The limits that the system sets for this process, so that an error can name the limit that was reached.
//!
//! Read at the moment of an error, and by programs that print the limits.

mod control_groups;
mod cpu_quota;

pub(crate) use control_groups::text;
pub use cpu_quota::{CpuQuota, cpu_quota};

use crate::error::{Error, Result};
use crate::heap;
use rustix::io::Errno;
use rustix::process::{Resource as Kind, getrlimit};
use std::fmt;
use std::io;
use std::path::Path;

/// Resource that the system can refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Memory, or addresses for it.
    Memory,
    /// A thread: a place in the process table, and memory for its stack.
    Threads,
    /// A file beyond some length.
    FileSize,
    /// One more open file.
    OpenFiles,
}

impl Resource {
    /// Fix where it was refused.
    pub const fn fix(self) -> &'static str {
        match self {
            Resource::Memory => {
                "raise the limit, or use fewer ranks, a smaller micro-batch or a smaller model; `plan` states \
                 what a run needs"
            }
            Resource::Threads => "raise the limit, or use fewer ranks and threads (device.threads, --threads, --ranks)",
            Resource::FileSize => {
                "raise the limit on the size of files, with `ulimit -f unlimited` or in the job's settings"
            }
            Resource::OpenFiles => "raise the limit on open files, with `ulimit -n` or in the job's settings",
        }
    }
}

/// One limit of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// Bounded quantity, e.g. `address space`.
    pub what: &'static str,
    /// Resource that is refused where the limit is reached. A limit of memory can refuse threads too, see [`limits`].
    pub resource: Resource,
    /// The bound, in bytes for memory and files, else a count.
    pub most: u64,
    /// Current use, where the system states it.
    pub used: Option<u64>,
    /// Place at which it is set: the name of the limit and the shell's command, or a file of a control group.
    pub place: String,
}

impl Limit {
    /// Whether the system refuses what is beyond it. Memory beyond the limit of a control group is not refused: it ends
    /// the process by a signal.
    pub fn is_refused(&self) -> bool {
        self.what != control_groups::MEMORY
    }

    /// Remainder of the limit, where its use is known.
    pub fn left(&self) -> Option<u64> {
        Some(self.most.saturating_sub(self.used?))
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = |amount: u64| match self.resource {
            Resource::Memory | Resource::FileSize => bytes(amount),
            Resource::Threads | Resource::OpenFiles => amount.to_string(),
        };
        write!(f, "{} {}", self.what, amount(self.most))?;
        if let Some(used) = self.used {
            write!(f, ", {} in use", amount(used))?;
        }
        write!(f, " ({})", self.place)
    }
}

/// Bytes as a person reads them: whole MiB or KiB where they are exact, else bytes below 10 MiB.
fn bytes(bytes: u64) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    match bytes {
        _ if bytes >= 10 * MIB || (bytes >= MIB && bytes.is_multiple_of(MIB)) => format!("{} MiB", bytes / MIB),
        _ if bytes >= KIB && bytes.is_multiple_of(KIB) => format!("{} KiB", bytes / KIB),
        _ => format!("{bytes} bytes"),
    }
}

/// The limits that can refuse this resource; all that are set for `None`. Limits of a control group come last.
pub fn limits(resource: Option<Resource>) -> Vec<Limit> {
    let is_meant = |limit: &Limit| match resource {
        None => true,
        // A thread has a stack.
        Some(Resource::Threads) => {
            limit.resource == Resource::Threads || (limit.resource == Resource::Memory && limit.is_refused())
        }
        Some(resource) => limit.resource == resource,
    };
    let groups = control_groups::read(Path::new(control_groups::OWN), Path::new(control_groups::MOUNT));
    own().into_iter().chain(groups).filter(is_meant).collect()
}

fn own() -> Vec<Limit> {
    let limit = |kind, what, resource, used: Option<u64>, place: &str| {
        let most = getrlimit(kind).current?;
        Some(Limit { what, resource, most, used, place: place.to_owned() })
    };
    // The kernel exempts privileged processes from the limit on processes.
    let is_exempt = rustix::process::geteuid().is_root();
    [
        limit(Kind::As, "address space", Resource::Memory, address_space(), "RLIMIT_AS, ulimit -v"),
        limit(Kind::Data, "data segment", Resource::Memory, None, "RLIMIT_DATA, ulimit -d"),
        limit(Kind::Fsize, "size of a file", Resource::FileSize, None, "RLIMIT_FSIZE, ulimit -f"),
        limit(Kind::Nofile, "open files", Resource::OpenFiles, None, "RLIMIT_NOFILE, ulimit -n"),
        limit(Kind::Nproc, "processes and threads of this user", Resource::Threads, None, "RLIMIT_NPROC, ulimit -u")
            .filter(|_| !is_exempt),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn address_space() -> Option<u64> {
    let status = control_groups::text(Path::new("/proc/self/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

impl Error {
    /// A [`Error::Refused`] with the limits that are set now.
    pub fn refused(what: impl Into<String>, resource: Resource, reason: impl fmt::Display) -> Self {
        let (reason, limits) = (reason.to_string(), sentence(&limits(Some(resource))));
        Error::Refused { what: what.into(), reason, limits, fix: resource.fix() }
    }
}

/// Limits as the end of a sentence, as in [`Error::Refused`].
pub fn sentence(limits: &[Limit]) -> String {
    let found: Vec<String> = limits.iter().map(Limit::to_string).collect();
    match found.as_slice() {
        [] => "no limit is set for this process, so the system itself has no more".to_owned(),
        [one] => format!("the limit is: {one}"),
        several => format!("the limits are: {}", several.join("; ")),
    }
}

/// The resource whose limit an error of the operating system reports.
pub fn reached(error: &io::Error) -> Option<Resource> {
    match Errno::from_io_error(error)? {
        Errno::FBIG => Some(Resource::FileSize),
        Errno::MFILE => Some(Resource::OpenFiles),
        Errno::NOMEM => Some(Resource::Memory),
        _ => None,
    }
}

/// The text of an error of the operating system, with the limit that was reached if it is one.
pub fn explain(error: &io::Error) -> String {
    match reached(error) {
        Some(resource) => format!("{error}; {}", sentence(&limits(Some(resource)))),
        None => error.to_string(),
    }
}

/// Make room for `count` more elements, where that may be refused.
///
/// # Errors
/// [`Error::Refused`] with `what` the memory is for; the vector is unchanged.
pub fn make_room<T>(vector: &mut Vec<T>, count: usize, what: impl fmt::Display) -> Result<()> {
    heap::fallible(|| vector.try_reserve_exact(count)).map_err(|_| {
        let bytes = count.saturating_mul(size_of::<T>());
        Error::refused(format!("{bytes} bytes for {what}"), Resource::Memory, "out of memory")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_states_its_size_its_use_and_where_it_is_set() {
        let place = || "RLIMIT_AS, ulimit -v".to_owned();
        let limit =
            |most, used| Limit { what: "address space", resource: Resource::Memory, most, used, place: place() };
        let text = limit(160 << 20, Some((155 << 20) + 5)).to_string();
        assert_eq!(text, "address space 160 MiB, 155 MiB in use (RLIMIT_AS, ulimit -v)");
        assert_eq!(limit(10_000, None).to_string(), "address space 10000 bytes (RLIMIT_AS, ulimit -v)");
        assert_eq!(limit(10 << 10, None).to_string(), "address space 10 KiB (RLIMIT_AS, ulimit -v)");
        assert_eq!(
            (limit(10, Some(3)).left(), limit(10, Some(30)).left(), limit(10, None).left()),
            (Some(7), Some(0), None)
        );
    }

    #[test]
    fn an_error_that_is_a_limit_names_it() {
        let too_large = explain(&Errno::FBIG.into());
        assert!(too_large.starts_with("File too large (os error 27); "), "{too_large}");
        assert_eq!(explain(&Errno::NOSPC.into()), "No space left on device (os error 28)");
        assert_eq!(reached(&Errno::NOMEM.into()), Some(Resource::Memory));
    }

    #[test]
    fn room_that_cannot_exist_is_an_error() {
        let mut values = Vec::<u64>::new();
        let error = make_room(&mut values, usize::MAX / 16, "a table").unwrap_err();
        assert!(matches!(&error, Error::Refused { what, .. } if what.ends_with(" bytes for a table")), "{error}");
        make_room(&mut values, 10, "a table").unwrap();
        assert!(values.capacity() >= 10);
    }
}
