//! Speed of a device's kernels: each at the sizes of a real model, as bytes moved or operations done per second.
//!
//! What a figure is compared with is the caller's: what a copy reaches on the same device in the same run, or a matrix
//! product. Bytes count every argument once for reading and once for writing where it is both.

mod elementwise;
mod loss;
mod matrix;
mod norm;
mod reduce;
mod rows;

use bmtrain_core::bench::{Rounds, measure, seconds};
use bmtrain_core::exact::WORDS;
use bmtrain_core::kernel::*;
use bmtrain_core::philox::Key;
use bmtrain_core::shape::MAX_RANK;
use bmtrain_core::{DType, Device, Lane, Result, Segment, Tensor};
use std::time::Duration;

/// The sizes of the model whose kernels are timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Sequences of a batch.
    pub batch: usize,
    /// Tokens of a sequence.
    pub length: usize,
    /// Width of the model, D; a multiple of `head_size`.
    pub hidden: usize,
    /// Width of the feed-forward layer, F.
    pub inner: usize,
    /// Length of a head, H.
    pub head_size: usize,
    /// Entries of the vocabulary, V.
    pub vocabulary: usize,
    /// Values of the optimizer.
    pub parameters: usize,
}

impl Sizes {
    /// GPT-2 XL's width, 16 sequences of 1024 tokens: what fills a large device.
    pub const GPT2_XL: Sizes = Sizes {
        batch: 16,
        length: 1024,
        hidden: 1600,
        inner: 6400,
        head_size: 64,
        vocabulary: 50_257,
        parameters: 1 << 27,
    };

    /// Too small for a measurement: for tests.
    pub const TINY: Sizes =
        Sizes { batch: 2, length: 8, hidden: 16, inner: 32, head_size: 8, vocabulary: 40, parameters: 100 };

    fn rows(&self) -> usize {
        self.batch * self.length
    }
}

/// The time of one kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// The kernel, with what distinguishes this call from others.
    pub name: String,
    /// Dtype of its large operands.
    pub dtype: DType,
    /// Seconds of one call.
    pub seconds: f64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Floating-point operations, where those take the time.
    pub flops: u64,
}

impl Figure {
    /// Bytes per second.
    pub fn bandwidth(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }

    /// Floating-point operations per second.
    pub fn rate(&self) -> f64 {
        self.flops as f64 / self.seconds
    }
}

/// Kernels to time, and how long.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The sizes.
    pub sizes: Sizes,
    /// Dtypes of the large operands.
    pub dtypes: Vec<DType>,
    /// Only kernels whose name contains this.
    pub part_of_name: String,
    /// Seconds for each.
    pub budget: Duration,
}

/// Time the kernels of a device, one figure after the other.
pub fn speed(device: &Device, wanted: &Wanted, tell: &mut dyn FnMut(Figure)) -> Result<()> {
    let mut bench = Bench { device, wanted, tell };
    for &dtype in &wanted.dtypes {
        elementwise::time(&mut bench, dtype)?;
        norm::time(&mut bench, dtype)?;
        reduce::time(&mut bench, dtype)?;
        rows::time(&mut bench, dtype)?;
        loss::time(&mut bench, dtype)?;
        matrix::time(&mut bench, dtype)?;
    }
    Ok(())
}

/// Bytes per second that a copy within the device reaches, read and written together, over `bytes`.
pub fn copy_bandwidth(device: &Device, bytes: usize, budget: Duration) -> Result<f64> {
    let tensor = || Tensor::full_in(device, [bytes], DType::U8, 1.0, Segment::Workspace);
    let (from, mut to) = (tensor()?, tensor()?);
    let copy = &mut || device.backend().copy(from.view()?, to.view_mut()?, Lane::Compute);
    Ok(2.0 * bytes as f64 / time_of(device, budget, copy)?)
}

/// Floating-point operations per second that a matrix product of `[m, n, k]` reaches, of factors with normal numbers:
/// what bounds everything that is made of products.
pub fn product_rate(device: &Device, dtype: DType, sizes: [usize; 3], budget: Duration) -> Result<f64> {
    let wanted = Wanted { sizes: Sizes::TINY, dtypes: Vec::new(), part_of_name: String::new(), budget };
    let mut rate = 0.0;
    let tell = &mut |figure: Figure| rate = figure.rate();
    matrix::product(&mut Bench { device, wanted: &wanted, tell }, "gemm", dtype, sizes)?;
    Ok(rate)
}

/// Seconds of one call of `run`: many are given to the device at once and waited for together, and the fastest such
/// group counts, because neighbours on the machine make runs longer, never shorter.
fn time_of(device: &Device, budget: Duration, run: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
    /// Groups within the budget.
    const GROUPS: u32 = 8;
    /// Calls of a group at most.
    const MAX_CALLS: f64 = 1000.0;
    let mut timed = |count: u32| -> Result<f64> {
        let group = || (0..count).try_for_each(|_| run()).and_then(|()| device.sync());
        Ok(seconds(group)? / f64::from(count))
    };
    timed(1)?;
    let once = timed(1)?;
    let count = ((budget / GROUPS).as_secs_f64() / once.max(1e-9)).clamp(1.0, MAX_CALLS) as u32;
    let [groups] = measure(Rounds::within(0, 1, budget), || timed(count).map(|seconds| [seconds]))?;
    Ok(groups.best())
}

/// Gives a kernel to the device.
type Launcher<'a> = &'a dyn Fn(Kernel<'_>) -> Result<()>;

/// Inputs of the files of this directory, which time kernels.
struct Bench<'a> {
    device: &'a Device,
    wanted: &'a Wanted,
    tell: &'a mut dyn FnMut(Figure),
}

impl Bench<'_> {
    fn sizes(&self) -> Sizes {
        self.wanted.sizes
    }

    /// Normal numbers.
    fn tensor(&self, len: usize, dtype: DType) -> Result<Tensor> {
        let mut tensor = Tensor::empty_in(self.device, [len], dtype, Segment::Activations)?;
        let (distribution, key) = (Distribution::Normal(0.0, 1.0), Key::new(0, "speed"));
        self.device.launch(FillRandom { distribution, key, offset: 0, out: tensor.view_mut()? })?;
        Ok(tensor)
    }

    /// Time what `make` makes: the kernel moves `bytes`.
    fn moving(
        &mut self,
        name: &str,
        dtype: DType,
        bytes: usize,
        mut make: impl FnMut(Launcher<'_>) -> Result<()>,
    ) -> Result<()> {
        self.figure(name, dtype, (bytes as u64, 0), &mut make)
    }

    /// Time what `make` makes: the kernel does `flops` operations.
    fn computing(
        &mut self,
        name: &str,
        dtype: DType,
        flops: u64,
        mut make: impl FnMut(Launcher<'_>) -> Result<()>,
    ) -> Result<()> {
        self.figure(name, dtype, (0, flops), &mut make)
    }

    fn figure(
        &mut self,
        name: &str,
        dtype: DType,
        (bytes, flops): (u64, u64),
        make: &mut dyn FnMut(Launcher<'_>) -> Result<()>,
    ) -> Result<()> {
        if !name.contains(&self.wanted.part_of_name) {
            return Ok(());
        }
        let device = self.device;
        let launch = |kernel: Kernel<'_>| device.launch(kernel);
        let seconds = time_of(device, self.wanted.budget, &mut || make(&launch))?;
        (self.tell)(Figure { name: name.into(), dtype, seconds, bytes, flops });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_kernel_that_is_timed_runs_and_moves_or_computes_something() {
        let device = Device::cpu(1).unwrap();
        let dtypes = vec![DType::F32, DType::BF16];
        let wanted = Wanted { sizes: Sizes::TINY, dtypes, part_of_name: String::new(), budget: Duration::ZERO };
        let mut names = BTreeSet::new();
        speed(&device, &wanted, &mut |figure| {
            assert!(figure.seconds > 0.0 && (figure.bytes > 0) != (figure.flops > 0), "{figure:?}");
            assert!(names.insert((figure.name.clone(), figure.dtype.name())), "{} twice", figure.name);
        })
        .unwrap();
        assert!(names.len() > 60, "{}", names.len());
        assert!(copy_bandwidth(&device, 1 << 16, Duration::ZERO).unwrap() > 0.0);
    }
}
