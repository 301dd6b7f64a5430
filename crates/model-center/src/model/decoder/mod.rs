//! What decoders share: the batch with labels moved by one, the stack of blocks with the norm behind it, the heads, and
//! what programs call.
//!
//! A family adds its embeddings, its configuration and its names: `crate::model::gpt2` is the pattern. Called by those
//! families; a batch goes through [`Decoder::score`] to [`DecoderBatch`], through the family's `embed` to
//! [`DecoderStack`] and at the end to [`DecoderHeads`].

pub mod batch;
pub mod heads;
pub mod stack;
mod text;

pub use batch::DecoderBatch;
pub use heads::{DecoderHead, DecoderHeads, DecoderOutput};
pub use stack::DecoderStack;
pub use text::{Decoder, DecoderFacts};
