//! The CUDA backend: memory, order and transfer of an NVIDIA device, and the launches of the kernels in `kernels/`.
//!
//! `library` asks whether there is a driver, `driver` owns its objects, `order` makes lanes of streams and marks of events,
//! `staging` carries uploads, `scratch` is memory of launches, `fault` what kernels report, `images` and `modules` bring
//! compiled kernels to the device, `launch` is what a launch is made of. Each other file is one stem of kernels, launched from
//! the source of the same name.
//!
//! The driver is opened at run time: without one everything builds and runs, and [`CudaBackend::open`] says what is missing.
#![allow(unsafe_code)]

mod attention;
mod attention_mma;
mod driver;
mod fault;
mod images;
mod launch;
mod library;
mod modules;
mod norm;
mod order;
mod scratch;
mod staging;

use crate::backend::{Backend, DeviceId, Kernels, Lane, Mark, Memory};
use crate::buffer::{View, ViewMut};
use crate::dtype::{DType, Float};
use crate::error::{Error, Result};
use crate::kernel::{Arguments as _, Fill, Kernel};
use driver::{Context, Pattern, Properties, failure};
use fault::Faults;
use half::{bf16, f16};
use images::Images;
use launch::Launch;
use modules::Modules;
use order::Lanes;
use scratch::Scratch;
use staging::Staging;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the pool relies on.
const ALIGNMENT: u64 = 512;

/// A device with NVIDIA's driver.
#[derive(Debug)]
pub struct CudaBackend {
    id: DeviceId,
    ordinal: usize,
    // Fields are dropped in this order: what the device may still read goes before what it reads with.
    staging: Mutex<Staging>,
    lanes: Lanes,
    faults: Faults,
    scratch: [Scratch; Lane::ALL.len()],
    modules: Modules,
    context: Arc<Context>,
}

/// Where the backend finds what it needs beside the driver.
#[derive(Debug, Clone, Default)]
pub struct CudaOptions {
    /// A folder of compiled kernels, `UNIT.cubin` each; nothing is compiled then. They are loaded as they are: whoever names
    /// the folder answers for it.
    pub compiled: Option<PathBuf>,
}

impl CudaBackend {
    /// Open a device by its number, counted from 0 as the driver does.
    ///
    /// # Errors
    /// No driver on this machine, one that lacks a function, no such device, a device that does not answer. Never a panic.
    pub fn open(ordinal: usize, options: &CudaOptions) -> Result<Self> {
        let context = Context::open(ordinal)?;
        let lanes = Lanes::new(&context)?;
        let faults = lanes.give(Lane::Compute, |stream| Faults::new(&context, stream))?;
        let images = options.compiled.clone().map_or(Images::Missing, Images::Folder);
        Ok(CudaBackend {
            id: DeviceId::fresh(),
            ordinal,
            staging: Mutex::default(),
            lanes,
            faults,
            scratch: std::array::from_fn(|_| Scratch::new(&context)),
            modules: Modules::new(&context, images),
            context,
        })
    }

    fn staging(&self) -> MutexGuard<'_, Staging> {
        self.staging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Give a launch to a lane.
    fn run(&self, on: Lane, work: impl FnOnce(&Launch<'_>) -> Result<()>) -> Result<()> {
        let scratch = &self.scratch[on as usize];
        let Properties { multiprocessors, capability, .. } = self.context.properties();
        let (modules, fault) = (&self.modules, self.faults.address());
        self.lanes.give(on, |stream| work(&Launch { stream, modules, scratch, fault, multiprocessors, capability }))
    }

    /// Let the host wait for a lane, and hear what its kernels report.
    fn wait_for(&self, on: Lane) -> Result<()> {
        self.lanes.sync(on, |stream| self.faults.wait(stream))
    }

    fn fill(&self, a: Fill<'_>, on: Lane) -> Result<()> {
        let Some((pattern, repeats)) = pattern_of(a.value, a.out.dtype()) else {
            let detail = format!(" for {} with the value {}", a.out.dtype(), a.value);
            return Err(self.unsupported(Fill::NAME, detail));
        };
        if a.out.is_empty() {
            return Ok(());
        }
        let count = a.out.len() * repeats;
        // SAFETY: the view was checked against its buffer and is this device's; its start is a multiple of its elements'
        // size; the memory stays valid until the lane has run the fill, because the pool gives it out in lane order.
        self.lanes.give(on, |stream| unsafe { stream.fill(a.out.address(), pattern, count) })
    }

    fn unsupported(&self, kernel: &'static str, detail: String) -> Error {
        Error::Unsupported { backend: self.name(), kernel, detail }
    }

    /// A view for a transfer: of this device, and made for the lane it is used on, because the buffer's return to the pool
    /// waits for the lanes its views were made for.
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

/// The pattern that fills elements of a type with a value, and how often it goes into one element.
fn pattern_of(value: f32, dtype: DType) -> Option<(Pattern, usize)> {
    // `as` from float to integer saturates and turns NaN into 0, as in the CPU backend.
    match dtype {
        DType::F32 => Some((Pattern::Word(value.to_bits()), 1)),
        DType::F16 => Some((Pattern::Half(<f16 as Float>::from_f32(value).to_bits()), 1)),
        DType::BF16 => Some((Pattern::Half(<bf16 as Float>::from_f32(value).to_bits()), 1)),
        DType::I32 => Some((Pattern::Word((value as i32).cast_unsigned()), 1)),
        DType::U8 => Some((Pattern::Byte(value as u8), 1)),
        // The driver has no 8-byte pattern: two equal halves are needed.
        DType::I64 => {
            let bits = (value as i64).cast_unsigned();
            let (low, high) = (bits as u32, (bits >> 32) as u32);
            (low == high).then_some((Pattern::Word(low), 2))
        }
    }
}

impl Kernels for CudaBackend {
    fn launch(&self, kernel: Kernel<'_>, on: Lane) -> Result<()> {
        // Repeated here because addresses are made from these views: soundness must not rest on the caller.
        kernel.check(self.id, on)?;
        match kernel {
            Kernel::Fill(a) => self.fill(a, on),
            Kernel::AttentionForward(a) => self.run(on, |launch| attention::forward(launch, a)),
            Kernel::AttentionBackward(a) => self.run(on, |launch| attention::backward(launch, a)),
            Kernel::NormForward(a) => self.run(on, |launch| norm::forward(launch, a)),
            other => Err(self.unsupported(other.name(), String::new())),
        }
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> String {
        format!("cuda:{} ({})", self.ordinal, self.context.name())
    }

    fn id(&self) -> DeviceId {
        self.id
    }

    fn allocate(&self, bytes: usize) -> Result<Memory> {
        let bytes = bytes.max(1);
        let address = self.context.allocate(bytes)?;
        if !address.is_multiple_of(ALIGNMENT) {
            // The driver promises 256 bytes and gives 512 or more.
            // SAFETY: just taken, and nothing has used it.
            unsafe { self.context.release(address) }?;
            return Err(failure("allocate", format!("address {address:#x} is not a multiple of {ALIGNMENT}")));
        }
        // SAFETY: taken from this device, so valid for its copies and kernels and for nobody else until it is released.
        // What it holds is some bytes, which is what device memory calls initialised.
        Ok(unsafe { Memory::new(address, bytes) })
    }

    fn release(&self, memory: Memory) {
        // SAFETY: made in `allocate`; a `Memory` cannot be copied and is consumed here; the pool has waited for its lanes.
        if let Err(error) = unsafe { self.context.release(memory.address()) } {
            tracing::warn!(%error, bytes = memory.bytes(), "memory could not be returned to the device");
        }
    }

    fn slab_bytes(&self) -> usize {
        64 << 20
    }

    fn upload(&self, host: &[u8], to: ViewMut<'_>, on: Lane) -> Result<()> {
        self.check("upload", to.device(), to.lane(), on)?;
        if host.len() != to.bytes() {
            return Err(Error::shape("upload", "bytes", to.bytes(), host.len()));
        }
        let mut staging = self.staging();
        // SAFETY: the view is this device's and as long as the slice; its memory stays valid until the lane has run the
        // copy, because the pool gives it out in lane order and the view was made for this lane.
        self.lanes.give(on, |stream| unsafe { staging.upload(&self.context, stream, host, to.address()) })
    }

    fn download(&self, from: View<'_>, host: &mut [u8], on: Lane) -> Result<()> {
        self.check("download", from.device(), from.lane(), on)?;
        if host.len() != from.bytes() {
            return Err(Error::shape("download", "bytes", host.len(), from.bytes()));
        }
        if !host.is_empty() {
            // SAFETY: the view is this device's and as long as the slice, which is borrowed until the lane is idle below.
            let queued = self.lanes.give(on, |stream| unsafe { stream.download(from.address(), host) });
            // Also after an error: part of the copy may be on its way to the slice.
            return self.wait_for(on).and(queued);
        }
        self.wait_for(on)
    }

    fn copy(&self, from: View<'_>, to: ViewMut<'_>, on: Lane) -> Result<()> {
        self.check("copy", from.device(), from.lane(), on)?;
        self.check("copy", to.device(), to.lane(), on)?;
        if from.bytes() != to.bytes() {
            return Err(Error::shape("copy", "bytes", to.bytes(), from.bytes()));
        }
        if from.dtype() != to.dtype() {
            let (what, expected) = ("from".into(), to.dtype().name().into());
            return Err(Error::DType { op: "copy", what, expected, got: from.dtype() });
        }
        if from.range.overlaps(&to.range) {
            return Err(Error::argument("copy", "the ranges overlap"));
        }
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: both views are this device's, of one length, apart from each other; their memory stays valid until the
        // lane has run the copy, as in `upload`.
        self.lanes.give(on, |stream| unsafe { stream.copy(from.address(), to.address(), from.bytes()) })
    }

    fn mark(&self, on: Lane) -> Result<Mark> {
        self.lanes.mark(on)
    }

    fn wait(&self, on: Lane, mark: Mark) -> Result<()> {
        self.lanes.wait(on, mark)
    }

    fn sync(&self, on: Lane) -> Result<()> {
        self.wait_for(on)
    }

    fn scratch(&self) -> Vec<(&'static str, usize)> {
        let launches = self.scratch.iter().map(Scratch::bytes).sum();
        vec![("page-locked staging", self.staging().bytes()), ("scratch of launches", launches)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fill_pattern_is_the_value_in_the_number_type_of_the_elements() {
        assert_eq!(pattern_of(1.0, DType::F32), Some((Pattern::Word(0x3f80_0000), 1)));
        assert_eq!(pattern_of(1.0, DType::F16), Some((Pattern::Half(0x3c00), 1)));
        assert_eq!(pattern_of(1.0, DType::BF16), Some((Pattern::Half(0x3f80), 1)));
        assert_eq!(pattern_of(-2.0, DType::I32), Some((Pattern::Word(0xffff_fffe), 1)));
        assert_eq!(pattern_of(7.0, DType::U8), Some((Pattern::Byte(7), 1)));
        assert_eq!(pattern_of(0.0, DType::I64), Some((Pattern::Word(0), 2)));
        assert_eq!(pattern_of(-1.0, DType::I64), Some((Pattern::Word(u32::MAX), 2)));
        assert_eq!(pattern_of(1.0, DType::I64), None);
    }
}
