//! Decoders: a family is a configuration that implements [`DecoderFamily`]; `crate::model::llama` is the pattern.

mod architecture;
pub mod family;

pub use super::head::Head as DecoderHead;
pub use super::position_table::{Count, PositionTable};
pub use architecture::Decoder;
pub use family::{Classes, DecoderFamily, Layout};

/// A decoder of a family with its head.
pub type DecoderModel<C> = super::Transformer<Decoder<C>>;
