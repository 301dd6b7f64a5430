//! The CPU backend: f32 arithmetic, a thread pool per rank, vector code chosen at run time, fixed orders of summation.
//!
//! Kernels run when they are given, unless their lane is busy with work of the host, for which `lanes` has threads.
//! (`crate::wrap::deferred` wraps this backend to run all lanes late.) [`threads`] divides work so that the bits do not
//! depend on the number of threads, `access` is the one place where a view becomes a slice, `floats` makes three
//! storage types one arithmetic, `crate::simd` and `math` are what inner loops are written with, `device` makes devices
//! of the backend, and each other file or directory is one stem of kernels.

#![allow(unsafe_code)]

mod access;
mod adam_8bit;
mod attention;
mod caches;
mod cross_entropy;
mod device;
mod elementwise;
pub(crate) mod floats;
pub mod gemm;
pub(crate) mod host;
mod lanes;
mod loss;
mod math;
mod norm;
mod optimizer;
mod quantised;
mod random;
mod reduce;
mod rotary;
mod rows;
mod scratch;
mod tiles;
mod update;
mod vector;

pub use crate::simd::InstructionSet;
pub use crate::threads::{self, Core, CpuOptions, Pinning, Placement, Processors};
pub use caches::Caches;

use crate::backend::{Backend, HostWork, Kernels};
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::lane::{DeviceId, Lane, Mark};
use crate::memory::{self, Memory};
use crate::threads::Threads;
use crate::view::{View, ViewMut};
use lanes::Lanes;
use std::sync::Arc;

/// Size of a slab that the CPU's pool asks the system for: address space, not memory. Pages are taken when they are
/// touched.
pub const SLAB_BYTES: usize = 256 << 20;

/// The CPU as a device.
#[derive(Debug)]
pub struct CpuBackend {
    id: DeviceId,
    // Before the threads that queued kernels use, so that it is dropped first.
    lanes: Lanes,
    threads: Arc<Threads>,
}

impl CpuBackend {
    /// A backend with this many threads of its own and the fastest instruction set of the processor.
    pub fn new(threads: usize) -> Result<Self> {
        Self::with(CpuOptions::new(threads))
    }

    /// A backend with these settings.
    ///
    /// # Errors
    /// As for [`Threads::with`].
    pub fn with(options: CpuOptions) -> Result<Self> {
        Ok(CpuBackend { id: DeviceId::fresh(), lanes: Lanes::default(), threads: Arc::new(Threads::with(options)?) })
    }

    /// The threads.
    pub fn threads(&self) -> &Threads {
        &self.threads
    }
}

impl Kernels for CpuBackend {
    fn launch(&self, kernel: Kernel<'_>, on: Lane) -> Result<()> {
        // Repeated here because slices are made from these views: soundness must not rest on the caller.
        kernel.check(self.id, on)?;
        if self.lanes.is_idle(on) {
            return run(&self.threads, kernel);
        }
        // SAFETY: the task runs before a sync of its lane returns, and the pool releases memory only after such a sync.
        let kernel = Late(unsafe { kernel.detach() });
        let threads = Arc::clone(&self.threads);
        self.lanes.give(on, Box::new(move || run(&threads, kernel.take())))
    }
}

/// Something with views that a lane's thread works on.
struct Late<T>(T);

// SAFETY: views are addresses and lengths; what ties them to a thread is that no two threads use the same memory
// without an order between them, and the marks of lanes are that order.
unsafe impl<T> Send for Late<T> {}

impl<T> Late<T> {
    /// The value; a method, so that a closure takes hold of the whole and not of the field.
    fn take(self) -> T {
        self.0
    }
}

fn run(threads: &Threads, kernel: Kernel<'_>) -> Result<()> {
    threads.instruction_set().within(|| dispatch(threads, kernel))
}

fn dispatch(threads: &Threads, kernel: Kernel<'_>) -> Result<()> {
    match kernel {
        Kernel::Gemm(a) => gemm::launch::gemm(threads, a),
        Kernel::NormForward(a) => norm::forward(threads, a),
        Kernel::NormBackward(a) => norm::backward(threads, a),
        Kernel::AttentionForward(a) => attention::forward(threads, a),
        Kernel::AttentionBackward(a) => attention::backward(threads, a),
        Kernel::Softmax(a) => reduce::softmax(threads, a),
        Kernel::SoftmaxBackward(a) => reduce::softmax_backward(threads, a),
        Kernel::DropoutApply(a) => random::dropout(threads, a),
        Kernel::EmbeddingForward(a) => rows::embedding_forward(threads, a),
        Kernel::QuantisedLinear(a) => quantised::linear(threads, a),
        Kernel::QuantisedInputGradient(a) => quantised::input_gradient(threads, a),
        Kernel::QuantisedRows(a) => quantised::rows(threads, a),
        Kernel::EmbeddingBackward(a) => rows::embedding_backward(threads, a),
        Kernel::AddScaled(a) => elementwise::add_scaled(threads, a),
        Kernel::Multiply(a) => elementwise::multiply(threads, a),
        Kernel::Fill(a) => elementwise::fill(threads, a),
        Kernel::Cast(a) => elementwise::cast(threads, a),
        Kernel::Permute(a) => rows::permute(threads, a),
        Kernel::RotaryApply(a) => rotary::rotary(threads, a),
        Kernel::RowCopy(a) => rows::row_copy(threads, a),
        Kernel::ActivationForward(a) => elementwise::activation_forward(threads, a),
        Kernel::ActivationBackward(a) => elementwise::activation_backward(threads, a),
        Kernel::ActivationInPlace(a) => elementwise::activation_in_place(threads, a),
        Kernel::GatedForward(a) => elementwise::gated_forward(threads, a),
        Kernel::GatedInPlace(a) => elementwise::gated_in_place(threads, a),
        Kernel::GatedBackward(a) => elementwise::gated_backward(threads, a),
        Kernel::CrossEntropyForward(a) => cross_entropy::forward(threads, a),
        Kernel::CrossEntropyBackward(a) => cross_entropy::backward(threads, a),
        Kernel::SquaredErrorForward(a) => loss::squared_error_forward(threads, a),
        Kernel::SquaredErrorBackward(a) => loss::squared_error_backward(threads, a),
        Kernel::PointwiseForward(a) => loss::pointwise_forward(threads, a),
        Kernel::PointwiseBackward(a) => loss::pointwise_backward(threads, a),
        Kernel::CrossEntropyStatistics(a) => cross_entropy::statistics(threads, a),
        Kernel::CrossEntropyInPlace(a) => cross_entropy::in_place(threads, a),
        Kernel::CrossEntropyLoss(a) => cross_entropy::loss(threads, a),
        Kernel::LossTotals(a) => loss::totals(threads, a),
        Kernel::ScaleBy(a) => loss::scale_by(threads, a),
        Kernel::ColumnSum(a) => reduce::column_sum(threads, a),
        Kernel::GradNorm(a) => reduce::grad_norm(threads, a),
        Kernel::NonFinite(a) => reduce::non_finite(threads, a),
        Kernel::ClipFactor(a) => optimizer::clip_factor(a),
        Kernel::Adam(a) => optimizer::adam(threads, a),
        Kernel::Adam8bit(a) => adam_8bit::adam_8bit(threads, a),
        Kernel::Update(a) => update::update(threads, a),
        Kernel::FillRandom(a) => random::fill_random(threads, a),
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> String {
        let set = self.threads.instruction_set();
        match self.threads.count() {
            1 => format!("cpu (1 thread, {set})"),
            count => format!("cpu ({count} threads, {set})"),
        }
    }

    fn id(&self) -> DeviceId {
        self.id
    }

    fn allocate(&self, bytes: usize) -> Result<Memory> {
        memory::allocate(bytes)
    }

    fn release(&self, memory: Memory) {
        memory::release(memory);
    }

    fn slab_bytes(&self) -> usize {
        SLAB_BYTES
    }

    fn upload(&self, host: &[u8], to: ViewMut<'_>, on: Lane) -> Result<()> {
        self.own("upload", to.device(), (to.lane(), on))?;
        // The host slice is the caller's again when this returns, so what is before it on the lane has to be done.
        self.lanes.sync(on)?;
        let to = access::write_bytes(to);
        if to.len() != host.len() {
            return Err(Error::shape("upload", "bytes", to.len(), host.len()));
        }
        to.copy_from_slice(host);
        Ok(())
    }

    fn download(&self, from: View<'_>, host: &mut [u8], on: Lane) -> Result<()> {
        self.own("download", from.device(), (from.lane(), on))?;
        self.lanes.sync(on)?;
        let from = access::read_bytes(from);
        if from.len() != host.len() {
            return Err(Error::shape("download", "bytes", host.len(), from.len()));
        }
        host.copy_from_slice(from);
        Ok(())
    }

    fn copy(&self, from: View<'_>, to: ViewMut<'_>, on: Lane) -> Result<()> {
        self.own("copy", from.device(), (from.lane(), on))?;
        self.own("copy", to.device(), (to.lane(), on))?;
        if from.range.overlaps(&to.range) {
            return Err(Error::argument("copy", "the ranges overlap"));
        }
        if to.bytes() != from.bytes() {
            return Err(Error::shape("copy", "bytes", to.bytes(), from.bytes()));
        }
        let copy = |from: &[u8], to: &mut [u8]| {
            to.copy_from_slice(from);
            Ok(())
        };
        if self.lanes.is_idle(on) {
            return copy(access::read_bytes(from), access::write_bytes(to));
        }
        self.on_host(Some(from), Some(to), Box::new(copy), on)
    }

    fn mark(&self, on: Lane) -> Result<Mark> {
        Ok(self.lanes.mark(on))
    }

    fn wait(&self, on: Lane, mark: Mark) -> Result<()> {
        self.lanes.wait(on, mark)
    }

    fn has_reached(&self, mark: Mark) -> Option<bool> {
        Some(self.lanes.has_reached(mark))
    }

    fn sync(&self, on: Lane) -> Result<()> {
        self.lanes.sync(on)
    }

    fn on_host(&self, read: Option<View<'_>>, write: Option<ViewMut<'_>>, work: HostWork, on: Lane) -> Result<()> {
        let places =
            [read.map(|view| (view.device(), view.lane())), write.as_ref().map(|view| (view.device(), view.lane()))];
        for (device, lane) in places.into_iter().flatten() {
            self.own("on_host", device, (lane, on))?;
        }
        if let (Some(read), Some(write)) = (&read, &write)
            && read.range.overlaps(&write.range)
        {
            return Err(Error::argument("on_host", "the ranges overlap"));
        }
        // SAFETY: as in `launch`.
        let views = Late(unsafe { (read.map(|view| view.detach()), write.map(|view| view.detach())) });
        let task = move || {
            let (read, write) = views.take();
            work(read.map_or(&[], access::read_bytes), write.map_or(&mut [], access::write_bytes))
        };
        // The compute lane is the calling thread.
        if on == Lane::Compute { task() } else { self.lanes.give(on, Box::new(task)) }
    }

    fn memory_is_host(&self) -> bool {
        true
    }

    fn host_threads(&self) -> Option<Arc<Threads>> {
        Some(Arc::clone(&self.threads))
    }

    fn scratch(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("GEMM scratch", gemm::scratch_bytes()),
            ("attention scratch", attention::scratch_bytes()),
            ("dequantisation scratch", quantised::bytes()),
            ("partial sums", self.threads.partial_bytes()),
        ]
    }
}

impl CpuBackend {
    /// Views of this device, made for the lane they are used on: the pool orders reuse by that lane.
    fn own(&self, op: &'static str, device: DeviceId, (made_for, used_on): (Lane, Lane)) -> Result<()> {
        if device != self.id {
            return Err(Error::WrongDevice { op, expected: self.name(), got: format!("{device:?}") });
        }
        if made_for != used_on {
            return Err(Error::argument(op, format!("a view of lane {made_for:?} was given to lane {used_on:?}")));
        }
        Ok(())
    }
}
