//! [`BlockFormat`]: how quantised elements are stored, in blocks with their scales.
//!
//! Called wherever a [`DType`](super::DType) is. Blocks become numbers, and numbers blocks, in
//! [`quantised`](crate::quantised), which publishes the formats too.

use std::fmt;

/// Storage of a block of elements. A row of a matrix is a whole number of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockFormat {
    /// 32 times 4 bits around 8, with a scale.
    Q4_0,
    /// 32 times 4 bits, with a scale and the smallest value.
    Q4_1,
    /// 32 times 5 bits around 16, with a scale.
    Q5_0,
    /// 32 times 5 bits, with a scale and the smallest value.
    Q5_1,
    /// 32 times 8 bits, with a scale.
    Q8_0,
    /// 256 times 4 bits, with 8 scales and smallest values of 6 bits.
    Q4K,
    /// 256 times 5 bits, with 8 scales and smallest values of 6 bits.
    Q5K,
    /// 256 times 6 bits around 32, with 16 scales of 8 bits.
    Q6K,
    /// 64 times 4 bits, each the number of a quantile of the normal distribution, with a scale: see
    /// [`Nf4`](crate::quantised::Nf4).
    NF4,
}

impl BlockFormat {
    /// Every format.
    pub const ALL: [BlockFormat; 9] =
        [Self::Q4_0, Self::Q4_1, Self::Q5_0, Self::Q5_1, Self::Q8_0, Self::Q4K, Self::Q5K, Self::Q6K, Self::NF4];

    /// Its name in GGUF, or in bitsandbytes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::NF4 => "NF4",
        }
    }

    /// Elements of a block.
    pub const fn elements(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::NF4 => 64,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of a block.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::NF4 => 36,
        }
    }

    /// Bytes of a row of this many elements; `None` if they are no whole number of blocks.
    pub const fn row_bytes(self, columns: usize) -> Option<usize> {
        match columns.is_multiple_of(self.elements()) {
            true => Some(columns / self.elements() * self.bytes()),
            false => None,
        }
    }

    /// Elements of a row of this many bytes; `None` if they are no whole number of blocks.
    pub const fn columns(self, row_bytes: usize) -> Option<usize> {
        match row_bytes.is_multiple_of(self.bytes()) {
            true => Some(row_bytes / self.bytes() * self.elements()),
            false => None,
        }
    }
}

impl fmt::Display for BlockFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
