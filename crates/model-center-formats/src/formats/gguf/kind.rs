//! Storage of a GGUF tensor's elements.

use std::fmt;

use bmtrain_core::BlockFormat;

use crate::formats::safetensors::StoredDtype;

/// A type of elements that is read: plain floats, or blocks of small integers with their scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgmlType {
    /// Single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of single precision.
    BF16,
    /// Blocks of small integers.
    Blocks(BlockFormat),
}

/// The types that are read, with their numbers in the format.
const READ: &[(u32, GgmlType)] = &[
    (0, GgmlType::F32),
    (1, GgmlType::F16),
    (2, GgmlType::Blocks(BlockFormat::Q4_0)),
    (3, GgmlType::Blocks(BlockFormat::Q4_1)),
    (6, GgmlType::Blocks(BlockFormat::Q5_0)),
    (7, GgmlType::Blocks(BlockFormat::Q5_1)),
    (8, GgmlType::Blocks(BlockFormat::Q8_0)),
    (12, GgmlType::Blocks(BlockFormat::Q4K)),
    (13, GgmlType::Blocks(BlockFormat::Q5K)),
    (14, GgmlType::Blocks(BlockFormat::Q6K)),
    (30, GgmlType::BF16),
];

/// The names of the others that the format has.
const OTHERS: &[(u32, &str)] = &[
    (4, "Q4_2"),
    (5, "Q4_3"),
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
    (39, "MXFP4"),
    (40, "NVFP4"),
    (41, "Q1_0"),
];

impl GgmlType {
    /// The type of a number of the format; otherwise what it is called there, if anything.
    pub(super) fn of(number: u32) -> Result<Self, Option<&'static str>> {
        let read = READ.iter().find(|(known, _)| *known == number).map(|(_, kind)| *kind);
        read.ok_or_else(|| OTHERS.iter().find(|(known, _)| *known == number).map(|(_, name)| *name))
    }

    pub(super) fn supported() -> String {
        READ.iter().map(|(_, kind)| kind.to_string()).collect::<Vec<_>>().join(", ")
    }

    /// The format of its blocks; `None` for plain floats.
    pub fn blocks(self) -> Option<BlockFormat> {
        match self {
            Self::Blocks(format) => Some(format),
            Self::F32 | Self::F16 | Self::BF16 => None,
        }
    }

    /// The type's name in the format.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Blocks(format) => format.name(),
        }
    }

    /// Elements and bytes of one block; a row is a whole number of blocks.
    pub fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::BF16 => (1, 2),
            Self::Blocks(format) => (format.elements(), format.bytes()),
        }
    }

    /// The plain type that a tensor of this type is presented as: its own, or F32 for blocks.
    pub fn presented(self) -> StoredDtype {
        match self {
            Self::F16 => StoredDtype::F16,
            Self::BF16 => StoredDtype::BF16,
            Self::F32 | Self::Blocks(_) => StoredDtype::F32,
        }
    }

    /// Whether elements are stored individually, without blocks.
    pub fn is_plain(self) -> bool {
        self.blocks().is_none()
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
