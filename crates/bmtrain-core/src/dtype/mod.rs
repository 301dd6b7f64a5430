//! Dtypes known at run time, and the Rust types that store them.

mod block_format;

pub use block_format::BlockFormat;

use half::{bf16, f16};
use std::fmt;

/// The type of the elements of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16: the upper half of a single.
    BF16,
    /// Signed 64-bit integer.
    I64,
    /// Signed 32-bit integer.
    I32,
    /// Byte; 0 and 1 when it stands for a truth value.
    U8,
    /// Byte of a block of quantised elements: a matrix `[rows, columns]` in blocks is a tensor `[rows, bytes of a row]`
    /// of this type, see [`BlockFormat::row_bytes`]. Products, the gradients of their inputs and table lookups read it;
    /// it has no gradient.
    Blocks(BlockFormat),
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::U8 | DType::Blocks(_) => 1,
        }
    }

    /// Whether this is one of the floating-point types, the only ones that carry gradients.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16)
    }

    /// The short lower-case name used in recipes, reports and errors.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::I64 => "i64",
            DType::I32 => "i32",
            DType::U8 => "u8",
            DType::Blocks(format) => format.name(),
        }
    }

    /// The nearest number of this type, for a 16-bit float; other types leave it as it is.
    pub fn rounded(self, value: f32) -> f32 {
        match self {
            DType::F16 => Float::to_f32(<f16 as Float>::from_f32(value)),
            DType::BF16 => Float::to_f32(<bf16 as Float>::from_f32(value)),
            _ => value,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that stores one element of a [`DType`].
pub trait Element: bytemuck::Pod + Send + Sync + fmt::Debug + 'static {
    /// The run-time name of this type.
    const DTYPE: DType;
}

/// An [`Element`] that arithmetic widens to single precision.
pub trait Float: Element + PartialOrd {
    /// Widen, exact.
    fn to_f32(self) -> f32;
    /// Narrow, rounding to nearest, ties to even.
    fn from_f32(value: f32) -> Self;
}

macro_rules! element {
    ($($rust:ty => $dtype:ident),* $(,)?) => {$(
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}
element!(f32 => F32, f16 => F16, bf16 => BF16, i64 => I64, i32 => I32, u8 => U8);

impl Float for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }
}

impl Float for f16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        f16::from_f32(value)
    }
}

impl Float for bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    /// Branch-free so that loops over it become vector code; NaN keeps its sign and becomes quiet.
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        let quiet_nan = (bits >> 16) | 0x0040;
        bf16::from_bits(if value.is_nan() { quiet_nan } else { rounded } as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_bf16_rounding_equals_the_half_crate_on_many_bit_patterns() {
        for i in 0..=u16::MAX {
            for low in [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let value = f32::from_bits((u32::from(i) << 16) | low);
                let (ours, theirs) = (<bf16 as Float>::from_f32(value), bf16::from_f32(value));
                assert!(ours.to_bits() == theirs.to_bits() || (value.is_nan() && ours.is_nan()), "{value:e}");
            }
        }
    }

    #[test]
    fn sizes_and_names_are_those_of_the_storage_types() {
        assert_eq!(DType::F32.size(), size_of::<f32>());
        assert_eq!(DType::BF16.size(), size_of::<bf16>());
        assert_eq!(DType::I64.size(), size_of::<i64>());
        assert_eq!(DType::BF16.to_string(), "bf16");
        assert!(DType::F16.is_float() && !DType::I32.is_float());
    }
}
