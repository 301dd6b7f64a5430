//! The models, and the registry through which programs open them by directory.
//!
//! A batch goes to [`TextModel::loss`] of a [`Transformer`], which is a [`bmtrain_dist::Model`]. Its family is a module
//! that describes configuration, blocks and names, one line in [`registry::MODELS`] and one golden test. Models of
//! other crates come in through a [`registry::Registry`] of their own.

mod adapter_save;
pub mod architecture;
pub mod bart;
pub mod batch;
mod batch_checks;
pub mod bert;
mod block;
pub mod bloom;
mod build;
mod class_families;
pub mod cpm1;
pub mod cpm2;
pub mod cpm_t5;
pub mod decoder;
mod decoder_inputs;
pub mod decoding;
pub mod division;
pub mod encoder;
mod fairseq;
mod family_names;
pub mod gpt2;
pub mod gptj;
pub mod head;
mod incremental;
pub mod infer;
mod inputs;
pub mod labels;
mod lesson;
pub mod llama;
mod lm_head;
mod lm_loss;
pub mod load;
pub mod marian;
pub mod megatron_bert;
pub mod mistral;
mod model_center_names;
mod modules;
mod open_options;
pub mod opening;
pub mod opt;
mod packed;
mod passes;
mod pooling;
pub mod position_table;
pub(crate) mod prefix;
pub mod prelude;
pub(crate) mod prompt;
pub mod qwen2;
pub mod qwen3;
pub mod registry;
pub mod roberta;
mod sentence_encoder;
pub mod seq2seq;
mod shared_layers;
mod sinusoids;
mod stack;
mod staged_stack;
pub mod t5;
pub mod text_model;
pub mod timed_partition;
pub mod transformer;

pub use decoding::{Decoding, DecodingOptions};
pub use labels::Targets;
pub use model_center_base::batch::{Batch, Labels, VerbalizerBatch};
pub use model_center_formats::Fill;
pub use model_center_formats::config::TextHead;
pub use opening::TENSOR_RANKS;
pub(crate) use opening::from_parameters;
pub use packed::{LogitsRead, PackedDecoding, SequenceTokens};
pub use pooling::{Pooling, PoolingMode};
pub use registry::{
    HeadInit, MODELS, ModelEntry, OpenOptions, OpenedModel, Registry, SaveOptions, StageOptions, WeightForm,
};
pub use sentence_encoder::sentence_files;
pub use sentence_encoder::{SentenceEncoder, sentence_field};
pub use text_model::{ForwardOutputs, ModelInfo, ModelOutput, TextModel};
pub use timed_partition::partition_by_time;
pub use transformer::Transformer;
