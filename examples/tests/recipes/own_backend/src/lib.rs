//! A backend in a crate of its own: memory of the host, and four kernels in f32 on the calling thread.
//!
//! Defines [`OwnBackend`]; `tests/conformance.rs` holds it against the table. It is partial, which is legal: what it
//! lacks it refuses with `Error::Unsupported`.

use bmtrain_core::backend::{DeviceId, Mark, Memory};
use bmtrain_core::buffer::{View, ViewMut};
use bmtrain_core::kernel::{Dest, Kernel};
use bmtrain_core::{Backend, DType, Error, Kernels, Lane, Result};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The device. Work runs when it is given, so every lane is always idle.
#[derive(Debug)]
pub struct OwnBackend {
    id: DeviceId,
    held: AtomicUsize,
}

impl OwnBackend {
    /// A device of its own.
    pub fn new() -> Self {
        OwnBackend { id: DeviceId::fresh(), held: AtomicUsize::new(0) }
    }

    /// Bytes allocated and not freed.
    pub fn held_bytes(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    fn unsupported(&self, kernel: &'static str, detail: String) -> Error {
        Error::Unsupported { backend: self.name(), kernel, detail }
    }

    fn own(&self, op: &'static str, device: DeviceId) -> Result<()> {
        if device == self.id {
            return Ok(());
        }
        Err(Error::WrongDevice { op, expected: self.name(), got: format!("{device:?}") })
    }
}

impl Default for OwnBackend {
    fn default() -> Self {
        OwnBackend::new()
    }
}

impl Kernels for OwnBackend {
    fn launch(&self, kernel: Kernel<'_>, on: Lane) -> Result<()> {
        // Slices are made from these views: that they belong to this device and do not overlap is checked here.
        kernel.check(self.id, on)?;
        let name = kernel.name();
        let mut others = None;
        kernel.visit(&mut |access| others = others.or(other_type(&access)));
        if let Some(dtype) = others {
            return Err(self.unsupported(name, format!(" for {dtype}")));
        }
        match kernel {
            Kernel::Fill(a) => write(a.out).fill(a.value),
            Kernel::Cast(a) => put(a.out, read(a.x).iter().copied()),
            Kernel::AddScaled(a) => {
                let (x, out) = (read(a.a), write(a.out));
                let second = a.b.map(read);
                for (i, (out, x)) in out.iter_mut().zip(x).enumerate() {
                    // With a factor of 0 the second term is not read: it may be anything, NaN included.
                    let y = if a.beta == 0.0 { 0.0 } else { a.beta * second.map_or(*out, |second| second[i]) };
                    *out = a.alpha * x + y;
                }
            }
            Kernel::Multiply(a) => match a.b {
                Some(b) => put(a.out, read(a.a).iter().zip(read(b)).map(|(a, b)| a * b)),
                None => write(a.out.view).iter_mut().zip(read(a.a)).for_each(|(out, a)| *out *= a),
            },
            // The enum grows with later versions; an unknown kernel is a missing one.
            _ => return Err(self.unsupported(name, String::new())),
        }
        Ok(())
    }
}

impl Backend for OwnBackend {
    fn name(&self) -> String {
        "own".into()
    }

    fn id(&self) -> DeviceId {
        self.id
    }

    fn allocate(&self, bytes: usize) -> Result<Memory> {
        let failed = || Error::no_memory(self.name(), bytes);
        let layout = Layout::from_size_align(bytes.max(1), 512).map_err(|_| failed())?;
        // SAFETY: the layout has a size above 0.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            return Err(failed());
        }
        self.held.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: fresh memory, zeroed, aligned to 512 bytes, used by nothing else until `release`.
        Ok(unsafe { Memory::new(start as u64, layout.size()) })
    }

    fn release(&self, memory: Memory) {
        if let Ok(layout) = Layout::from_size_align(memory.bytes(), 512) {
            self.held.fetch_sub(layout.size(), Ordering::Relaxed);
            // SAFETY: made by `allocate` with this layout, and consumed here.
            unsafe { dealloc(memory.address() as *mut u8, layout) };
        }
    }

    fn slab_bytes(&self) -> usize {
        1 << 20
    }

    fn upload(&self, host: &[u8], to: ViewMut<'_>, _on: Lane) -> Result<()> {
        self.own("upload", to.device())?;
        if host.len() != to.bytes() {
            return Err(Error::shape("upload", "bytes", to.bytes(), host.len()));
        }
        // SAFETY: the view is inside memory of `allocate`, the host's bytes are not, and the lengths agree.
        unsafe { std::ptr::copy_nonoverlapping(host.as_ptr(), to.address() as *mut u8, host.len()) };
        Ok(())
    }

    fn download(&self, from: View<'_>, host: &mut [u8], _on: Lane) -> Result<()> {
        self.own("download", from.device())?;
        if host.len() != from.bytes() {
            return Err(Error::shape("download", "bytes", host.len(), from.bytes()));
        }
        // SAFETY: as in `upload`.
        unsafe { std::ptr::copy_nonoverlapping(from.address() as *const u8, host.as_mut_ptr(), host.len()) };
        Ok(())
    }

    fn copy(&self, from: View<'_>, to: ViewMut<'_>, _on: Lane) -> Result<()> {
        self.own("copy", from.device())?;
        self.own("copy", to.device())?;
        if from.bytes() != to.bytes() {
            return Err(Error::shape("copy", "bytes", to.bytes(), from.bytes()));
        }
        if from.address() < to.address() + to.bytes() as u64 && to.address() < from.address() + from.bytes() as u64 {
            return Err(Error::argument("copy", "the ranges overlap"));
        }
        // SAFETY: both ranges are inside memory of `allocate`, of one length, and apart.
        unsafe { std::ptr::copy_nonoverlapping(from.address() as *const u8, to.address() as *mut u8, to.bytes()) };
        Ok(())
    }

    fn mark(&self, on: Lane) -> Result<Mark> {
        Ok(Mark { lane: on, ticket: 0 })
    }

    fn wait(&self, _on: Lane, _mark: Mark) -> Result<()> {
        Ok(())
    }

    fn sync(&self, _on: Lane) -> Result<()> {
        Ok(())
    }
}

/// The dtype of an argument that is not f32.
fn other_type(access: &bmtrain_core::kernel::Access<'_>) -> Option<DType> {
    use bmtrain_core::kernel::Access;
    let dtype = match access {
        Access::Read(view) => view.dtype(),
        Access::Write(view) | Access::WriteRows { view, .. } => view.dtype(),
    };
    (dtype != DType::F32).then_some(dtype)
}

fn read<'a>(view: View<'a>) -> &'a [f32] {
    // SAFETY: `launch` has checked device, type and overlap, and the range was checked when the view was made. An empty
    // view may be at the end of its memory, which is not a null pointer either.
    unsafe { std::slice::from_raw_parts(view.address() as *const f32, view.len()) }
}

fn write<'a>(view: ViewMut<'a>) -> &'a mut [f32] {
    // SAFETY: as in `read`; the view is consumed, so this is the only slice over its range.
    unsafe { std::slice::from_raw_parts_mut(view.address() as *mut f32, view.len()) }
}

/// Write or add values, as the destination specifies. Without `add` the old content is not read.
fn put(out: Dest<'_>, values: impl Iterator<Item = f32>) {
    let add = out.add;
    for (out, value) in write(out.view).iter_mut().zip(values) {
        *out = if add { *out + value } else { value };
    }
}
