//! Decoders: a family is a configuration that implements [`DecoderFamily`]; `family::llama` is the pattern.
//! A block of its own implements [`DecoderBlock`].

mod architecture;
pub mod family;

use crate::layer::TransformerBlock;

pub use crate::model::head::Head as DecoderHead;
pub use architecture::Decoder;
pub use family::{Classes, DecoderBlock, DecoderFamily, Layout};

/// A decoder of a family with its head.
pub type DecoderModel<C, B = TransformerBlock> = crate::model::Transformer<Decoder<C, B>>;
