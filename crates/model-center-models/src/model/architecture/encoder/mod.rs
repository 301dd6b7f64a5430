//! Encoders: a family is a configuration that implements [`EncoderFamily`]; `family::bert` and
//! `family::roberta` are the patterns, and `family::megatron_bert` is the one with norms before layers.

mod architecture;
pub mod family;
pub mod names;

pub use crate::model::head::Head as EncoderHead;
pub use architecture::Encoder;
pub use family::{Classifier, EncoderFamily, Layout};

/// An encoder of a family with its head.
pub type EncoderModel<C> = crate::model::Transformer<Encoder<C>>;
