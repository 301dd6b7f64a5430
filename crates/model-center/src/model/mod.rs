//! The models, and the registry through which programs open them by folder.
//!
//! A model is one module here (its stages), one line in [`registry::MODELS`] and one golden test. Models of other crates
//! come in through a registry of their own, see [`registry::Registry`].

pub mod bert;
pub mod decoder;
pub mod encoder;
pub mod flow;
pub mod gpt2;
pub mod labels;
pub mod llama;
pub mod opening;
pub mod position_table;
pub mod registry;
pub mod roberta;
pub mod text;
mod word_loss;

pub use flow::TextFlow;
pub use labels::Labels;
pub use registry::{HeadValues, MODELS, ModelEntry, OpenOptions, OpenedModel, Registry, SaveOptions};
pub use text::{Scores, TextBatch, TextHead, TextLabels, TextModel};
