//! Accounts of memory: what it is used for, how much of it, and the report of a device. Called by the pool, by buffers
//! of the host, and by what prints the report.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Purpose of memory; only for accounting and for keeping long-lived storages apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Segment {
    /// Parameter storages: this rank's shards, or whole ones where nothing is cut.
    Parameters,
    /// Whole parameters of blocks that are at work, gathered from all ranks' shards.
    Gathered,
    /// Gradients of parameters.
    Gradients,
    /// Optimizer moments and master copies.
    Optimizer,
    /// Values and gradients inside the tape.
    Activations,
    /// Scratch of ops.
    Workspace,
    /// Batches.
    Data,
    /// Optimizer state, parameters and block inputs in the host's memory: none of the device's, so outside the pool and
    /// the total.
    Offload,
}

impl Segment {
    /// Every segment, in report order.
    pub const ALL: [Segment; 8] = [
        Segment::Parameters,
        Segment::Gathered,
        Segment::Gradients,
        Segment::Optimizer,
        Segment::Activations,
        Segment::Workspace,
        Segment::Data,
        Segment::Offload,
    ];

    /// Lower-case name in reports and errors.
    pub const fn name(self) -> &'static str {
        match self {
            Segment::Parameters => "parameters",
            Segment::Gathered => "gathered",
            Segment::Gradients => "gradients",
            Segment::Optimizer => "optimizer",
            Segment::Activations => "activations",
            Segment::Workspace => "workspace",
            Segment::Data => "data",
            Segment::Offload => "offload",
        }
    }

    pub(super) const fn long_lived(self) -> bool {
        matches!(self, Segment::Parameters | Segment::Optimizer)
    }
}

/// Bytes in use and their high-water mark.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes in use now, rounded up to whole chunks.
    pub now: usize,
    /// The most that was in use at once.
    pub peak: usize,
}

impl Usage {
    pub(super) fn add(&mut self, bytes: usize) {
        self.now += bytes;
        self.peak = self.peak.max(self.now);
    }
}

/// Memory of one device as the pool sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Use by segment, in the order of [`Segment::ALL`].
    pub segments: Vec<(Segment, Usage)>,
    /// Use over all segments of the device together; its peak is below the sum of the peaks.
    pub total: Usage,
    /// Bytes of each segment at the moment of [`Report::total`]'s peak, in the order of [`Segment::ALL`]; they add up
    /// to it.
    pub at_peak: Vec<(Segment, usize)>,
    /// Bytes taken from the system.
    pub system_bytes: usize,
    /// The most of them that were ever handed out, the parts in use and released parts between them. Where
    /// the system gives memory page by page as it is touched, as the CPU's does, the rest of a slab costs nothing.
    pub touched: Usage,
    /// Number of requests to the system since the device was made.
    pub system_requests: u64,
}

/// Use of the host's memory beside one device, whose buffers may be dropped on threads of its lanes.
#[derive(Debug, Default)]
pub(crate) struct HostAccount {
    now: AtomicUsize,
    peak: AtomicUsize,
}

impl HostAccount {
    pub(crate) fn usage(&self) -> Usage {
        Usage { now: self.now.load(Ordering::Relaxed), peak: self.peak.load(Ordering::Relaxed) }
    }

    pub(crate) fn reset_peak(&self) {
        self.peak.store(self.now.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    pub(crate) fn add(&self, bytes: usize) {
        let now = self.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(now, Ordering::Relaxed);
    }

    pub(crate) fn subtract(&self, bytes: usize) {
        self.now.fetch_sub(bytes, Ordering::Relaxed);
    }
}
