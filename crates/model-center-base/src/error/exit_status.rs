//! End of a program: the exit codes, and how an error is shown.
//!
//! Defines [`ExitStatus`] and [`render_error`]. Called by `main` of every program.

use crate::Error;
use crate::error::ErrorParts;
use bmtrain_core::Error as CoreError;
use bmtrain_core::limits::{Resource, limits};
use bmtrain_dist::Error as DistError;

/// Most lines of an error; it must not scroll off a screen.
const MAX_LINES: usize = 12;
/// Longest line of an error.
const MAX_COLUMNS: usize = 400;

/// The exit codes, the same for every program. A scheduler should start the same command again on
/// [`Peer`](ExitStatus::Peer) and [`Stopped`](ExitStatus::Stopped), and on nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitStatus {
    /// Everything was done.
    Done = 0,
    /// A defect of the program.
    Internal = 1,
    /// The command line or the recipe is wrong.
    Usage = 2,
    /// Data or a model directory are wrong.
    Data = 3,
    /// A checkpoint, or the recorded model of a run, is damaged.
    Checkpoint = 4,
    /// Memory or disk ran out or were refused.
    Resources = 5,
    /// Another rank was lost.
    Peer = 6,
    /// Training ended in numbers that are not finite.
    Diverged = 7,
    /// Stopped on request, state saved.
    Stopped = 75,
    /// Restarted several times without progress: do not restart.
    NoProgress = 93,
    /// Interrupted a second time.
    Interrupted = 130,
}

impl ExitStatus {
    /// Every status.
    pub const ALL: &[ExitStatus] = {
        use ExitStatus::*;
        &[Done, Internal, Usage, Data, Checkpoint, Resources, Peer, Diverged, Stopped, NoProgress, Interrupted]
    };

    /// The number.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Meaning of the number, for the last line of an error and for manuals.
    pub const fn meaning(self) -> &'static str {
        self.texts().0
    }

    /// A name for logs: the `reason` with which `metrics.jsonl` ends when a run did not end by itself.
    pub const fn name(self) -> &'static str {
        self.texts().1
    }

    /// Meaning and name.
    const fn texts(self) -> (&'static str, &'static str) {
        match self {
            ExitStatus::Done => ("done", "done"),
            ExitStatus::Internal => ("internal error", "internal_error"),
            ExitStatus::Usage => ("usage or recipe", "usage"),
            ExitStatus::Data => ("data or model files", "data"),
            ExitStatus::Checkpoint => ("checkpoint integrity", "checkpoint"),
            ExitStatus::Resources => ("memory or disk", "resources"),
            ExitStatus::Peer => ("peer or communication, retry", "peer"),
            ExitStatus::Diverged => ("diverged", "diverged"),
            ExitStatus::Stopped => ("stopped on request, run again to go on", "stopped"),
            ExitStatus::NoProgress => ("no progress, do not restart", "no_progress"),
            ExitStatus::Interrupted => ("interrupted twice", "interrupted"),
        }
    }

    /// Whether a scheduler should run the same command again.
    pub const fn should_requeue(self) -> bool {
        matches!(self, ExitStatus::Peer | ExitStatus::Stopped)
    }
}

impl From<&Error> for ExitStatus {
    fn from(error: &Error) -> Self {
        let code = error.exit_code();
        let known = ExitStatus::ALL.iter().copied().find(|status| i32::from(status.code()) == code);
        known.unwrap_or(ExitStatus::Internal)
    }
}

/// An error laid out for a terminal: `error[kind]: reason`, then place and fix on lines of their own.
pub fn layout_error(error: &Error) -> String {
    let parts = match error {
        Error::Core(below) => Some(core_parts(below)),
        Error::Dist(below) => Some(dist_parts(below)),
        own => own.parts(),
    };
    parts.map_or_else(
        || error.to_string(),
        |ErrorParts { kind, place, reason, fix }| format!("error[{kind}]: {reason}\n  --> {place}\n  fix: {fix}"),
    )
}

/// [`layout_error`] as it is shown on standard error: at most 12 lines; the last one names the exit code.
pub fn render_error(error: &Error) -> String {
    let status = ExitStatus::from(error);
    let text = layout_error(error);
    let clip = |line: &str| -> String {
        if line.chars().count() <= MAX_COLUMNS {
            return line.to_owned();
        }
        line.chars().take(MAX_COLUMNS - 1).chain(['…']).collect()
    };
    let lines: Vec<&str> = text.lines().collect();
    let mut out: Vec<String> = if lines.len() < MAX_LINES {
        lines.iter().map(|line| clip(line)).collect()
    } else {
        // The fix is at the end, so the middle goes.
        let (head, tail) = lines.split_at(MAX_LINES - 5);
        let left_out = tail.len().saturating_sub(3);
        let end = tail.iter().skip(left_out).map(|line| clip(line));
        head.iter().map(|line| clip(line)).chain([format!("  … {left_out} more lines")]).chain(end).collect()
    };
    out.push(format!("  exit {}: {}", status.code(), status.meaning()));
    out.join("\n")
}

const DEFECT: &str = "this is a defect of the program: report it with the command, the recipe and these lines";

/// The layers below know the operation that failed, but neither recipe nor file: the fix is added here.
fn core_parts(error: &CoreError) -> ErrorParts<'_> {
    let (kind, place, reason, fix) = match error {
        CoreError::NoDevice { asked, reason, fix } => {
            ("device", format!("device {asked}"), reason.into(), fix.as_ref())
        }
        CoreError::Refused { what, reason, limits, fix } => {
            ("limit", what.clone(), format!("the system refused this process: {reason}; {limits}").into(), *fix)
        }
        CoreError::Launch { place, reason, fix } => ("launch", place.clone(), reason.into(), fix.as_str()),
        CoreError::OutOfMemory { backend, segment, .. } => (
            "memory",
            format!("{backend}, {segment}"),
            format!("{error}{}", if backend.starts_with("cpu") { memory_limits() } else { String::new() }).into(),
            "pass fewer or shorter rows at a time (in a recipe train.micro_batch_size and data.max_length), set \
             train.recompute = \"blocks\", or use a smaller model",
        ),
        other => {
            let (kind, place, fix) = place_of(other);
            (kind, place, other.to_string().into(), fix)
        }
    };
    ErrorParts { kind, place: place.into(), reason, fix }
}

/// Kind, place and fix of an error whose own text is the reason.
fn place_of(error: &CoreError) -> (&'static str, String, &'static str) {
    match error {
        CoreError::RankEnded { rank, .. } => {
            ("peer", format!("rank {rank}"), "correct what the error of this rank names, then start all ranks again")
        }
        CoreError::Communication { operation, ranks, .. } => (
            "peer",
            format!("{operation}, ranks {ranks:?}"),
            "look for the first error of these ranks, then start again",
        ),
        CoreError::Device { backend, call, .. } => {
            ("device", format!("{backend}, {call}"), "see whether other programs can use the device and its driver")
        }
        CoreError::Unsupported { backend, kernel, .. } => {
            ("device", format!("{backend}, kernel {kernel}"), "use another device or another type of the parameters")
        }
        CoreError::Shape { op, .. }
        | CoreError::DType { op, .. }
        | CoreError::Argument { op, .. }
        | CoreError::Index { op, .. }
        | CoreError::WrongDevice { op, .. } => ("internal", format!("operation {op}"), DEFECT),
        _ => ("internal", "below the model".to_owned(), DEFECT),
    }
}

/// The limits on memory of this process as a further part of a sentence; nothing where none is set.
fn memory_limits() -> String {
    limits(Some(Resource::Memory)).iter().map(|limit| format!("; limit: {limit}")).collect()
}

fn dist_parts(error: &DistError) -> ErrorParts<'_> {
    let (kind, place, reason, fix) = match error {
        DistError::Core(below) => return core_parts(below),
        DistError::Launch { place, reason, fix } => ("launch", place, reason, fix),
        DistError::Rendezvous { place, reason, fix, .. } => ("peer", place, reason, fix),
        DistError::Checkpoint { place, reason, fix, .. } => ("checkpoint", place, reason, fix),
        other => {
            let place = match other {
                DistError::RankThread { rank, .. } => format!("rank {rank}"),
                DistError::NotGathered { name } | DistError::Parameter { name, .. } => format!("parameter {name}"),
                DistError::Setting { who, .. } => (*who).to_owned(),
                _ => "below the model".to_owned(),
            };
            return ErrorParts { kind: "internal", place: place.into(), reason: other.to_string().into(), fix: DEFECT };
        }
    };
    ErrorParts { kind, place: place.into(), reason: reason.into(), fix }
}
