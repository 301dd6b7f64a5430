//! What a run needs before it runs: a training step made on a backend that counts, as one rank of ranks that are not
//! there.
//!
//! [`count`] gives a closure a [`Device`] whose pool works as a real one does (the same rounding, slabs and places)
//! over a backend that takes no memory, and a communicator for a rank among as many as one likes. The closure builds
//! its model and runs its own training step; [`Needs`] is what the rank's pool then says. What is counted is the code
//! that will run, so there is no formula to go stale. Numbers read back from the device are zeros. Called by the `plan`
//! program.

use bmtrain_core::comm::{Communicator, CountingRank};
use bmtrain_core::cpu;
use bmtrain_core::kernel::Cost;
use bmtrain_core::pool::{CUDA_SLAB_BYTES, Report};
use bmtrain_core::wrap::{Counting, KernelCount};
use bmtrain_core::{Backend, Device};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Which rank is counted, and how its device's pool asks for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stand {
    /// The rank's number.
    pub rank: usize,
    /// Number of data-parallel ranks.
    pub ranks: usize,
    /// What the pool takes from the system at a time for short-lived tensors, bytes.
    pub slab_bytes: usize,
    /// Whether the device is a CUDA device, whose backend launches other kernels and keeps its memory.
    pub is_cuda: bool,
}

impl Stand {
    /// The first of so many ranks, on the CPU.
    pub fn first_of(ranks: usize) -> Self {
        Stand { rank: 0, ranks, slab_bytes: cpu::SLAB_BYTES, is_cuda: false }
    }

    /// The first of `ranks` ranks, each with a CUDA device of its own.
    pub fn first_on_cuda(ranks: usize) -> Self {
        Stand { rank: 0, ranks, slab_bytes: CUDA_SLAB_BYTES, is_cuda: true }
    }
}

/// What a rank needs of its device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needs {
    /// Memory of the pool, in bytes: peaks by segment and over all, and what each segment holds when all is at its
    /// peak.
    pub memory: Report,
    /// Calls and work of every kernel.
    pub kernels: BTreeMap<&'static str, KernelCount>,
}

impl Needs {
    /// Work of all kernels.
    pub fn cost(&self) -> Cost {
        self.kernels.values().fold(Cost::default(), |sum, kernel| Cost {
            flops: sum.flops + kernel.cost.flops,
            bytes: sum.bytes + kernel.cost.bytes,
        })
    }
}

/// Run `run` where nothing is allocated and nothing computed, and see what it would have taken.
///
/// Two optimizer steps are the least that show the peak: the optimizer takes memory for its state in the first one, so
/// only the second has state and activations at once. Build models with [`Birth::Leave`](crate::param::Birth::Leave),
/// so that no values are waited for.
///
/// ```
/// use bmtrain_core::{Ctx, DType, Segment, Tensor, Var, autograd::Randomness, ops};
/// use bmtrain_dist::nn::linear::{Linear, LinearOptions};
/// use bmtrain_dist::optim::{Adam, AdamOptions, Clip, OptimManager, ParamGroup};
/// use bmtrain_dist::param::{Birth, Builder, BuilderOptions, Init};
/// use bmtrain_dist::plan::{Stand, count};
/// use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
///
/// let (needs, ()) = count(Stand::first_of(4), |device, ranks| -> bmtrain_dist::Result<()> {
///     let sharding = Sharding { ranks, level: ZeroLevel::Three, sum: GradientSum::Fast, prefetch: true };
///     let builder = Builder::new(device, BuilderOptions { birth: Birth::Leave, sharding, ..BuilderOptions::default() });
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
///
/// # Errors
/// Those of `run`; a rank that is not below the number of ranks.
pub fn count<T, E: From<bmtrain_core::Error>>(
    stand: Stand,
    run: impl FnOnce(&Device, Arc<dyn Communicator>) -> Result<T, E>,
) -> Result<(Needs, T), E> {
    let counting = Arc::new(Counting::new(stand.slab_bytes).standing_for_cuda(stand.is_cuda));
    let device = Device::new(Arc::clone(&counting) as Arc<dyn Backend>);
    let ranks: Arc<dyn Communicator> = Arc::new(CountingRank::new(stand.rank, stand.ranks)?);
    let result = run(&device, ranks)?;
    Ok((Needs { memory: device.memory(), kernels: counting.kernels() }, result))
}
