//! The models, and the registry through which programs open them by directory.
//!
//! A batch goes to [`TextModel::loss`] of a [`Transformer`], which is a [`bmtrain_dist::Model`]. Its family is a module
//! that describes configuration, blocks and names, one line in [`MODELS`] and one golden test. Models of other crates
//! come in through a [`Registry`] of their own.

pub mod architecture;
pub mod batch;
pub mod decode;
pub mod family;
pub mod head;
pub mod load;
pub mod prelude;
pub mod text_model;
pub mod transformer;

pub use batch::labels::Targets;
pub use batch::loss_settings::LossSettings;
pub use decode::decoding::{Decoding, DecodingOptions};
pub use decode::packed::{LogitsRead, PackedDecoding, SequenceTokens};
pub use family::{
    Description, FamilyFacts, MODELS, ModelEntry, albert, bart, bert, bloom, cpm_t5, cpm1, cpm2, cwm, distilbert,
    electra, gemma2, gemma3, glm4, gpt_neox, gpt2, gptj, granite, llama, marian, megatron_bert, ministral, mistral,
    modernbert, mpnet, olmo2, olmo3, opt, phi3, qwen2, qwen3, roberta, seed_oss, smollm3, t5,
};
pub use head::Head;
pub use head::cross_encoder::CrossEncoder;
pub use head::lm_operands::LmOperands;
pub(crate) use head::pooling::weighted_sum;
pub use head::pooling::{Pooling, PoolingMode};
pub use head::sentence_encoder::{DenseActivation, DenseSettings, SentenceEncoder, sentence_field, sentence_files};
pub use load::division::Division;
pub use load::open_options::{HeadInit, OpenMode, OpenOptions, StageOptions, WeightForm};
pub use load::opening::TENSOR_RANKS;
pub(crate) use load::opening::from_parameters;
pub use load::registry::{OpenedModel, Registry};
pub use load::timed_partition::partition_by_time;
pub use model_center_base::batch::{Batch, Labels, VerbalizerBatch};
pub use model_center_formats::Fill;
pub use model_center_formats::config::TextHead;
pub use model_center_formats::directory::SaveOptions;
pub use text_model::{
    Decode, ForwardOptions, ForwardOutputs, Hidden, HiddenOutputs, LoadMicroBatch, ModelInfo, ModelOutput, SaveModel,
    Staged, TextModel,
};
pub use transformer::Transformer;
pub use transformer::sinusoids::Sinusoids;
