//! Memory of the host that the pools do not contain, estimated from above: the program with its data, files on their
//! way, threads, checkpoints, communication.

use super::count::Counted;
use super::disk::Disk;
use super::{Planner, RankLayout};
use crate::train::RunData;
use bmtrain_core::Segment;
use bmtrain_core::comm::host::HostOptions;
use bmtrain_dist::launch::threads_per_rank;
use model_center_recipe::Resolved;

/// The most that a thread keeps of operands of products, which it packs, and that a rank copies to the host at a time
/// when it reads its state at the end of a run.
const MAX_PACKED: u64 = 4 << 20;
/// Stack and small allocations of a thread.
const THREAD_BYTES: u64 = 512 << 10;
/// The same of a rank's other threads, which drive the lanes and save.
const RANK_BYTES: u64 = 2 << 20;
/// Host memory of CUDA's driver and libraries for each device, page-locked staging buffers included.
const CUDA_HOST_BYTES: u64 = 256 << 20;
/// Chunks of shared memory that a rank stages for collectives.
const STAGED_CHUNKS: u64 = 16;
/// A token in a batch on the host: id, segment and mask, and the label where that is a token.
const TOKEN_BYTES: u64 = 8 + 8 + 1 + 8;

/// Memory of the host outside of the pools, in bytes. Of a process, and of each of its ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outside {
    /// The program, the tokenizer and the data set: anonymous memory of this process, which has read them too.
    pub process: u64,
    /// The part of it that the data sets are.
    pub data: u64,
    /// Pages of mapped files, such as the program: not part of any sum, since the system can read them again.
    pub mapped: u64,
    /// The largest parameter on its way to a file; of the first rank alone, which writes.
    pub files: u64,
    /// Optimizer state, parameters and block inputs in the host's memory; counted, not estimated.
    pub offload: u64,
    /// The rank's part of a checkpoint, copied while training goes on.
    pub snapshot: u64,
    /// Scratch and stacks of the rank's threads; beside a CUDA device also what the driver takes of the host's memory.
    pub threads: u64,
    /// Memory shared with other ranks.
    pub exchange: u64,
    /// Batches on the host.
    pub batches: u64,
}

impl Outside {
    /// Anonymous memory that each rank takes.
    pub fn rank_bytes(&self) -> u64 {
        self.offload + self.snapshot + self.threads + self.batches
    }
}

/// Estimate a run's.
pub fn estimate(
    planner: &Planner<'_>,
    resolved: &Resolved,
    layout: RankLayout,
    (counted, disk): (&Counted, &Disk),
) -> Outside {
    let (batches, sizes) = (counted.batches, counted.parameters);
    let threads = threads_per_rank(resolved.device.threads.count(), layout.local_ranks) as u64;
    let packed = MAX_PACKED.min(4 * sizes.largest);
    let eval = batches.eval.map_or(0, |rows| rows.tokens() * resolved.parallel.data_ranks(layout.ranks));
    let data = planner.setup.parts().map(RunData::bytes).sum();
    Outside {
        process: planner.resident.anonymous_bytes,
        data,
        mapped: planner.resident.file_bytes,
        files: sizes.to_file,
        offload: counted.at_peak(Segment::Offload),
        snapshot: if disk.kept == 0 { 0 } else { disk.checkpoint.div_ceil(layout.ranks as u64) },
        threads: threads * (THREAD_BYTES + packed)
            + RANK_BYTES
            + packed
            + if layout.on_cuda { CUDA_HOST_BYTES } else { 0 },
        exchange: if layout.ranks > 1 { STAGED_CHUNKS * HostOptions::default().chunk as u64 } else { 0 },
        batches: eval.max(batches.train.tokens()) as u64 * TOKEN_BYTES,
    }
}
