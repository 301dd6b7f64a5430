//! The error type of the crates of model-center: every variant has place, reason and fix.

mod exit_status;

pub use exit_status::{ExitStatus, layout_error, render_error};

use bmtrain_core::Error as CoreError;
use bmtrain_core::limits::{explain, reached};
use bmtrain_dist::Error as DistError;
use bmtrain_dist::checkpoint::Fault;
use bmtrain_dist::launch::RankFailure;
use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

/// Result of these crates.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error, grouped by what the user has to correct.
///
/// The group decides the exit code of a program, see [`Error::exit_code`]. `Display` is one plain line;
/// [`crate::error::render_error`] lays an error out for a terminal.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A recipe is wrong: a key, a value, or a combination of settings.
    #[error("{place}: {reason} (fix: {fix})")]
    Recipe {
        /// File, line and key.
        place: String,
        /// Reason.
        reason: String,
        /// Fix.
        fix: String,
    },
    /// An argument of a function or of a command line is wrong.
    #[error("{place}: {reason} (fix: {fix})")]
    Argument {
        /// The name of the argument.
        place: String,
        /// Reason.
        reason: String,
        /// Fix.
        fix: String,
    },
    /// A record, a data file or a label is wrong.
    #[error("{place}: {reason} (fix: {fix})")]
    Data {
        /// File, line and column.
        place: String,
        /// Reason.
        reason: String,
        /// Fix.
        fix: String,
    },
    /// A model directory, a weights file or a configuration is wrong.
    #[error("{place}: {reason} (fix: {fix})")]
    Model {
        /// File and tensor or field.
        place: String,
        /// Reason.
        reason: String,
        /// Fix.
        fix: String,
    },
    /// An output directory cannot be used.
    #[error("{place}: {reason} (fix: {fix})")]
    Output {
        /// Why, for a program that distinguishes.
        fault: OutputFault,
        /// The directory or a file in it.
        place: String,
        /// Reason.
        reason: String,
        /// Fix.
        fix: String,
    },
    /// The operating system refused a file operation.
    #[error("{}: cannot {action}: {} (fix: {})", path.display(), explain(source), file_fix(source, fix))]
    File {
        /// Attempted action, e.g. `read`.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
        /// Fix, where no limit of the process is the reason.
        fix: String,
    },
    /// Training ended in numbers that are not finite.
    #[error("{place}: {reason} (fix: {fix})")]
    Diverged {
        /// Step, and the parameter or sample where the first such number was seen.
        place: String,
        /// The value that is not finite.
        reason: String,
        /// Fix.
        fix: String,
    },
    /// A run failed again and again without getting any further.
    #[error("{place}: {reason} (fix: {fix})")]
    NoProgress {
        /// The directory of the run.
        place: String,
        /// Number of times, and first step.
        reason: String,
        /// Fix.
        fix: String,
    },
    /// An error of the layers below.
    #[error(transparent)]
    Dist(#[from] bmtrain_dist::Error),
    /// An error of the core.
    #[error(transparent)]
    Core(#[from] bmtrain_core::Error),
}

/// Why an output directory cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OutputFault {
    /// It holds a run of another recipe.
    OtherRecipe,
    /// It holds a run of this recipe, or a process is writing one.
    InUse,
    /// It holds something else, is not a directory, or an output has a name that cannot be used.
    Unusable,
}

/// Fix of a refused file operation: what its limit asks for, where one is the reason.
fn file_fix<'a>(source: &std::io::Error, fix: &'a str) -> &'a str {
    reached(source).map_or(fix, |resource| resource.fix())
}

/// The parts of an error of this crate's own, for a layout.
pub(crate) struct ErrorParts<'a> {
    /// The group, as in `error[recipe]`.
    pub(crate) kind: &'static str,
    pub(crate) place: Cow<'a, str>,
    pub(crate) reason: Cow<'a, str>,
    pub(crate) fix: &'a str,
}

impl Error {
    /// Group, place, reason and fix; `None` for an error of the crates below.
    pub(crate) fn parts(&self) -> Option<ErrorParts<'_>> {
        let (kind, place, reason, fix) = match self {
            Error::Recipe { place, reason, fix } => ("recipe", place, reason, fix),
            Error::Argument { place, reason, fix } => ("argument", place, reason, fix),
            Error::Data { place, reason, fix } => ("data", place, reason, fix),
            Error::Model { place, reason, fix } => ("model", place, reason, fix),
            Error::Output { place, reason, fix, .. } => ("output", place, reason, fix),
            Error::Diverged { place, reason, fix } => ("diverged", place, reason, fix),
            Error::NoProgress { place, reason, fix } => ("no-progress", place, reason, fix),
            Error::File { action, path, source, fix } => {
                let reason = format!("cannot {action}: {}", explain(source)).into();
                let place = path.display().to_string().into();
                return Some(ErrorParts { kind: "file", place, reason, fix: file_fix(source, fix) });
            }
            Error::Dist(_) | Error::Core(_) => return None,
        };
        Some(ErrorParts { kind, place: place.into(), reason: reason.into(), fix })
    }

    /// Group and reason, without place and fix: for other ranks, to which these mean nothing.
    pub fn summary(&self) -> String {
        match self.parts() {
            Some(ErrorParts { kind, reason, .. }) => format!("error[{kind}]: {reason}"),
            None => self.to_string(),
        }
    }

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
            Error::Recipe { .. } | Error::Argument { .. } | Error::Output { .. } => 2,
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

    /// A wrong argument.
    pub fn argument(place: impl Into<String>, reason: impl Into<String>, fix: impl Into<String>) -> Self {
        Error::Argument { place: place.into(), reason: reason.into(), fix: fix.into() }
    }

    /// An argument that changes nothing, with the reason.
    pub fn without_effect(place: impl Into<String>, why: &str) -> Self {
        Error::argument(place, format!("it has no effect: {why}"), "leave it out")
    }

    /// An output directory that cannot be used.
    pub fn output(
        fault: OutputFault,
        place: impl Into<String>,
        reason: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Error::Output { fault, place: place.into(), reason: reason.into(), fix: fix.into() }
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

/// As [`Error`] displays: `main` of a program that returns one prints it so.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl RankFailure for Error {
    fn exit_code(&self) -> u8 {
        ExitStatus::from(self).code()
    }

    fn report(&self) -> String {
        render_error(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `fn main() -> Result<()>` prints an error by `Debug`: it has to be the line that names place, reason and fix.
    #[test]
    fn an_error_that_main_returns_is_printed_as_it_displays() {
        let refused = || std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        let memory = CoreError::OutOfMemory { backend: "cpu".into(), segment: "activations", requested: 8, in_use: 9 };
        for error in [
            Error::recipe("r.toml:3:1", "`train.lr` is \"fast\"", "write e.g. lr = 5e-5"),
            Error::argument("--dtype", "it is f8", "choose bf16"),
            Error::without_effect("--seed", "nothing is random"),
            Error::data("a.csv:2", "no label", "add one"),
            Error::model("m/config.json", "no sizes", "add them"),
            Error::output(OutputFault::InUse, "runs/a", "it is used", "choose another"),
            Error::diverged("step 3", "the loss is NaN", "lower train.lr"),
            Error::NoProgress { place: "runs/a".into(), reason: "it failed".into(), fix: "mend it".into() },
            Error::file("read", "a.csv", refused(), "check the path"),
            Error::Dist(DistError::setting("schedule", "it is wrong")),
            Error::Core(memory),
        ] {
            assert_eq!(format!("{error:?}"), error.to_string());
            assert_eq!(format!("{:#?}", error), error.to_string());
        }
        let error = Error::recipe("r.toml:3:1", "it is wrong", "mend it");
        assert_eq!(format!("{error:?}"), "r.toml:3:1: it is wrong (fix: mend it)");
    }
}
