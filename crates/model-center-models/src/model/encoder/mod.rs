//! Encoders: a family is a configuration that implements [`EncoderFamily`]; `crate::model::bert` and
//! `crate::model::roberta` are the patterns, and `crate::model::megatron_bert` is the one with norms before layers.

mod architecture;
pub mod family;
pub mod names;

pub use super::head::Head as EncoderHead;
pub use architecture::Encoder;
pub use family::{Classifier, EncoderFamily, Layout};

/// An encoder of a family with its head.
pub type EncoderModel<C> = super::Transformer<Encoder<C>>;
