//! The tile registers of AMX, by inline assembly: the compiler's intrinsics are unstable.
#![allow(unsafe_code)]

use super::{Multiply, STEP_LEN, TILE};
use half::bf16;
use std::arch::asm;
use std::cell::Cell;
use std::marker::PhantomData;

/// Bytes of a row of a packed tile.
const LINE: usize = 64;

/// The operand of LDTILECFG.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes_of_row: [u16; 16],
    rows: [u8; 16],
}

/// Eight registers of 16 rows of 64 bytes.
static WHOLE_TILES: Configuration = Configuration {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    bytes_of_row: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

thread_local! {
    /// Sessions of this thread that have begun and not ended: an epilogue may begin another product.
    static SESSIONS: Cell<usize> = const { Cell::new(0) };
}

/// A thread with configured tiles. All sessions have the same configuration, so that the outermost loads and releases
/// it. No tile keeps a value between two calls.
pub(in crate::cpu) struct Configured {
    /// The registers belong to a thread: neither `Send` nor `Sync`.
    of_thread: PhantomData<*const ()>,
}

impl Configured {
    /// The machine has the tiles: [`super::Unit::Amx`] is of an instruction set that is available.
    pub(super) fn new() -> Self {
        let outer = SESSIONS.replace(SESSIONS.get() + 1);
        if outer == 0 {
            // SAFETY: the machine has the instruction and the process the permission, as the set's
            // availability means; it reads a configuration that its palette allows.
            unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const WHOLE_TILES, options(nostack, readonly)) }
        }
        Configured { of_thread: PhantomData }
    }

    /// Computes a block whose lengths were checked by [`super::Session::multiply`].
    ///
    /// # Safety
    /// As for that function.
    pub(super) unsafe fn multiply(&self, block: Multiply<'_>) {
        let routine = match (block.rows > TILE, block.columns > TILE) {
            (true, true) => two_by_two,
            (true, false) => two_by_one,
            (false, true) => one_by_two,
            (false, false) => one_by_one,
        };
        // SAFETY: tiles are configured. Both operands have as many steps, by the assertions of the caller, who vouches
        // for the sums.
        unsafe { routine(&block) }
    }

    /// Four products of tiles that stay in registers, again and again.
    pub(super) fn spin(&self, rounds: usize) {
        #[repr(align(64))]
        struct Numbers([bf16; STEP_LEN]);
        // Of ordinary size, and not alike: what tiles take depends on the numbers.
        let numbers = Numbers(std::array::from_fn(|at| bf16::from_f32((at * 7919 % 2003) as f32 / 1001.5 - 1.0)));
        if rounds == 0 {
            return;
        }
        // SAFETY: tiles are configured, and two whole tiles of numbers are read.
        unsafe {
            asm!(
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                "tileloadd tmm4, [{numbers} + {line}]", "tileloadd tmm5, [{numbers} + {line} + 1024]",
                "tileloadd tmm6, [{numbers} + {line} + 1024]", "tileloadd tmm7, [{numbers} + {line}]",
                "2:",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "dec {rounds}",
                "jnz 2b",
                rounds = inout(reg) rounds => _,
                numbers = in(reg) numbers.0.as_ptr(),
                line = in(reg) LINE,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly)
            );
        }
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        let sessions = SESSIONS.get() - 1;
        SESSIONS.set(sessions);
        if sessions == 0 {
            // SAFETY: the machine has the instruction; no session of this thread is left.
            unsafe { asm!("tilerelease", options(nostack, nomem)) }
        }
    }
}

/// A routine for a number of tiles: tmm0 to tmm3 have the sums, tmm4 and tmm5 rows of A, tmm6 and tmm7 columns of B.
///
/// B stays in the first-level cache while panel after panel of A streams through it, and is loaded with the hint that
/// states so (TILELOADDT1); without, A displaces B.
macro_rules! routine {
    ($name:ident, load [$($load:literal),*], zero [$($zero:literal),*], step [$($step:literal),*],
        store [$($store:literal),*]) => {
        /// # Safety
        /// Tiles must be configured, both operands have as many steps, and the sums be valid for their tiles.
        unsafe fn $name(block: &Multiply<'_>) {
            let Multiply { a, b, from, to, next, .. } = *block;
            let start = from.unwrap_or(to);
            // SAFETY: by the caller. Every tile is written before it is read; a prefetch may be of any address.
            unsafe {
                asm!(
                    "test {from}, {from}",
                    "jz 3f",
                    $($load,)*
                    "jmp 4f",
                    "3:",
                    $($zero,)*
                    "4:",
                    "test {steps}, {steps}",
                    "jz 5f",
                    "2:",
                    $($step,)*
                    "prefetcht1 [{next}]",
                    "prefetcht1 [{next} + 64]",
                    "prefetcht1 [{next} + 128]",
                    "prefetcht1 [{next} + 192]",
                    "add {next}, 256",
                    "add {a}, 2048",
                    "add {b}, 2048",
                    "dec {steps}",
                    "jnz 2b",
                    "5:",
                    $($store,)*
                    steps = inout(reg) a.len() / STEP_LEN => _,
                    a = inout(reg) a.as_ptr() => _,
                    b = inout(reg) b.as_ptr() => _,
                    next = inout(reg) next.as_ptr() => _,
                    line = in(reg) LINE,
                    from = in(reg) from.map_or(std::ptr::null_mut(), |from| from.first),
                    from_below = in(reg) start.first.wrapping_add(TILE * start.row),
                    from_row = in(reg) start.row * size_of::<f32>(),
                    to = in(reg) to.first,
                    to_below = in(reg) to.first.wrapping_add(TILE * to.row),
                    to_row = in(reg) to.row * size_of::<f32>(),
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack)
                );
            }
        }
    };
}

routine!(
    two_by_two,
    load [
        "tileloadd tmm0, [{from} + {from_row}]", "tileloadd tmm1, [{from} + {from_row} + 64]",
        "tileloadd tmm2, [{from_below} + {from_row}]", "tileloadd tmm3, [{from_below} + {from_row} + 64]"
    ],
    zero ["tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3"],
    step [
        "tileloadd tmm6, [{b} + {line}]",
        "tileloaddt1 tmm4, [{a} + {line}]",
        "tdpbf16ps tmm0, tmm4, tmm6",
        "tileloadd tmm7, [{b} + {line} + 1024]",
        "tdpbf16ps tmm1, tmm4, tmm7",
        "tileloaddt1 tmm5, [{a} + {line} + 1024]",
        "tdpbf16ps tmm2, tmm5, tmm6",
        "tdpbf16ps tmm3, tmm5, tmm7"
    ],
    store [
        "tilestored [{to} + {to_row}], tmm0", "tilestored [{to} + {to_row} + 64], tmm1",
        "tilestored [{to_below} + {to_row}], tmm2", "tilestored [{to_below} + {to_row} + 64], tmm3"
    ]
);
routine!(
    two_by_one,
    load ["tileloadd tmm0, [{from} + {from_row}]", "tileloadd tmm2, [{from_below} + {from_row}]"],
    zero ["tilezero tmm0", "tilezero tmm2"],
    step [
        "tileloadd tmm6, [{b} + {line}]",
        "tileloaddt1 tmm4, [{a} + {line}]",
        "tdpbf16ps tmm0, tmm4, tmm6",
        "tileloaddt1 tmm5, [{a} + {line} + 1024]",
        "tdpbf16ps tmm2, tmm5, tmm6"
    ],
    store ["tilestored [{to} + {to_row}], tmm0", "tilestored [{to_below} + {to_row}], tmm2"]
);
routine!(
    one_by_two,
    load [
        "tileloadd tmm0, [{from} + {from_row}]", "tileloadd tmm1, [{from} + {from_row} + 64]",
        "/* {from_below} {to_below} */"
    ],
    zero ["tilezero tmm0", "tilezero tmm1"],
    step [
        "tileloadd tmm6, [{b} + {line}]",
        "tileloaddt1 tmm4, [{a} + {line}]",
        "tdpbf16ps tmm0, tmm4, tmm6",
        "tileloadd tmm7, [{b} + {line} + 1024]",
        "tdpbf16ps tmm1, tmm4, tmm7"
    ],
    store ["tilestored [{to} + {to_row}], tmm0", "tilestored [{to} + {to_row} + 64], tmm1"]
);
routine!(
    one_by_one,
    load ["tileloadd tmm0, [{from} + {from_row}]", "/* {from_below} {to_below} */"],
    zero ["tilezero tmm0"],
    step [
        "tileloadd tmm6, [{b} + {line}]",
        "tileloaddt1 tmm4, [{a} + {line}]",
        "tdpbf16ps tmm0, tmm4, tmm6"
    ],
    store ["tilestored [{to} + {to_row}], tmm0"]
);
