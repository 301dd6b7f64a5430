//! Models with an encoder and a decoder, written once: the batch with decoder inputs made from labels, the two stacks
//! as sections, heads, directories, and what programs call.
//!
//! A family is a configuration that implements [`Seq2SeqFamily`]: `crate::model::t5` is the pattern with biases of
//! distances, `crate::model::bart` with positions that are added to the words. A batch becomes a [`Seq2SeqBatch`], goes
//! through [`Seq2SeqModel`]'s `embed` to the encoder's section, with its last states to the decoder's, and at the end
//! to [`Seq2SeqHeads`]. [`directory::open`] is what a family's line in a registry calls.

pub mod batch;
mod decoding;
pub mod directory;
mod entry;
pub mod family;
pub mod heads;
mod model;
mod sinusoids;

pub use batch::Seq2SeqBatch;
pub use family::{Added, Around, Classes, Layout, Seq2SeqFamily};
pub use heads::{Seq2SeqHead, Seq2SeqHeads};
pub use model::Seq2SeqModel;
pub use sinusoids::Sinusoids;
