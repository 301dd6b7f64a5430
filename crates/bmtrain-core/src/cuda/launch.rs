//! Parts of a kernel launch: its name for the dtypes at hand, its operands, the grid.
//!
//! Each stem of kernels has a file beside this one whose functions turn checked arguments of [`crate::kernel`] into one
//! structure, laid out as the one of the same name in the stem's source, and give it to [`Launch::run`].
#![allow(unsafe_code)]

use super::CudaOptions;
use super::driver::{Grid, Stream};
use super::modules::{Modules, Name};
use super::scratch::Scratch;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Dest, Dropout};
use crate::philox::round_keys;
use crate::view::{View, ViewMut};
use bytemuck::NoUninit;

pub(super) const WARP: usize = 32;

/// The number of elements that kernels move at once: `kPack` of numbers.cuh.
pub(super) const PACK: usize = 8;

#[derive(Debug, Clone, Copy)]
pub(super) struct Launch<'a> {
    pub(super) stream: &'a Stream,
    pub(super) modules: &'a Modules,
    pub(super) scratch: &'a Scratch,
    /// Address of the lane's record that kernels report values outside of tables to.
    pub(super) fault: u64,
    /// Address of the lane's counters, zero between launches.
    pub(super) counters: u64,
    pub(super) multiprocessors: u32,
    /// Compute capability, major and minor.
    pub(super) capability: (u32, u32),
    pub(super) options: &'a CudaOptions,
}

impl Launch<'_> {
    /// Queue a kernel. A grid without blocks is nothing to do.
    ///
    /// # Safety
    /// `arguments` is laid out as the kernel's structure; what it points to is of this device, valid until the lane has
    /// run the kernel, and as large as the kernel makes of the sizes in it.
    pub(super) unsafe fn run<A: NoUninit>(&self, name: Name, grid: Grid, arguments: A) -> Result<()> {
        if grid.blocks.contains(&0) {
            return Ok(());
        }
        let function = self.modules.function(name, size_of::<A>(), grid.shared)?;
        // SAFETY: promised by the caller.
        unsafe { self.stream.launch(function, grid, &arguments) }
    }

    /// Blocks for `items` pieces of work that kernels take in turn: enough to fill the device, no more than there is
    /// work.
    pub(super) fn blocks(&self, items: usize) -> u32 {
        /// Blocks that a multiprocessor holds at once, and a few more so that their ends even out.
        const WAVES: u32 = 16;
        let most = self.multiprocessors.saturating_mul(WAVES);
        u32::try_from(items).unwrap_or(u32::MAX).min(most)
    }
}

/// The names of a kernel for each policy of numbers.cuh.
#[derive(Debug, Clone, Copy)]
pub(super) struct Typed {
    pub(super) f32: Name,
    pub(super) f16: Name,
    pub(super) bf16: Name,
    pub(super) mixed: Name,
}

impl Typed {
    /// The one for these large operands.
    pub(super) fn of(&self, dtypes: impl IntoIterator<Item = DType>) -> Name {
        let mut dtypes = dtypes.into_iter();
        let first = dtypes.next();
        if dtypes.any(|dtype| Some(dtype) != first) {
            return self.mixed;
        }
        match first {
            Some(DType::F32) => self.f32,
            Some(DType::F16) => self.f16,
            Some(DType::BF16) => self.bf16,
            _ => self.mixed,
        }
    }
}

/// The [`Typed`] names of a kernel, e.g. `typed!("norm", "norm_forward")`: unit and stem of the name.
macro_rules! typed {
    ($unit:literal, $stem:literal) => {{
        const fn of(text: &'static str) -> $crate::cuda::modules::Name {
            $crate::cuda::modules::Name::new($unit, text)
        }
        $crate::cuda::launch::Typed {
            f32: of(concat!($stem, "_f32\0")),
            f16: of(concat!($stem, "_f16\0")),
            bf16: of(concat!($stem, "_bf16\0")),
            mixed: of(concat!($stem, "_mixed\0")),
        }
    }};
}
pub(super) use typed;

/// The arguments of a kernel: a structure laid out as the one of the same name in the kernel's source, with its values.
/// It has no padding, so that its bytes can be compared.
macro_rules! arguments {
    ($name:ident { $($field:ident: $type:ty = $value:expr),* $(,)? }) => {{
        #[derive(Debug, Clone, Copy, bytemuck::NoUninit)]
        #[repr(C)]
        struct $name {
            $($field: $type),*
        }
        $name { $($field: $value),* }
    }};
}
pub(super) use arguments;

/// The tag of a dtype in numbers.cuh.
pub(super) fn tag(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::BF16 => 2,
        DType::I64 => 3,
        DType::I32 => 4,
        DType::U8 | DType::Blocks(_) => 5,
    }
}

/// `In` of numbers.cuh.
#[derive(Debug, Clone, Copy, NoUninit)]
#[repr(C)]
pub(super) struct In {
    data: u64,
    dtype: i32,
    unused: i32,
}

impl In {
    pub(super) const NONE: In = In { data: 0, dtype: 0, unused: 0 };

    pub(super) fn of(view: &View<'_>) -> Self {
        In::at(view.address(), view.dtype())
    }

    pub(super) fn at(address: u64, dtype: DType) -> Self {
        In { data: address, dtype: tag(dtype), unused: 0 }
    }

    pub(super) fn maybe(view: Option<&View<'_>>) -> Self {
        view.map_or(In::NONE, In::of)
    }
}

/// `Out` of numbers.cuh.
#[derive(Debug, Clone, Copy, NoUninit)]
#[repr(C)]
pub(super) struct Out {
    data: u64,
    dtype: i32,
    add: i32,
}

impl Out {
    pub(super) const NONE: Out = Out { data: 0, dtype: 0, add: 0 };

    pub(super) fn of(view: &ViewMut<'_>) -> Self {
        Out::at(view.address(), view.dtype())
    }

    pub(super) fn at(address: u64, dtype: DType) -> Self {
        Out { data: address, dtype: tag(dtype), add: 0 }
    }

    pub(super) fn into(dest: &Dest<'_>) -> Self {
        Out { add: i32::from(dest.add), ..Out::of(&dest.view) }
    }

    pub(super) fn maybe(dest: Option<&Dest<'_>>) -> Self {
        dest.map_or(Out::NONE, Out::into)
    }
}

/// `Dropout` of philox.cuh.
#[derive(Debug, Clone, Copy, NoUninit)]
#[repr(C)]
pub(super) struct Mask {
    threshold: u32,
    scale: f32,
    /// `RoundKeys`.
    keys: [[u32; 2]; 10],
    step: u32,
    micro_batch: u32,
    offset: u64,
    row_stride: u64,
}

impl Mask {
    /// The mask of rows of `columns`; without a dropout nothing is masked.
    pub(super) fn of(dropout: Option<&Dropout>, columns: usize) -> Self {
        let Some(d) = dropout else {
            let keys = [[0; 2]; 10];
            return Mask { threshold: 0, scale: 1.0, keys, step: 0, micro_batch: 0, offset: 0, row_stride: 0 };
        };
        let row_stride = if d.row_stride == 0 { columns as u64 } else { d.row_stride };
        let (step, micro_batch, offset) = (d.step, d.micro_batch, d.offset);
        Mask { threshold: d.threshold, scale: d.scale, keys: round_keys(d.key), step, micro_batch, offset, row_stride }
    }

    pub(super) fn drops(&self) -> bool {
        self.threshold != 0
    }
}

/// Whether packs may be moved by accesses of 16 bytes: all these addresses are multiples of 16, and so are the
/// distances of rows in elements of [`PACK`].
pub(super) fn whole(addresses: impl IntoIterator<Item = u64>, strides: &[usize]) -> i32 {
    let aligned = addresses.into_iter().all(|address| address.is_multiple_of(16));
    i32::from(aligned && strides.iter().all(|stride| stride.is_multiple_of(PACK)))
}

/// A size as the kernels' `long long`.
pub(super) fn long(op: &'static str, what: &str, size: usize) -> Result<i64> {
    i64::try_from(size).map_err(|_| Error::shape(op, what, "a count below 2^63", size))
}

pub(super) fn block_each(op: &'static str, what: &str, items: usize) -> Result<u32> {
    let most = i32::MAX.cast_unsigned();
    let blocks = u32::try_from(items).ok().filter(|blocks| *blocks <= most);
    blocks.ok_or_else(|| Error::shape(op, what, format!("at most {most}"), items))
}

/// Threads for `items` of a block: whole warps, at most `most`.
pub(super) fn threads_for(items: usize, most: usize) -> u32 {
    items.clamp(1, most).next_multiple_of(WARP) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_whole_warps_within_the_bound() {
        for items in [0, 1, 31, 32, 33, 96, 512, 513, 1 << 20] {
            let threads = threads_for(items, 512);
            assert!((32..=512).contains(&threads) && threads.is_multiple_of(32), "{items} items: {threads}");
        }
        assert_eq!(threads_for(96, 512), 96);
    }

    #[test]
    fn packs_need_aligned_addresses_and_rows() {
        assert_eq!(whole([512, 16], &[8, 768]), 1);
        assert_eq!(whole([512, 8], &[8]), 0);
        assert_eq!(whole([512], &[12]), 0);
    }

    #[test]
    fn a_kernel_is_chosen_by_the_types_of_its_large_operands() {
        let names = typed!("norm", "norm_forward");
        assert_eq!(names.of([DType::BF16, DType::BF16]).kernel, c"norm_forward_bf16");
        assert_eq!(names.of([DType::BF16, DType::F32]).kernel, c"norm_forward_mixed");
        assert_eq!(names.of([DType::F32]).kernel, c"norm_forward_f32");
    }
}
