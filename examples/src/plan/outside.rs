//! Memory that the pools do not see, estimated from above: the program with its data, files on their way, threads, exchange.

use super::count::Counted;
use super::disk::Disk;
use super::{Layout, Subject};
use bmtrain_core::comm::host::HostOptions;
use bmtrain_core::{DType, Segment};
use bmtrain_dist::launch::threads_per_rank;
use model_center::recipe::Resolved;

/// Scratch of a thread: operands of products are packed into up to 4 MiB, tiles of attention take the rest.
const THREAD_BYTES: u64 = 8 << 20;
/// Chunks of shared memory that a rank stages for collectives.
const STAGED_CHUNKS: u64 = 16;
/// A token in a batch on the host: id, segment and mask, and the label where that is a word.
const TOKEN_BYTES: u64 = 8 + 8 + 1 + 8;

/// Memory outside of the pools, in bytes. Of a process, and of each of its ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outside {
    /// The program, the tokenizer and the data set, as they were found in this process.
    pub process: u64,
    /// The part of it that the data sets are.
    pub data: u64,
    /// The largest parameter on its way from and to files.
    pub files: u64,
    /// Optimizer state in the host's memory; counted, not estimated.
    pub offload: u64,
    /// The rank's part of a checkpoint, copied while training goes on.
    pub snapshot: u64,
    /// Scratch of the rank's threads.
    pub threads: u64,
    /// Memory shared with other ranks.
    pub exchange: u64,
    /// Batches on the host.
    pub batches: u64,
}

impl Outside {
    /// What the ranks of a process share.
    pub fn process_bytes(&self) -> u64 {
        self.process
    }

    /// What each rank takes.
    pub fn rank_bytes(&self) -> u64 {
        self.files + self.offload + self.snapshot + self.threads + self.exchange + self.batches
    }
}

/// Estimate a run's.
pub fn estimate(
    subject: &Subject<'_>,
    resolved: &Resolved,
    layout: Layout,
    (counted, disk): (&Counted, &Disk),
) -> Outside {
    let (batches, sizes) = (counted.batches, counted.parameters);
    let threads = threads_per_rank(resolved.device.threads.count(), layout.local_ranks);
    // At its end a run takes the hash of all its state, a parameter's at a time: two moments, or three with a master.
    let files = if resolved.model.dtype == DType::F32 { 2 } else { 3 } * 4 * sizes.largest;
    let eval = batches.eval.map_or(0, |rows| rows.tokens() * layout.ranks);
    let data = subject.job.eval.iter().chain([&subject.job.train]).map(|data| data.bytes() as u64).sum();
    Outside {
        process: subject.resident,
        data,
        files,
        offload: counted.at_peak(Segment::Offload),
        snapshot: if disk.kept == 0 { 0 } else { disk.checkpoint.div_ceil(layout.ranks as u64) },
        threads: threads as u64 * THREAD_BYTES,
        exchange: if layout.ranks > 1 { STAGED_CHUNKS * HostOptions::default().chunk as u64 } else { 0 },
        batches: eval.max(batches.train.tokens()) as u64 * TOKEN_BYTES,
    }
}
