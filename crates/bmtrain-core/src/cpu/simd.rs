//! Vector code without intrinsics: plain loops, compiled for several instruction sets and chosen once at run time.
//!
//! A loop whose rounding must not depend on the machine uses neither [`Isa::mul_add`] nor anything else of `Isa`.

use std::sync::OnceLock;

/// The instruction sets that loops are compiled for, best last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// What every machine of the target has.
    Baseline,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    Avx512,
}

/// The instruction set of a loop.
pub(crate) trait Isa {
    /// `a * b + c`, rounded once where the machine can, twice where it would take a function call.
    fn mul_add(a: f32, b: f32, c: f32) -> f32;
}

/// Instruction sets with fused multiply-add.
pub(crate) struct Fused;
/// Instruction sets without.
pub(crate) struct Separate;

impl Isa for Fused {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

impl Isa for Separate {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
}

pub(crate) fn level() -> Level {
    #[cfg(test)]
    if let Some(forced) = forced::LEVEL.get() {
        return forced;
    }
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(detect)
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Level {
    let fused = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let wide = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq");
    match (fused, wide) {
        (true, true) => Level::Avx512,
        (true, false) => Level::Avx2,
        (false, _) => Level::Baseline,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Level {
    Level::Baseline
}

/// Defines a function whose body is compiled for every [`Level`]; a call runs the best one of the machine.
///
/// `vectorised! { fn name<I>(x: &[f32]) -> f32 { … } }`: `I` is the [`Isa`] inside the body. Bodies are `for` loops
/// over slices; a call costs a few nanoseconds, so it takes a tile of numbers and not one.
macro_rules! vectorised {
    ($(
        $(#[$attribute:meta])*
        $visibility:vis fn $name:ident<$isa:ident>($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block
    )*) => {$(
        $(#[$attribute])*
        #[allow(unsafe_code, clippy::too_many_arguments)]
        $visibility fn $name($($argument: $type),*) $(-> $result)? {
            #[inline(always)]
            fn body<$isa: $crate::cpu::simd::Isa>($($argument: $type),*) $(-> $result)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
                fn avx512($($argument: $type),*) $(-> $result)? {
                    body::<$crate::cpu::simd::Fused>($($argument),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($argument: $type),*) $(-> $result)? {
                    body::<$crate::cpu::simd::Fused>($($argument),*)
                }
                match $crate::cpu::simd::level() {
                    // SAFETY: `level` answers so only after it found every feature that the function was compiled with.
                    $crate::cpu::simd::Level::Avx512 => return unsafe { avx512($($argument),*) },
                    // SAFETY: as above.
                    $crate::cpu::simd::Level::Avx2 => return unsafe { avx2($($argument),*) },
                    $crate::cpu::simd::Level::Baseline => {}
                }
            }
            body::<$crate::cpu::simd::Separate>($($argument),*)
        }
    )*};
}
pub(crate) use vectorised;

/// Accumulators of a sum: enough independent chains to hide the latency of an addition.
pub(crate) const LANES: usize = 32;

/// Add up the lanes of a sum, halving, in an order of its own.
#[inline(always)]
pub(crate) fn add_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Tests run each level of the machine in turn, on their own thread.
#[cfg(test)]
pub(crate) mod forced {
    use super::{Level, detect};
    use std::cell::Cell;

    thread_local! {
        pub(crate) static LEVEL: Cell<Option<Level>> = const { Cell::new(None) };
    }

    pub(crate) fn for_each_level(work: impl Fn(Level)) {
        for level in [Level::Baseline, Level::Avx2, Level::Avx512] {
            if level <= detect() {
                LEVEL.set(Some(level));
                work(level);
            }
        }
        LEVEL.set(None);
    }
}
