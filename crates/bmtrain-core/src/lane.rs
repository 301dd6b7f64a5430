//! [`Lane`]s, the queues of a device, with [`Mark`]s in them, and the [`DeviceId`] of one. Called by all that launches
//! or orders work; [`backend`](crate::backend) publishes them.

use std::sync::atomic::{AtomicU32, Ordering};

/// An ordered queue of work on a device. Work on one lane runs in the order it was given; lanes run independently
/// until one waits for a [`Mark`] of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Lane {
    /// All ops.
    Compute = 0,
    /// Gathering parameters and reducing gradients over data-parallel ranks.
    Zero = 1,
    /// Tensor-parallel collectives.
    Tensor = 2,
    /// Sends and receives between pipeline stages.
    Pipe = 3,
    /// Transfers between host and device.
    Copy = 4,
}

impl Lane {
    /// Every lane, in the order of their numbers.
    pub const ALL: [Lane; 5] = [Lane::Compute, Lane::Zero, Lane::Tensor, Lane::Pipe, Lane::Copy];

    pub(crate) const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A point in the work of one lane: everything given to the lane before the mark was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The lane it was made on.
    pub lane: Lane,
    /// The backend's key of the mark.
    pub ticket: u64,
}

/// Identity of one backend instance, so that a view of one device is refused by another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceId(u32);

impl DeviceId {
    /// A new identity, unique in this process. Every backend instance takes one when it is built.
    pub fn fresh() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        DeviceId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
