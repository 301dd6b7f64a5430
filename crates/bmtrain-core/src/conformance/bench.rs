//! Times of the cases, with the amount of work.

use super::case::Case;
use super::execute::{Bound, Gradients};
use super::values;
use crate::bench::{Rounds, measure};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::Cost;
use crate::wrap::Counting;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time and work of a case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measurement {
    /// Median seconds of the forward pass; of the kernel where there is no op.
    pub forward: f64,
    /// Median seconds of the backward pass; 0 where there is none.
    pub backward: f64,
    /// Work of both together.
    pub cost: Cost,
}

impl Measurement {
    /// Billions of floating-point operations per second.
    pub fn gflops(&self) -> f64 {
        self.cost.flops as f64 / (self.forward + self.backward) / 1e9
    }

    /// Billions of bytes per second, each argument of each kernel counted once.
    pub fn gbytes(&self) -> f64 {
        self.cost.bytes as f64 / (self.forward + self.backward) / 1e9
    }
}

/// Time a case for about `budget`, at least three runs after a warm-up.
pub fn bench(device: &Device, case: &Case, dtype: DType, budget: Duration) -> Result<Measurement> {
    let hosts = values::inputs(case, dtype);
    let counting = Arc::new(Counting::new(1 << 20));
    once(&Bound::new(&Device::new(counting.clone()), case, dtype, &hosts)?)?;
    let mut cost = Cost::default();
    for count in counting.kernels().values() {
        cost.flops += count.cost.flops;
        cost.bytes += count.cost.bytes;
    }
    let bound = Bound::new(device, case, dtype, &hosts)?;
    let rounds = Rounds { most: 1000, ..Rounds::within(1, 3, budget) };
    let [forward, backward] = measure(rounds, || once(&bound))?.map(|seconds| seconds.median());
    Ok(Measurement { forward, backward, cost })
}

/// One forward pass and one backward pass, in seconds.
fn once(bound: &Bound<'_>) -> Result<[f64; 2]> {
    bound.sync()?;
    let start = Instant::now();
    let Some(recorded) = bound.record(Gradients::Fresh)? else {
        drop(bound.infer()?);
        bound.sync()?;
        return Ok([start.elapsed().as_secs_f64(), 0.0]);
    };
    bound.sync()?;
    let forward = start.elapsed().as_secs_f64();
    let seeds = bound.seeds(&recorded.outputs)?;
    bound.sync()?;
    let start = Instant::now();
    drop(bound.walk(recorded, seeds, false)?);
    bound.sync()?;
    Ok([forward, start.elapsed().as_secs_f64()])
}
