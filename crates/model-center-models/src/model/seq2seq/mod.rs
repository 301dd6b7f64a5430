//! Encoder-decoders: a family is a configuration that implements [`Seq2SeqFamily`]; `crate::model::t5` is the pattern.

mod architecture;
pub mod family;

pub use super::architecture::Added;
pub use super::head::Head as Seq2SeqHead;
pub use super::sinusoids::Sinusoids;
pub use architecture::EncoderDecoder;
pub use family::{Around, Classes, Layout, Seq2SeqFamily};

/// An encoder-decoder of a family with its head.
pub type Seq2SeqModel<C> = super::Transformer<EncoderDecoder<C>>;
