//! Factors in 8 bits: the launches of `fp8.cu`, to scratch memory.
#![allow(unsafe_code)]

use super::super::driver::{Grid, Pattern};
use super::super::launch::{In, Launch, PACK, Typed, arguments, long, typed, whole};
use super::super::rows::{THREADS, grid};
use super::Factor;
use super::epilogue::Numbers;
use crate::error::Result;
use crate::fp8::Fp8Format;
use crate::kernel::{Arguments as _, Gemm};

/// `kFp8Side`.
const SIDE: usize = 64;
/// `kFp8Piece`: rows of codes are of whole units of these bytes, which the library requires of them too.
const PIECE: usize = 16;

const LARGEST: Typed = typed!("fp8", "fp8_largest");
const ROUND: Typed = typed!("fp8", "fp8_round");
const TRANSPOSE: Typed = typed!("fp8", "fp8_transpose");

/// Bytes of what the factors' scales are made of.
pub(super) const SCALE_BYTES: usize = 16;

/// Sums of `k` terms are of as many codes.
pub(super) fn length(k: usize) -> usize {
    k.next_multiple_of(PIECE)
}

/// Memory of the numbers of the factors' scales: their largest magnitudes, then the factors of the product.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scales {
    address: u64,
}

impl Scales {
    /// At [`SCALE_BYTES`] bytes of scratch memory.
    pub(super) fn at(address: u64) -> Self {
        Scales { address }
    }

    fn largest(self, index: usize) -> u64 {
        self.address + (index * size_of::<f32>()) as u64
    }

    /// Address of the inverse scale that the library reads for factor `index`.
    pub(super) fn inverse(self, index: usize) -> u64 {
        self.largest(2 + index)
    }

    /// Queue the beginning of both.
    ///
    /// # Safety
    /// The address is of this device, and valid until the lane has run what is queued.
    pub(super) unsafe fn clear(self, launch: &Launch<'_>) -> Result<()> {
        // SAFETY: promised by the caller.
        unsafe { launch.stream.fill(self.address, Pattern::Word(0), SCALE_BYTES / size_of::<u32>()) }
    }
}

/// Layout of the codes of a factor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    /// As the factor is stored, in f32 and over the scale.
    Wide,
    /// Each row of the factor that is stored becomes a row of codes.
    Rows,
    /// Each column becomes one.
    Columns,
}

/// Rounding of a factor to codes.
pub(super) struct Rounding {
    pub(super) scales: Scales,
    /// 0 for the left factor and 1 for the right one.
    pub(super) index: usize,
    pub(super) format: Fp8Format,
    pub(super) written: Written,
    /// Address of the codes.
    pub(super) to: u64,
    /// Distance between their rows.
    pub(super) to_ld: usize,
}

impl Factor {
    /// Queue the rounding of a single matrix.
    ///
    /// # Safety
    /// As [`super::epilogue::Finish::queue`]; the numbers at `scales` were cleared before on the lane.
    pub(super) unsafe fn round_to(
        &self,
        launch: &Launch<'_>,
        Rounding { scales, index, format, written, to, to_ld }: Rounding,
    ) -> Result<()> {
        const NAME: &str = Gemm::NAME;
        let Factor { rows, columns, ref stored, .. } = *self;
        let Numbers { address, dtype } = stored.numbers;
        let (stride, is_whole) = (long(NAME, "a distance", stored.ld)?, whole([address], &[columns, stored.ld]));
        let (tall, wide) = (long(NAME, "rows", rows)?, long(NAME, "columns", columns)?);
        let arguments = arguments!(Fp8LargestArguments {
            x: In = In::at(address, dtype),
            largest: u64 = scales.largest(index),
            rows: i64 = tall,
            columns: i64 = wide,
            stride: i64 = stride,
            whole: i32 = is_whole,
            unused: i32 = 0,
        });
        // SAFETY: laid out as in fp8.cu; the rest is promised by the caller.
        unsafe { launch.run(LARGEST.of([dtype]), grid(launch, rows, columns.div_ceil(PACK), 4), arguments) }?;
        let arguments = arguments!(Fp8RoundArguments {
            x: In = In::at(address, dtype),
            out: u64 = to,
            largest: u64 = scales.largest(index),
            inverse: u64 = scales.inverse(index),
            rows: i64 = tall,
            columns: i64 = wide,
            stride: i64 = stride,
            out_stride: i64 = long(NAME, "a distance", to_ld)?,
            format: i32 = match format {
                Fp8Format::E4M3 => 0,
                Fp8Format::E5M2 => 1,
            },
            wide: i32 = i32::from(written == Written::Wide),
            whole: i32 = is_whole,
            unused: i32 = 0,
        });
        let (name, grid) = match written {
            Written::Wide => (ROUND, grid(launch, rows, columns.div_ceil(PACK), 2)),
            Written::Rows => (ROUND, grid(launch, rows, to_ld / PACK, 2)),
            Written::Columns => {
                let tiles = columns.div_ceil(SIDE) * to_ld.div_ceil(SIDE);
                (TRANSPOSE, Grid::line(launch.blocks(tiles), THREADS as u32))
            }
        };
        // SAFETY: as above.
        unsafe { launch.run(name.of([dtype]), grid, arguments) }
    }
}
