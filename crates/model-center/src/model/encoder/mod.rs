//! Encoders, written once: embeddings, post-norm blocks, the heads people train, directories, and what programs call.
//!
//! A family is a configuration that implements [`EncoderFamily`]: `crate::model::bert` and `crate::model::roberta` are
//! the patterns. A batch goes through [`EncoderModel`]'s `embed`, the blocks and at the end to [`EncoderHeads`].
//! [`directory::open`] is what a family's line in a registry calls, [`names`] what the families' files have alike.

pub mod batch;
pub mod directory;
pub mod family;
pub mod heads;
mod model;
pub mod names;

pub use batch::EncoderBatch;
pub use family::{Classifier, EncoderFamily, Layout};
pub use heads::{EncoderHead, EncoderHeads, EncoderOutput};
pub use model::EncoderModel;
