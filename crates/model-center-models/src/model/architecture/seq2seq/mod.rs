//! Encoder-decoders: a family is a configuration that implements [`Seq2SeqFamily`]; `family::t5` is the pattern.

mod architecture;
pub mod family;

pub use super::Added;
pub use crate::model::head::Head as Seq2SeqHead;
pub use crate::model::transformer::sinusoids::Sinusoids;
pub use architecture::EncoderDecoder;
pub use family::{Around, Classes, Layout, Seq2SeqFamily};

/// An encoder-decoder of a family with its head.
pub type Seq2SeqModel<C> = crate::model::Transformer<EncoderDecoder<C>>;
