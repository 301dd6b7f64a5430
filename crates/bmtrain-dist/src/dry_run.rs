//! Dry runs: the memory and the work of a training step, counted on a backend that computes nothing, for one of any
//! number of simulated ranks.
//!
//! [`count`] calls a closure with a [`Device`] whose pool works as a real one does (the same rounding, slabs and
//! offsets) over a backend that allocates nothing, and with the communicator of a simulated rank. The closure builds
//! its model and runs its own training step; [`Requirements`] is what the rank's pool then reports. The code that is
//! counted is the code that will run. Numbers read from the device are zeros. Called by the `plan` program.
//!
//! Where nothing can be run, because hundreds of layouts are compared or there is no recipe yet, memory is an estimate
//! by formula: `model_center_train::formula`.

use bmtrain_core::comm::{Communicator, CountingRank};
use bmtrain_core::cpu;
use bmtrain_core::kernel::Cost;
use bmtrain_core::pool::{CUDA_SLAB_BYTES, Report};
use bmtrain_core::wrap::{Counting, KernelCount};
use bmtrain_core::{Backend, Device};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A simulated rank, and the requests of its device's pool for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimulatedRank {
    /// The rank's number.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Bytes that the pool requests from the system at a time for short-lived tensors.
    pub slab_bytes: usize,
    /// Whether the device is a CUDA device, whose backend launches other kernels and keeps its memory.
    pub is_cuda: bool,
}

impl SimulatedRank {
    /// The first of `ranks` ranks, on the CPU.
    pub fn first_of(ranks: usize) -> Self {
        SimulatedRank { rank: 0, ranks, slab_bytes: cpu::SLAB_BYTES, is_cuda: false }
    }

    /// The first of `ranks` ranks, each with a CUDA device of its own.
    pub fn first_on_cuda(ranks: usize) -> Self {
        SimulatedRank { rank: 0, ranks, slab_bytes: CUDA_SLAB_BYTES, is_cuda: true }
    }
}

/// A rank's requirements of its device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirements {
    /// Memory of the pool, in bytes: peaks by segment and in total, and what each segment holds at the total peak.
    pub memory: Report,
    /// Calls and work of every kernel.
    pub kernels: BTreeMap<&'static str, KernelCount>,
}

impl Requirements {
    /// Work of all kernels.
    pub fn cost(&self) -> Cost {
        self.kernels.values().fold(Cost::default(), |sum, kernel| Cost {
            flops: sum.flops + kernel.cost.flops,
            bytes: sum.bytes + kernel.cost.bytes,
        })
    }
}

/// Call `run` where nothing is allocated and nothing computed, and count what it would need.
///
/// Two optimizer steps are the least that show the peak: the optimizer allocates its state in the first one, so only
/// the second has state and activations at once. Build models with
/// [`InitMode::Uninitialized`](crate::param::InitMode::Uninitialized), so that no values are needed.
///
/// ```
/// use bmtrain_core::{Ctx, DType, Segment, Tensor, Var, autograd::Randomness, ops};
/// use bmtrain_dist::nn::linear::{Linear, LinearOptions};
/// use bmtrain_dist::optim::{Adam, AdamOptions, Clip, OptimManager, ParamGroup};
/// use bmtrain_dist::dry_run::{SimulatedRank, count};
/// use bmtrain_dist::param::{Builder, BuilderOptions, Init, InitMode};
/// use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
///
/// let (needs, ()) = count(SimulatedRank::first_of(4), |device, ranks| -> bmtrain_dist::Result<()> {
///     let sharding = Sharding { ranks, level: ZeroLevel::Three, sum: GradientSum::Fast, prefetch: true };
///     let init = InitMode::Uninitialized;
///     let builder = Builder::new(device, BuilderOptions { init, sharding, ..BuilderOptions::default() });
///     let layer = Linear::new(&builder, LinearOptions::new(1024, 1, false, Init::normal(0.02)))?;
///     let mut optim = OptimManager::new(device, Clip::default())?;
///     let groups = ParamGroup::by_decay(&builder.finish(), 0.01);
///     optim.add(Box::new(Adam::new(groups, AdamOptions::default())?), 1e-3);
///     for step in 0..2 {
///         let mut cx = Ctx::training(device, Randomness { seed: 0, step, micro_batch: 0 });
///         let x = Var::constant(Tensor::empty_in(device, [1, 1024], DType::F32, Segment::Data)?);
///         let loss = layer.forward(&x, &mut cx)?; // [1, 1]
///         optim.backward(&loss, 1.0, &mut cx)?;
///         optim.step()?;
///     }
///     Ok(())
/// })?;
/// let moments = 2 * 4 * 1024 / 4;
/// assert!(needs.memory.segments.iter().any(|(segment, use_)| *segment == Segment::Optimizer && use_.peak >= moments));
/// # Ok::<(), bmtrain_dist::Error>(())
/// ```
pub fn count<T, E: From<bmtrain_core::Error>>(
    rank: SimulatedRank,
    run: impl FnOnce(&Device, Arc<dyn Communicator>) -> Result<T, E>,
) -> Result<(Requirements, T), E> {
    let counting = Arc::new(Counting::new(rank.slab_bytes).standing_for_cuda(rank.is_cuda));
    let device = Device::new(Arc::clone(&counting) as Arc<dyn Backend>);
    let ranks: Arc<dyn Communicator> = Arc::new(CountingRank::new(rank.rank, rank.ranks)?);
    let result = run(&device, ranks)?;
    Ok((Requirements { memory: device.memory(), kernels: counting.kernels() }, result))
}
