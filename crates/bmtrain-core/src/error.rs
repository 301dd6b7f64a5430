//! The one error type of this crate. Every variant names the operation, what it expected and what it found.

use crate::dtype::DType;
use std::borrow::Cow;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The call of an [`Error::Device`] where there is no driver, or not all of it.
pub(crate) const OPEN_DRIVER: &str = "open the driver";

/// The call of an [`Error::Device`] where there is a driver, but not the device.
pub(crate) const OPEN_DEVICE: &str = "open a device";

/// An error below the level of layers and models.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Shapes, lengths or strides that do not fit the operation.
    #[error("{op}: {what}: expected {expected}, got {got}")]
    Shape {
        /// The operation or kernel.
        op: &'static str,
        /// Argument or relation.
        what: String,
        /// Expected value.
        expected: String,
        /// Value found.
        got: String,
    },
    /// A dtype that the operation does not take.
    #[error("{op}: {what}: expected {expected}, got {got}")]
    DType {
        /// The operation or kernel.
        op: &'static str,
        /// Argument.
        what: String,
        /// Expected dtype.
        expected: String,
        /// Dtype found.
        got: DType,
    },
    /// A setting outside its range, or a combination that has no meaning.
    #[error("{op}: {reason}")]
    Argument {
        /// The operation or kernel.
        op: &'static str,
        /// Reason, with the value.
        reason: String,
    },
    /// An index read from data that is outside its table (token, label, position).
    #[error("{op}: index {index} at position {position} is outside 0..{bound}")]
    Index {
        /// The operation or kernel.
        op: &'static str,
        /// Flat position in the index tensor.
        position: usize,
        /// The index found.
        index: i64,
        /// Size of the table.
        bound: usize,
    },
    /// The backend has no such kernel, or not for these types.
    #[error("backend {backend} has no kernel {kernel}{detail}")]
    Unsupported {
        /// Name of the backend.
        backend: String,
        /// Name of the kernel.
        kernel: &'static str,
        /// Types or shapes that are not covered; empty when the whole kernel is missing.
        detail: String,
    },
    /// No memory left for a request.
    #[error("out of memory: {segment} asked for {requested} bytes with {in_use} bytes in use on {backend}")]
    OutOfMemory {
        /// Name of the backend.
        backend: String,
        /// The segment that asked.
        segment: &'static str,
        /// Bytes asked for.
        requested: usize,
        /// Bytes in use by this process on that device.
        in_use: usize,
    },
    /// The system refused memory, a thread or another resource of the host, as where a limit is reached.
    #[error("{what}: {reason}; {limits}")]
    Refused {
        /// Resource that was refused, and its purpose.
        what: String,
        /// The operating system's message.
        reason: String,
        /// The limits of this process that can be the cause, with their values.
        limits: String,
        /// Fix.
        fix: &'static str,
    },
    /// A value of another device was passed.
    #[error("{op}: a buffer of device {got} was passed to device {expected}")]
    WrongDevice {
        /// The operation or kernel.
        op: &'static str,
        /// Name of the device that was asked.
        expected: String,
        /// Name of the device that owns the buffer.
        got: String,
    },
    /// Ranks that did not do the same thing together: a lost rank, a deadline, calls that do not agree.
    #[error("{operation} (number {sequence} of its group): {reason}")]
    Communication {
        /// The collective, with length and type.
        operation: String,
        /// Number of the call in the group, from 0, on this rank.
        sequence: u64,
        /// Reason, with the ranks that it concerns.
        reason: String,
        /// The ranks that are missing, lost or disagree, in the group's numbering.
        ranks: Vec<usize>,
    },
    /// The processes were not started in a way that works.
    #[error("launch: {place}: {reason}; {fix}")]
    Launch {
        /// The rank, the file or the setting.
        place: String,
        /// Reason.
        reason: String,
        /// Fix.
        fix: String,
    },
    /// Another rank ended with an exit code that holds for all ranks: starting them again does not help by itself.
    #[error("{reason}")]
    RankEnded {
        /// The rank.
        rank: usize,
        /// Its exit code.
        code: u8,
        /// Its own message.
        reason: String,
    },
    /// A device that was chosen by name and that this machine, or this program, cannot offer.
    #[error("device {asked}: {reason}; {fix}")]
    NoDevice {
        /// The choice, as it is written.
        asked: String,
        /// Why it cannot be used.
        reason: String,
        /// Fix.
        fix: Cow<'static, str>,
    },
    /// The driver or a library of the device reported a failure.
    #[error("{backend}: {call} failed: {reason}")]
    Device {
        /// Name of the backend.
        backend: String,
        /// The call that failed.
        call: &'static str,
        /// The driver's message.
        reason: String,
    },
}

impl Error {
    /// A [`Error::Shape`] from displayable parts.
    pub fn shape(
        op: &'static str,
        what: impl Into<String>,
        expected: impl std::fmt::Display,
        got: impl std::fmt::Display,
    ) -> Self {
        Error::Shape { op, what: what.into(), expected: expected.to_string(), got: got.to_string() }
    }

    /// A [`Error::OutOfMemory`] of a backend, for the pool to complete.
    pub fn no_memory(backend: impl Into<String>, requested: usize) -> Self {
        Error::OutOfMemory { backend: backend.into(), segment: "the pool", requested, in_use: 0 }
    }

    /// A [`Error::Argument`].
    pub fn argument(op: &'static str, reason: impl Into<String>) -> Self {
        Error::Argument { op, reason: reason.into() }
    }
}
