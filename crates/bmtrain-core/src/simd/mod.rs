//! Vector code without intrinsics: plain loops, compiled for every [`InstructionSet`].
//!
//! Called by the kernels of the CPU, by reductions between ranks, and where quantised blocks become numbers. A loop
//! whose rounding must not depend on the machine uses neither [`Isa::mul_add`] nor anything else of `Isa`.

#[cfg(target_arch = "x86_64")]
mod amx;
mod half_precision;
mod instruction_set;

pub(crate) use half_precision::{f16_to_f32, f32_to_f16};
pub use instruction_set::InstructionSet;
#[cfg(test)]
pub(crate) use instruction_set::for_each_set;

/// The instruction set of a loop.
pub(crate) trait Isa {
    /// `a * b + c`, rounded once by instruction sets that can.
    fn mul_add(a: f32, b: f32, c: f32) -> f32;
}

/// Instruction sets with fused multiply-add.
pub(crate) struct Fused;
/// The portable set: a product and a sum, whatever the machine has, so that its results are the same on all of them.
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

/// Defines a function whose body is compiled for every instruction set; a call runs the code of the current one.
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
            fn body<$isa: $crate::simd::Isa>($($argument: $type),*) $(-> $result)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
                fn avx512($($argument: $type),*) $(-> $result)? {
                    body::<$crate::simd::Fused>($($argument),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($argument: $type),*) $(-> $result)? {
                    body::<$crate::simd::Fused>($($argument),*)
                }
                use $crate::simd::InstructionSet;
                match InstructionSet::current().vectors() {
                    // SAFETY: the current set is available, with every feature that the function is compiled with.
                    InstructionSet::Avx512 => return unsafe { avx512($($argument),*) },
                    // SAFETY: as above.
                    InstructionSet::Avx2 => return unsafe { avx2($($argument),*) },
                    _ => {}
                }
            }
            #[cfg(target_arch = "aarch64")]
            if $crate::simd::InstructionSet::current().vectors() == $crate::simd::InstructionSet::Neon {
                return body::<$crate::simd::Fused>($($argument),*);
            }
            body::<$crate::simd::Separate>($($argument),*)
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
