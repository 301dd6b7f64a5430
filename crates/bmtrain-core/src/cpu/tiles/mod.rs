//! Products of bf16 by bf16, summed in f32, in blocks of 32 x 32: by the tile registers of Intel AMX, by the dot
//! products of AVX512_BF16, by the products of small matrices of Arm's FEAT_BF16, and by software models of them.
//!
//! Defines [`Unit`], what multiplies; [`Unit::begin`], which makes the tile registers of a thread ready until the
//! [`Session`] ends; and [`Multiply`], one block of a product. `pack.rs` lays out operands. `cpu::gemm` and
//! `cpu::attention` call them.
//!
//! # Layout
//! A block of the result has at most 32 x 32 elements, in 2 x 2 tiles, and is summed [`STEP`] terms at a time. A *step*
//! of an operand is what one such sum reads of it, [`STEP_LEN`] numbers in two tiles of 16 rows of 64 bytes, and a
//! panel is the steps of a sum, one after the other:
//!
//! - of the left operand, 32 rows of 32 terms: element (i, p) at `32 * i + p`;
//! - of the right operand, two tiles of 16 columns, each with the terms in pairs: element (p, j) at
//!   `512 * (j / 16) + 32 * (p / 2) + 2 * (j % 16) + p % 2`.
//!
//! Rows, columns and terms that a product does not have are zeros in both operands.
//!
//! # Numerics
//! The processor's definitions. TDPBF16PS of AMX: for each element and step, the terms with even numbers and those with
//! odd ones are two chains of fused multiply-adds from zero in f32; the sum of the two is added to what the element
//! has. VDPBF16PS of AVX512_BF16: an element is one chain of fused multiply-adds in which of each pair the odd term
//! comes first. BFMMLA of FEAT_BF16: pair after pair, two products are rounded, and their sum is rounded and added to
//! the element.
//!
//! The first two round to nearest even; BFMMLA to odd: towards zero, and where that is not exact the last bit is set.
//! Subnormal operands count as zeros, subnormal results become zeros, with their signs. Since sums are f32 in the
//! registers as in memory, how a sum is cut into calls at multiples of [`STEP`] does not change its bits. NaN and
//! infinities propagate; the payload of a NaN is unspecified.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "aarch64")]
mod bfmmla;
#[cfg(target_arch = "x86_64")]
mod dots;
#[cfg(any(test, feature = "testing"))]
mod model;
pub(super) mod pack;
#[cfg(target_arch = "x86_64")]
mod pack_x86;
mod term;

#[cfg(test)]
mod tests;

use crate::simd::InstructionSet;
use half::bf16;

/// Rows and columns of a block at most.
pub(super) const BLOCK: usize = 32;
/// Rows or columns of a tile.
pub(super) const TILE: usize = 16;
/// Terms that are summed at a time.
pub(super) const STEP: usize = 32;
/// Numbers of one step of an operand.
pub(super) const STEP_LEN: usize = BLOCK * STEP;

/// Hardware or software that multiplies blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// The tile registers of AMX.
    #[cfg(target_arch = "x86_64")]
    Amx,
    /// The vector registers, by dot products of pairs.
    #[cfg(target_arch = "x86_64")]
    Dots,
    /// The vector registers, by products of 2 x 4 by 4 x 2.
    #[cfg(target_arch = "aarch64")]
    Bfmmla,
    /// Plain Rust with the results of an instruction.
    #[cfg(any(test, feature = "testing"))]
    Model(model::Instruction),
}

/// A block of a product: `to = from + a·b`.
pub(super) struct Multiply<'s> {
    /// A panel of the left operand.
    pub(super) a: &'s [bf16],
    /// A panel of the right operand with as many steps.
    pub(super) b: &'s [bf16],
    /// Rows and columns of the result, from 1 to [`BLOCK`]. Whole tiles may be read and written.
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// The sums to start from, instead of zero. `to` may have them.
    pub(super) from: Option<Sums>,
    pub(super) to: Sums,
    /// Memory that is read soon: its first [`FETCHED`] cache lines for each step are fetched into the second-level
    /// cache.
    pub(super) next: &'s [bf16],
}

/// Sums of a block in memory: element (i, j) is `row * i + j` elements after the first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sums {
    pub(super) first: *mut f32,
    pub(super) row: usize,
}

/// Cache lines of [`Multiply::next`] that are fetched in each step.
pub(super) const FETCHED: usize = 4;

impl Unit {
    /// The unit that multiplies bf16 with an instruction set, which is available, if there is one.
    pub(super) fn of(set: InstructionSet) -> Option<Self> {
        match set {
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Amx => Some(Unit::Amx),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512Bf16 => Some(Unit::Dots),
            #[cfg(target_arch = "aarch64")]
            InstructionSet::NeonBf16 => Some(Unit::Bfmmla),
            #[cfg(any(test, feature = "testing"))]
            InstructionSet::AmxModel => Some(Unit::Model(model::Instruction::Tdpbf16ps)),
            #[cfg(any(test, feature = "testing"))]
            InstructionSet::Avx512Bf16Model => Some(Unit::Model(model::Instruction::Vdpbf16ps)),
            #[cfg(any(test, feature = "testing"))]
            InstructionSet::NeonBf16Model => Some(Unit::Model(model::Instruction::Bfmmla)),
            _ => None,
        }
    }

    /// Rounds rows of `columns` sums, a multiple of [`BLOCK`], as [`Session::multiply`] leaves them, to nearest even;
    /// false if the unit has no faster way than others. Rows are as far apart as the second numbers of `from` and `to`
    /// state.
    ///
    /// # Safety
    /// `to` must be valid for writes of these rows, which no other thread uses meanwhile.
    pub(super) unsafe fn round(self, from: (&[f32], usize), columns: usize, to: (*mut bf16, usize)) -> bool {
        #[cfg(target_arch = "x86_64")]
        if matches!(self, Unit::Amx | Unit::Dots) {
            assert!(columns.is_multiple_of(BLOCK) && columns <= from.1, "tiles: rows of {columns} sums");
            // SAFETY: the machine has what the set means; the caller vouches for the rows.
            unsafe { dots::round(from, columns, to) };
            return true;
        }
        let _ = (from, columns, to);
        false
    }

    /// Floating-point operations of a round of [`Unit::spin`]: a step of a whole block.
    pub(super) const SPIN_OPERATIONS: usize = BLOCK * BLOCK * STEP * 2;

    /// Multiplies numbers that stay in registers.
    pub(super) fn spin(self, rounds: usize) {
        let _ = rounds;
        match self {
            #[cfg(target_arch = "x86_64")]
            Unit::Amx => amx::Configured::new().spin(rounds),
            // SAFETY: the set is available.
            #[cfg(target_arch = "x86_64")]
            Unit::Dots => unsafe { dots::spin(rounds) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Unit::Bfmmla => unsafe { bfmmla::spin(rounds) },
            #[cfg(any(test, feature = "testing"))]
            Unit::Model(_) => {
                let (a, b) = ([bf16::ONE; STEP_LEN], [bf16::ONE; STEP_LEN]);
                let mut sums = [0.0; BLOCK * BLOCK];
                let to = Sums { first: sums.as_mut_ptr(), row: BLOCK };
                for _ in 0..rounds {
                    let block = Multiply { a: &a, b: &b, rows: BLOCK, columns: BLOCK, from: Some(to), to, next: &[] };
                    // SAFETY: these are the sums of a whole block.
                    unsafe { self.begin().multiply(block) };
                }
            }
        }
    }

    /// Makes this thread ready, its tile registers if there are any, until the session is dropped.
    pub(super) fn begin(self) -> Session {
        match self {
            #[cfg(target_arch = "x86_64")]
            Unit::Amx => Session::Amx(amx::Configured::new()),
            #[cfg(target_arch = "x86_64")]
            Unit::Dots => Session::Dots,
            #[cfg(target_arch = "aarch64")]
            Unit::Bfmmla => Session::Bfmmla,
            #[cfg(any(test, feature = "testing"))]
            Unit::Model(instruction) => Session::Model(instruction),
        }
    }
}

/// A thread that multiplies blocks. When it ends, after a panic too, the tile registers are released, so that a context
/// switch saves none.
pub(super) enum Session {
    /// By the tile registers of the thread.
    #[cfg(target_arch = "x86_64")]
    Amx(amx::Configured),
    /// By its vector registers.
    #[cfg(target_arch = "x86_64")]
    Dots,
    #[cfg(target_arch = "aarch64")]
    Bfmmla,
    /// In software.
    #[cfg(any(test, feature = "testing"))]
    Model(model::Instruction),
}

impl Session {
    /// Whether blocks of fewer rows than whole tiles read and write no others.
    pub(super) fn keeps_to_rows(&self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Session::Dots => true,
            #[cfg(target_arch = "aarch64")]
            Session::Bfmmla => true,
            #[cfg(any(target_arch = "x86_64", test, feature = "testing"))]
            _ => false,
        }
    }

    /// Computes a block.
    ///
    /// # Safety
    /// `from` must be valid for reads and `to` for writes of whole tiles, which no other thread uses meanwhile.
    ///
    /// # Panics
    /// If an operand is not whole steps.
    pub(super) unsafe fn multiply(&self, block: Multiply<'_>) {
        let Multiply { a, b, rows, columns, .. } = block;
        assert!(a.len() == b.len() && a.len().is_multiple_of(STEP_LEN), "tiles: {} by {} numbers", a.len(), b.len());
        assert!((1..=BLOCK).contains(&rows) && (1..=BLOCK).contains(&columns), "tiles: block of {rows} x {columns}");
        // SAFETY: by the caller, and the assertions above are the conditions on lengths.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Session::Amx(tiles) => tiles.multiply(block),
                #[cfg(target_arch = "x86_64")]
                Session::Dots => dots::multiply(block),
                #[cfg(target_arch = "aarch64")]
                Session::Bfmmla => bfmmla::multiply(block),
                #[cfg(any(test, feature = "testing"))]
                Session::Model(instruction) => model::multiply(*instruction, block),
            }
        }
    }
}
