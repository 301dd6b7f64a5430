//! The one error type of this crate.

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an [`Error::Checkpoint`], by which a caller decides how to continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The files contradict each other or their hashes: this checkpoint is not usable, an older one may be.
    Damaged,
    /// There is no such checkpoint, tensor or range.
    Missing,
    /// The operating system refused: no space, no permission, a failing device. Earlier checkpoints are unaffected.
    Disk,
    /// The request is impossible: a mistake in a program or on a command line.
    Request,
    /// Something took longer than it was given.
    Deadline,
    /// An armed fail point was reached.
    FailPoint,
}

/// An error between the kernels and the models.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter was read while its block was not gathered.
    #[error("parameter {name} is not gathered: read it inside its block's forward or backward, or through a gather")]
    NotGathered {
        /// Full name of the parameter.
        name: String,
    },
    /// A parameter or a layer was declared in a way that cannot work.
    #[error("parameter {name}: {reason}")]
    Parameter {
        /// Full name of the parameter.
        name: String,
        /// Reason, with expected and got.
        reason: String,
    },
    /// A setting of an optimizer, a schedule or a block list is out of range.
    #[error("{who}: {reason}")]
    Setting {
        /// The object that refuses.
        who: &'static str,
        /// Reason, with the value.
        reason: String,
    },
    /// A checkpoint cannot be written, read or trusted.
    #[error("checkpoint {place}: {reason}; {fix}")]
    Checkpoint {
        /// Kind of failure, for the caller that has to decide how to continue.
        fault: Fault,
        /// File or directory.
        place: String,
        /// Reason, with expected and got.
        reason: String,
        /// Fix.
        fix: String,
    },
    /// The program was not started in a way that works: a mistake on the command line or in a launcher's variables.
    #[error("launch: {place}: {reason}; {fix}")]
    Launch {
        /// The variable or option, with its value.
        place: String,
        /// Reason.
        reason: String,
        /// Fix.
        fix: String,
    },
    /// Ranks did not find each other at the rendezvous store, or lost each other there.
    #[error("rendezvous at {place}: {reason}; {fix}")]
    Rendezvous {
        /// Address and port.
        place: String,
        /// Reason, with the ranks that it concerns.
        reason: String,
        /// Fix.
        fix: String,
        /// The ranks that are absent or lost.
        ranks: Vec<usize>,
    },
    /// The thread of a rank panicked or could not be started.
    #[error("thread of rank {rank}: {reason}")]
    RankThread {
        /// The rank.
        rank: usize,
        /// The panic's message, or the operating system's.
        reason: String,
    },
    /// An error of the core.
    #[error(transparent)]
    Core(#[from] bmtrain_core::Error),
}

impl Error {
    /// A [`Error::Setting`].
    pub fn setting(who: &'static str, reason: impl Into<String>) -> Self {
        Error::Setting { who, reason: reason.into() }
    }

    /// A [`Error::Checkpoint`].
    pub fn checkpoint(
        fault: Fault,
        place: impl Into<String>,
        reason: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Error::Checkpoint { fault, place: place.into(), reason: reason.into(), fix: fix.into() }
    }

    /// A [`Error::Launch`].
    pub fn launch(place: impl Into<String>, reason: impl Into<String>, fix: impl Into<String>) -> Self {
        Error::Launch { place: place.into(), reason: reason.into(), fix: fix.into() }
    }

    /// A [`Error::Parameter`].
    pub fn parameter(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Error::Parameter { name: name.into(), reason: reason.into() }
    }
}
