//! Decoders, written once: the batch with labels moved by one, embeddings, the stack of blocks with the norm behind it,
//! the heads, directories, and what programs call.
//!
//! A family is a configuration that implements [`DecoderFamily`]: `crate::model::llama` is the pattern. A batch goes
//! through [`Decoder::score`] to [`DecoderBatch`], through [`DecoderModel`]'s `embed` to [`DecoderStack`] and at the
//! end to [`DecoderHeads`]. [`directory::open`] is what a family's line in a registry calls.

pub mod batch;
mod decoding;
pub mod directory;
pub mod family;
pub mod heads;
mod model;

pub use super::position_table::{Count, PositionTable};
pub use batch::DecoderBatch;
pub use family::{Classes, DecoderFamily, Layout};
pub use heads::{DecoderHead, DecoderHeads};
pub use model::DecoderModel;
