//! The CUDA backend: memory, order and transfer of an NVIDIA device, and the launches of the kernels in `kernels/`.
//!
//! `backend` is the device as a [`Backend`](crate::Backend), `driver` calls the driver and owns its objects,
//! `libraries` finds what else of NVIDIA's is needed, `order` makes lanes of streams and marks of events, `staging`
//! carries uploads, `span` lets a communicator queue its calls, `scratch` is memory of launches, `fault` what kernels
//! report, `compile`, `images` and `modules` bring compiled kernels to the device, `launch` is what a launch is made
//! of, `blas` gives matrix products to cuBLASLt, `probe` compares instructions with the host. Each other file is one
//! stem of kernels, launched from the source of the same name. `trace` notes when what was given to lanes ran.
//!
//! The driver and the libraries are opened at run time: without them everything builds and runs, [`CudaBackend::open`]
//! or the first launch reports what is missing, and [`survey`] reports all of it at once.

mod adam_8bit;
mod attention;
mod attention_mma;
mod attention_wgmma;
mod backend;
mod blas;
mod compile;
mod counters;
mod cross_entropy;
mod driver;
mod elementwise;
mod embedding;
mod fault;
mod host_work;
mod images;
mod launch;
mod libraries;
mod loss;
mod modules;
pub(crate) mod nccl_version;
mod norm;
mod optimizer;
mod options;
mod order;
mod pinned_blocks;
mod probe;
mod random;
mod reduce;
mod rotary;
mod rows;
mod runs;
mod scratch;
mod span;
mod staging;
mod survey;
mod trace;
mod update;

use crate::backend::{Backend as _, Kernels};
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::lane::{DeviceId, Lane};
use crate::threads::Threads;
use blas::Blas;
pub use blas::ProductChoices;
use counters::Counters;
pub use driver::GraphCounts;
use driver::{Context, Pinned, Properties};
use fault::Faults;
use host_work::HostWorker;
use images::Images;
use launch::Launch;
pub use libraries::nccl_paths;
use modules::Modules;
pub use options::CudaOptions;
use order::Lanes;
pub use probe::Probed;
use scratch::Scratch;
use staging::Staging;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
pub use survey::{Installed, Library, Present, Survey, survey, usable};
use trace::Trace;
pub use trace::Traced;

pub(crate) use span::Span;

/// A device with NVIDIA's driver.
#[derive(Debug)]
pub struct CudaBackend {
    id: DeviceId,
    ordinal: usize,
    // Fields are dropped in this order: what the device may still read goes before what it reads with.
    staging: Mutex<Staging>,
    /// Page-locked memory for short reads of each lane: one that waits for its lane holds up no other.
    small: [Mutex<Option<Pinned>>; Lane::ALL.len()],
    workers: [HostWorker; Lane::ALL.len()],
    lanes: Lanes,
    faults: Faults,
    counters: Counters,
    scratch: [Scratch; Lane::ALL.len()],
    modules: Modules,
    blas: Blas,
    options: CudaOptions,
    threads: Option<Arc<Threads>>,
    /// Why a collective was aborted: what lanes computed since is invalid.
    broken: OnceLock<Error>,
    trace: Trace,
    context: Arc<Context>,
}

/// Number of CUDA devices.
///
/// # Errors
/// No driver on this machine, one that lacks a function, one without devices. Never a panic.
pub fn device_count() -> Result<usize> {
    Context::count()
}

impl CudaBackend {
    /// Open a device by its number, counted from 0 as the driver does.
    ///
    /// # Errors
    /// No driver on this machine, one that lacks a function, no such device, a device that does not answer. Never a
    /// panic.
    pub fn open(ordinal: usize, options: &CudaOptions) -> Result<Self> {
        let context = Context::open(ordinal)?;
        let lanes = Lanes::new(&context, options.graphs)?;
        let faults = lanes.give(Lane::Compute, |stream| Faults::new(&context, stream))?;
        let counters = lanes.give(Lane::Compute, |stream| Counters::new(&context, stream))?;
        let images = Images::of_options(options);
        let threads = options.host.map(Threads::with).transpose()?.map(Arc::new);
        Ok(CudaBackend {
            id: DeviceId::fresh(),
            ordinal,
            staging: Mutex::default(),
            small: <[Mutex<Option<Pinned>>; Lane::ALL.len()]>::default(),
            workers: std::array::from_fn(|_| HostWorker::new(&context)),
            threads,
            lanes,
            faults,
            counters,
            scratch: std::array::from_fn(|_| Scratch::new(&context)),
            modules: Modules::new(&context, images),
            blas: Blas::new(&context, options),
            options: options.clone(),
            broken: OnceLock::new(),
            trace: Trace::default(),
            context,
        })
    }

    /// PCI address of the device in this host, e.g. `0000:17:00.0`: the same for every process, whatever number it
    /// calls the device by. Parts of a device that is divided (MIG) are in one place.
    pub fn pci_bus_id(&self) -> &str {
        self.context.pci_bus_id()
    }

    /// Compute capability of the device, major and minor.
    pub fn capability(&self) -> (u32, u32) {
        self.context.properties().capability
    }

    /// Names of the units of kernels that were loaded so far, sorted: what was launched is in one of them.
    pub fn loaded_units(&self) -> Vec<&'static str> {
        self.modules.loaded_units()
    }

    /// Number of matrix products made in each way since the device was opened: what cuBLASLt does alone is fastest.
    pub fn products(&self) -> Vec<(&'static str, u64)> {
        self.blas.made()
    }

    /// Algorithms of matrix products chosen by time since the device was opened; `None` where
    /// [`CudaOptions::timed_products`] is off.
    pub fn product_choices(&self) -> Option<ProductChoices> {
        self.blas.choices()
    }

    /// Counts of CUDA graphs since the device was opened; `None` where [`CudaOptions::graphs`] is off.
    pub fn graphs(&self) -> Option<GraphCounts> {
        self.lanes.graph_counts(Lane::Compute)
    }

    /// Note from now on when what is given to lanes begins and ends: kernels, uploads, downloads and copies. What was
    /// noted before is forgotten. Each costs the lane two events, so that a traced run is a little slower.
    pub fn trace_on(&self) -> Result<()> {
        Lane::ALL.into_iter().try_for_each(|lane| self.wait_for(lane))?;
        self.trace.begin(&self.context, &self.lanes)
    }

    /// Wait for all lanes, and give out what was noted since [`CudaBackend::trace_on`], in the order in which it was
    /// given; nothing where that was not called. From here on nothing is noted.
    pub fn take_trace(&self) -> Result<Vec<Traced>> {
        Lane::ALL.into_iter().try_for_each(|lane| self.wait_for(lane))?;
        self.trace.take()
    }

    /// Give work to a lane by `give`, between two events if it is to be traced.
    fn traced<T>(&self, on: Lane, name: &'static str, give: impl FnOnce() -> Result<T>) -> Result<T> {
        self.trace.around(&self.context, &self.lanes, (on, name), give)
    }

    fn staging(&self) -> MutexGuard<'_, Staging> {
        self.staging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, on: Lane, work: impl FnOnce(&Launch<'_>) -> Result<()>) -> Result<()> {
        let scratch = &self.scratch[on as usize];
        let Properties { multiprocessors, capability, .. } = self.context.properties();
        let (modules, fault, counters) = (&self.modules, self.faults.address(on), self.counters.address(on));
        let options = &self.options;
        self.lanes.give(on, |stream| {
            work(&Launch { stream, modules, scratch, fault, counters, multiprocessors, capability, options })
        })
    }

    /// Let the host wait for a lane, and hear what its kernels report.
    fn wait_for(&self, on: Lane) -> Result<()> {
        let waited = self.lanes.sync(on, |stream| self.faults.wait(on, stream));
        // The first failure is reported first: kernels after failed host work, or after an aborted collective,
        // read undefined memory.
        let exchanged = self.broken.get().map_or(Ok(()), |error| Err(error.clone()));
        exchanged.and(self.workers[on as usize].take_failure()).and(waited)
    }

    /// A view for a transfer: of this device, and made for the lane it is used on, because the buffer's return to the
    /// pool waits for the lanes its views were made for.
    fn check(&self, op: &'static str, device: DeviceId, lane: Lane, on: Lane) -> Result<()> {
        if device != self.id {
            return Err(Error::WrongDevice { op, expected: self.name(), got: format!("{device:?}") });
        }
        if lane != on {
            return Err(Error::argument(op, format!("a view of lane {lane:?} was given to lane {on:?}")));
        }
        Ok(())
    }
}

impl Kernels for CudaBackend {
    fn launch(&self, kernel: Kernel<'_>, on: Lane) -> Result<()> {
        // Repeated here because addresses are made from these views: soundness must not rest on the caller.
        kernel.check(self.id, on)?;
        self.traced(on, kernel.name(), || match kernel {
            Kernel::ActivationForward(a) => self.run(on, |launch| elementwise::activation_forward(launch, a)),
            Kernel::ActivationBackward(a) => self.run(on, |launch| elementwise::activation_backward(launch, a)),
            Kernel::ActivationInPlace(a) => self.run(on, |launch| elementwise::activation_in_place(launch, a)),
            Kernel::GatedForward(a) => self.run(on, |launch| elementwise::gated_forward(launch, a)),
            Kernel::GatedInPlace(a) => self.run(on, |launch| elementwise::gated_in_place(launch, a)),
            Kernel::GatedBackward(a) => self.run(on, |launch| elementwise::gated_backward(launch, a)),
            Kernel::AddScaled(a) => self.run(on, |launch| elementwise::add_scaled(launch, a)),
            Kernel::Multiply(a) => self.run(on, |launch| elementwise::multiply(launch, a)),
            Kernel::Cast(a) => self.run(on, |launch| elementwise::cast(launch, a)),
            Kernel::Fill(a) => self.run(on, |launch| elementwise::fill(launch, a)),
            Kernel::Gemm(a) => self.run(on, |launch| self.blas.gemm(launch, a)),
            Kernel::EmbeddingForward(a) => self.run(on, |launch| embedding::forward(launch, a)),
            Kernel::EmbeddingBackward(a) => self.run(on, |launch| embedding::backward(launch, a)),
            Kernel::QuantisedLinear(_) | Kernel::QuantisedInputGradient(_) | Kernel::QuantisedRows(_) => {
                Err(Error::Unsupported {
                    backend: self.name(),
                    kernel: kernel.name(),
                    detail: crate::kernel::quantised::NOT_HERE.into(),
                })
            }
            Kernel::RowCopy(a) => self.run(on, |launch| rows::row_copy(launch, a)),
            Kernel::RotaryApply(a) => self.run(on, |launch| rotary::rotary(launch, a)),
            Kernel::Permute(a) => self.run(on, |launch| rows::permute(launch, a)),
            Kernel::CrossEntropyForward(a) => self.run(on, |launch| cross_entropy::forward(launch, a)),
            Kernel::CrossEntropyBackward(a) => self.run(on, |launch| cross_entropy::backward(launch, a)),
            Kernel::SquaredErrorForward(a) => self.run(on, |launch| loss::squared_error_forward(launch, a)),
            Kernel::SquaredErrorBackward(a) => self.run(on, |launch| loss::squared_error_backward(launch, a)),
            Kernel::PointwiseForward(a) => self.run(on, |launch| loss::pointwise_forward(launch, a)),
            Kernel::PointwiseBackward(a) => self.run(on, |launch| loss::pointwise_backward(launch, a)),
            Kernel::AttentionForward(a) => self.run(on, |launch| attention::forward(launch, a)),
            Kernel::AttentionBackward(a) => self.run(on, |launch| attention::backward(launch, a)),
            Kernel::NormForward(a) => self.run(on, |launch| norm::forward(launch, a)),
            Kernel::NormBackward(a) => self.run(on, |launch| norm::backward(launch, a)),
            Kernel::ColumnSum(a) => self.run(on, |launch| reduce::column_sum(launch, a)),
            Kernel::Softmax(a) => self.run(on, |launch| reduce::softmax(launch, a)),
            Kernel::SoftmaxBackward(a) => self.run(on, |launch| reduce::softmax_backward(launch, a)),
            Kernel::GradNorm(a) => self.run(on, |launch| reduce::grad_norm(launch, a)),
            Kernel::NonFinite(a) => self.run(on, |launch| reduce::non_finite(launch, a)),
            Kernel::ClipFactor(a) => self.run(on, |launch| optimizer::clip_factor(launch, a)),
            Kernel::Adam(a) => self.run(on, |launch| optimizer::adam(launch, a)),
            Kernel::Adam8bit(a) => self.run(on, |launch| adam_8bit::adam_8bit(launch, a)),
            Kernel::Update(a) => self.run(on, |launch| update::update(launch, a)),
            Kernel::DropoutApply(a) => self.run(on, |launch| random::dropout(launch, a)),
            Kernel::FillRandom(a) => self.run(on, |launch| random::fill_random(launch, a)),
            Kernel::CrossEntropyStatistics(a) => self.run(on, |launch| cross_entropy::statistics(launch, a)),
            Kernel::CrossEntropyInPlace(a) => self.run(on, |launch| cross_entropy::in_place(launch, a)),
            Kernel::CrossEntropyLoss(a) => self.run(on, |launch| cross_entropy::loss(launch, a)),
            Kernel::LossTotals(a) => self.run(on, |launch| loss::totals(launch, a)),
            Kernel::ScaleBy(a) => self.run(on, |launch| loss::scale_by(launch, a)),
        })
    }
}

/// Options with the directory of NVIDIA's libraries that BMTRAIN_CUDA_LIB_DIR names. Without it the test reports that
/// it was skipped.
#[cfg(test)]
fn libraries_for_tests(test: &str) -> Option<CudaOptions> {
    use std::io::Write as _;
    let Some(directory) = std::env::var_os("BMTRAIN_CUDA_LIB_DIR") else {
        let line = format!("\nSKIPPED {test}: BMTRAIN_CUDA_LIB_DIR names no directory of NVIDIA's libraries\n");
        // Past the test harness, which hides what passing tests print.
        let _ = std::io::stderr().write_all(line.as_bytes());
        return None;
    };
    Some(CudaOptions { libraries: vec![directory.into()], ..CudaOptions::default() })
}
