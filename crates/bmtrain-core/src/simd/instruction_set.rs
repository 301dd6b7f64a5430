//! The instruction sets that the CPU backend is compiled for, and which of them the running code uses.
//!
//! A backend has one ([`CpuOptions`](crate::threads::CpuOptions)). Its kernels are compiled for all; `launch` and the
//! threads of the backend's pool set [`InstructionSet::current`], which the inner loops ask.

#[cfg(target_arch = "x86_64")]
use super::amx;
use crate::error::{Error, Result};
use std::cell::Cell;
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// An instruction set with vectors of f32.
///
/// Results have the same bits on every machine with the set, and may differ in the last bits from another set's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InstructionSet {
    /// Plain Rust without fused multiply-add, for every processor.
    Portable,
    /// 128-bit vectors with fused multiply-add: NEON, which every AArch64 processor has.
    Neon,
    /// [`InstructionSet::Neon`], with products of bf16 by bf16, also in attention, by BFMMLA of FEAT_BF16. Everything
    /// else has the bits of that set. For requests alone, since it has not been measured.
    NeonBf16,
    /// 256-bit vectors with fused multiply-add: AVX2, FMA and F16C.
    Avx2,
    /// 512-bit vectors: AVX-512 F, VL, BW and DQ.
    Avx512,
    /// [`InstructionSet::Avx512`], with products of bf16 by bf16, also in attention, by the dot products of
    /// AVX512_BF16. Everything else has the bits of that set. On AMD's processors such products are twice as fast as of
    /// f32; on Intel's half as fast, so that there it is for requests alone.
    Avx512Bf16,
    /// [`InstructionSet::Avx512`], with products of bf16 by bf16, also in attention, in the tile registers of Intel
    /// AMX. Everything else has the bits of that set.
    Amx,
    /// [`InstructionSet::Amx`] for tests on any processor: a software model computes the products of tiles, the widest
    /// other set everything else. In no list of sets; a thousand times slower.
    #[cfg(any(test, feature = "testing"))]
    AmxModel,
    /// [`InstructionSet::Avx512Bf16`] for tests on any processor, likewise.
    #[cfg(any(test, feature = "testing"))]
    Avx512Bf16Model,
    /// [`InstructionSet::NeonBf16`] for tests on any processor, likewise.
    #[cfg(any(test, feature = "testing"))]
    NeonBf16Model,
}

thread_local! {
    static CURRENT: Cell<Option<InstructionSet>> = const { Cell::new(None) };
}

impl InstructionSet {
    /// Every set, the widest last.
    pub const ALL: [Self; 7] = [
        InstructionSet::Portable,
        InstructionSet::Neon,
        InstructionSet::NeonBf16,
        InstructionSet::Avx2,
        InstructionSet::Avx512,
        InstructionSet::Avx512Bf16,
        InstructionSet::Amx,
    ];

    /// The sets that multiply bf16 by bf16, each with its model.
    #[cfg(any(test, feature = "testing"))]
    pub const MODELS: [(Self, Self); 3] = [
        (InstructionSet::Amx, InstructionSet::AmxModel),
        (InstructionSet::Avx512Bf16, InstructionSet::Avx512Bf16Model),
        (InstructionSet::NeonBf16, InstructionSet::NeonBf16Model),
    ];

    /// The name that [`InstructionSet::from_str`] reads.
    pub fn name(self) -> &'static str {
        match self {
            InstructionSet::Portable => "portable",
            InstructionSet::Neon => "neon",
            InstructionSet::NeonBf16 => "neon_bf16",
            InstructionSet::Avx2 => "avx2",
            InstructionSet::Avx512 => "avx512",
            InstructionSet::Avx512Bf16 => "avx512_bf16",
            InstructionSet::Amx => "amx",
            #[cfg(any(test, feature = "testing"))]
            InstructionSet::AmxModel => "amx-model",
            #[cfg(any(test, feature = "testing"))]
            InstructionSet::Avx512Bf16Model => "avx512_bf16-model",
            #[cfg(any(test, feature = "testing"))]
            InstructionSet::NeonBf16Model => "neon_bf16-model",
        }
    }

    /// Whether this process can use it. For [`InstructionSet::Amx`] the first call asks the kernel for permission to
    /// use tile registers.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        let available = match self {
            InstructionSet::Portable => true,
            InstructionSet::Neon | InstructionSet::NeonBf16 => false,
            InstructionSet::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            }
            InstructionSet::Avx512 => {
                InstructionSet::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
            }
            InstructionSet::Avx512Bf16 => {
                InstructionSet::Avx512.is_available() && is_x86_feature_detected!("avx512bf16")
            }
            InstructionSet::Amx => InstructionSet::Avx512Bf16.is_available() && amx::is_usable(),
            #[cfg(any(test, feature = "testing"))]
            InstructionSet::AmxModel | InstructionSet::Avx512Bf16Model | InstructionSet::NeonBf16Model => true,
        };
        #[cfg(not(target_arch = "x86_64"))]
        let available = match self {
            InstructionSet::Portable => true,
            #[cfg(target_arch = "aarch64")]
            InstructionSet::Neon => true,
            #[cfg(target_arch = "aarch64")]
            InstructionSet::NeonBf16 => std::arch::is_aarch64_feature_detected!("bf16"),
            #[cfg(any(test, feature = "testing"))]
            InstructionSet::AmxModel | InstructionSet::Avx512Bf16Model | InstructionSet::NeonBf16Model => true,
            _ => false,
        };
        available
    }

    /// The sets of this processor, the widest last.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|set| set.is_available())
    }

    /// The fastest set of this processor, as far as that is known.
    pub fn best() -> Self {
        static BEST: OnceLock<InstructionSet> = OnceLock::new();
        *BEST.get_or_init(|| {
            let is_fast = |set: &Self| match set {
                InstructionSet::Avx512Bf16 => has_fast_dots(),
                InstructionSet::NeonBf16 => false,
                _ => true,
            };
            Self::available().filter(is_fast).last().unwrap_or(InstructionSet::Portable)
        })
    }

    /// Whether it multiplies bf16 by bf16, instead of numbers that are widened to f32 before.
    pub fn multiplies_bf16(self) -> bool {
        self.vectors() != self
    }

    /// The set whose results a computation has, with products of bf16 by bf16 or without: this one, or the set that
    /// computes everything else.
    pub fn of_products(self, in_bf16: bool) -> Self {
        if in_bf16 { self } else { self.vectors() }
    }

    /// The set of everything but products of bf16 by bf16.
    pub(crate) fn vectors(self) -> Self {
        match self {
            InstructionSet::Amx | InstructionSet::Avx512Bf16 => InstructionSet::Avx512,
            InstructionSet::NeonBf16 => InstructionSet::Neon,
            #[cfg(any(test, feature = "testing"))]
            InstructionSet::AmxModel | InstructionSet::Avx512Bf16Model | InstructionSet::NeonBf16Model => {
                Self::best().vectors()
            }
            other => other,
        }
    }

    /// The set that the calling thread's loops use: its backend's, otherwise the best.
    pub(crate) fn current() -> Self {
        CURRENT.get().unwrap_or_else(Self::best)
    }

    /// Run `work` with loops of this set, which the caller knows to be available.
    pub(crate) fn within<R>(self, work: impl FnOnce() -> R) -> R {
        struct Restore(Option<InstructionSet>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CURRENT.set(self.0);
            }
        }
        let _restore = Restore(CURRENT.replace(Some(self)));
        work()
    }

    /// Make it the set of the calling thread for good.
    pub(crate) fn of_thread(self) {
        CURRENT.set(Some(self));
    }

    /// Refuse a set that this processor does not have.
    pub(crate) fn check(self) -> Result<()> {
        if self.is_available() {
            return Ok(());
        }
        let has: Vec<&str> = Self::available().map(Self::name).collect();
        Err(Error::argument("cpu", format!("this processor does not have {self}; it has {}", has.join(", "))))
    }
}

/// Whether dot products of bf16 (VDPBF16PS) are faster than multiply-adds of f32: on AMD's processors, which have the
/// instruction since Zen 4, they are twice as fast, on Intel's half as fast. The maker decides, not a measurement, so
/// that the bits of a run do not depend on one.
fn has_fast_dots() -> bool {
    #[cfg(target_arch = "x86_64")]
    #[allow(unsafe_code, unused_unsafe)] // `cpuid` is safe in newer standard libraries.
    {
        // SAFETY: every x86-64 processor has the instruction.
        let maker = unsafe { std::arch::x86_64::__cpuid(0) };
        let letters = [maker.ebx, maker.edx, maker.ecx].map(u32::to_le_bytes);
        letters.as_flattened() == b"AuthenticAMD"
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

impl fmt::Display for InstructionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for InstructionSet {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|set| set.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Error::argument("cpu", format!("unknown instruction set {text:?}: there are {names}"))
        })
    }
}

/// Runs `work` once with each set of this machine, and with the model of AMX.
#[cfg(test)]
pub(crate) fn for_each_set(work: impl Fn(InstructionSet)) {
    for set in InstructionSet::available().chain([InstructionSet::AmxModel]) {
        set.within(|| work(set));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_are_refused_with_the_known_ones() {
        for set in InstructionSet::ALL {
            assert_eq!(set.to_string().parse::<InstructionSet>().unwrap(), set);
        }
        let error = "avx".parse::<InstructionSet>().unwrap_err().to_string();
        assert!(error.contains("portable, neon, neon_bf16, avx2, avx512, avx512_bf16, amx"), "{error}");
    }

    #[test]
    fn a_set_that_multiplies_bf16_computes_everything_else_by_the_widest_vectors() {
        let multiply = InstructionSet::MODELS.map(|(set, _)| set);
        assert_eq!(
            multiply.map(InstructionSet::vectors),
            [InstructionSet::Avx512, InstructionSet::Avx512, InstructionSet::Neon]
        );
        for (set, model) in InstructionSet::MODELS {
            assert!(set.is_available() <= set.vectors().is_available());
            assert!(model.vectors().is_available() && model.multiplies_bf16());
        }
        for set in InstructionSet::available() {
            assert_eq!(set.multiplies_bf16(), multiply.contains(&set));
            assert_eq!(set.vectors() == set, !multiply.contains(&set));
        }
    }

    #[test]
    fn dot_products_of_bf16_are_the_default_where_they_are_fast_and_nothing_is_faster() {
        assert_ne!(InstructionSet::best(), InstructionSet::NeonBf16);
        let (dots, tiles) = (InstructionSet::Avx512Bf16.is_available(), InstructionSet::Amx.is_available());
        assert_eq!(InstructionSet::best() == InstructionSet::Avx512Bf16, dots && has_fast_dots() && !tiles);
    }

    #[test]
    fn a_set_holds_within_its_work_and_on_its_thread_only() {
        let outside = InstructionSet::current();
        InstructionSet::Portable.within(|| {
            assert_eq!(InstructionSet::current(), InstructionSet::Portable);
            InstructionSet::best().within(|| assert_eq!(InstructionSet::current(), InstructionSet::best()));
            assert_eq!(InstructionSet::current(), InstructionSet::Portable);
            let elsewhere = std::thread::spawn(InstructionSet::current).join().unwrap();
            assert_eq!(elsewhere, InstructionSet::best());
        });
        assert_eq!(InstructionSet::current(), outside);
    }
}
