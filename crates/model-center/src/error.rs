//! The one error type of this crate: every variant names the place, the reason and the fix.

use bmtrain_core::Error as CoreError;
use bmtrain_core::limits::{explain, reached};
use bmtrain_dist::Error as DistError;
use bmtrain_dist::checkpoint::Fault;
use std::path::PathBuf;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong, grouped by what the person at the keyboard has to look at.
///
/// The group decides the exit code of the example binaries, see [`Error::exit_code`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A recipe, a command line value or a combination of settings is wrong.
    #[error("error[recipe]: {reason}\n  --> {place}\n  fix: {fix}")]
    Recipe {
        /// File, line and key.
        place: String,
        /// What is wrong.
        reason: String,
        /// What to do.
        fix: String,
    },
    /// A record, a data file or a label is wrong.
    #[error("error[data]: {reason}\n  --> {place}\n  fix: {fix}")]
    Data {
        /// File, line and column.
        place: String,
        /// What is wrong.
        reason: String,
        /// What to do.
        fix: String,
    },
    /// A model directory, a weights file or a configuration is wrong.
    #[error("error[model]: {reason}\n  --> {place}\n  fix: {fix}")]
    Model {
        /// File and tensor or field.
        place: String,
        /// What is wrong.
        reason: String,
        /// What to do.
        fix: String,
    },
    /// The operating system refused a file operation.
    #[error(
        "error[file]: cannot {action}: {reason}\n  --> {path}\n  fix: {fix}",
        reason = explain(source), path = path.display(), fix = reached(source).map_or(fix.as_str(), |resource| resource.fix())
    )]
    File {
        /// What was tried, e.g. `read`.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
        /// What to do, where no limit of the process is the reason.
        fix: String,
    },
    /// Training ended in numbers that are not finite.
    #[error("error[diverged]: {reason}\n  --> {place}\n  fix: {fix}")]
    Diverged {
        /// Step, and the parameter or sample where the first such number was seen.
        place: String,
        /// Which value.
        reason: String,
        /// What to do.
        fix: String,
    },
    /// A run failed again and again without getting any further.
    #[error("error[no-progress]: {reason}\n  --> {place}\n  fix: {fix}")]
    NoProgress {
        /// The directory of the run.
        place: String,
        /// How often, and from which step on.
        reason: String,
        /// What to do.
        fix: String,
    },
    /// An error of the layers below.
    #[error(transparent)]
    Dist(#[from] bmtrain_dist::Error),
    /// An error of the core.
    #[error(transparent)]
    Core(#[from] bmtrain_core::Error),
}

impl Error {
    /// The exit code for schedulers: 2 recipe or launch, 3 data or model files, 4 a damaged checkpoint, 5 memory or
    /// disk, 6 a lost rank, 7 diverged, 93 no progress, 1 anything else.
    pub fn exit_code(&self) -> i32 {
        match self {
            Error::Core(below) | Error::Dist(DistError::Core(below)) => match below {
                CoreError::NoDevice { .. } | CoreError::Launch { .. } => 2,
                CoreError::RankEnded { code, .. } => i32::from(*code),
                CoreError::OutOfMemory { .. } | CoreError::Refused { .. } => 5,
                CoreError::Communication { .. } => 6,
                _ => 1,
            },
            Error::Dist(below) => match below {
                DistError::Launch { .. } => 2,
                DistError::Rendezvous { .. } => 6,
                DistError::Checkpoint { fault: Fault::Missing | Fault::Request, .. } => 2,
                DistError::Checkpoint { fault: Fault::Damaged, .. } => 4,
                DistError::Checkpoint { fault: Fault::Disk | Fault::Deadline, .. } => 5,
                _ => 1,
            },
            Error::Recipe { .. } => 2,
            Error::Data { .. } | Error::Model { .. } => 3,
            Error::File { .. } => 5,
            Error::Diverged { .. } => 7,
            Error::NoProgress { .. } => 93,
        }
    }

    /// A recipe mistake.
    pub fn recipe(place: impl Into<String>, reason: impl Into<String>, fix: impl Into<String>) -> Self {
        Error::Recipe { place: place.into(), reason: reason.into(), fix: fix.into() }
    }

    /// A data mistake.
    pub fn data(place: impl Into<String>, reason: impl Into<String>, fix: impl Into<String>) -> Self {
        Error::Data { place: place.into(), reason: reason.into(), fix: fix.into() }
    }

    /// A mistake in a model directory.
    pub fn model(place: impl Into<String>, reason: impl Into<String>, fix: impl Into<String>) -> Self {
        Error::Model { place: place.into(), reason: reason.into(), fix: fix.into() }
    }

    /// Numbers that are not finite.
    pub fn diverged(place: impl Into<String>, reason: impl Into<String>, fix: impl Into<String>) -> Self {
        Error::Diverged { place: place.into(), reason: reason.into(), fix: fix.into() }
    }

    /// A refused file operation.
    pub fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
        source: std::io::Error,
        fix: impl Into<String>,
    ) -> Self {
        Error::File { action, path: path.into(), source, fix: fix.into() }
    }
}
