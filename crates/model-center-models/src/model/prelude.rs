//! What the file of a family uses.

pub use std::borrow::Cow;

pub use bmtrain_core::kernel::{Activation, RotaryLayout};
pub use bmtrain_dist::nn::norm::NormOptions;
pub use bmtrain_dist::param::Init;
pub use serde_json::{Map, Value, json};

pub use crate::layer::position::{RelativeConfig, RotaryConfig, RotaryScaling};
pub use crate::layer::{
    AttentionConfig, BlockConfig, FeedForwardConfig, HeadNorm, Placement, PositionsConfig, RotaryHeads,
};
pub use crate::model::architecture::position_table::{Count, PositionTable};
pub use crate::model::architecture::{
    Added, Architecture, BlockPlace, Classes, FamilyBlock, ModelFamily, Projection, Spec, StackSpec,
};
pub use crate::model::family::ModelEntry;
pub use crate::model::head::{ClassifierInput, Head, HeadDropout, HeadSpec};
pub use crate::model::transformer::Transformer;
pub use crate::model::transformer::sinusoids::Sinusoids;
pub use model_center_base::error::{Error, Result};
pub use model_center_formats::config::dialect::{Dialect, Fixed, FixedFields, Spoken};
pub use model_center_formats::config::rows::{self, ConfigRows, Row, RowConfig, Slot};
pub use model_center_formats::config::{
    ClassFields, Fields, HfHeader, LayerRotary, LayerSharing, LayerWindows, RotaryFields, SharingStyle, TextConfig,
    TextHead, TokenPooling, WindowFields,
};
pub use model_center_formats::model_config;
pub use model_center_formats::{Alias, NameTable, Rule, torchtitan};

pub(super) use crate::model::architecture::block::{block, block_without_biases};
pub(super) use crate::model::architecture::{encoder_files, fairseq, model_center_names};
pub(super) use crate::model::family::Family;
pub(super) use crate::model::load::family_names::Signature;
pub(crate) use model_center_formats::config::model_center::{Class, RELATIVE};
pub(crate) use model_center_formats::config::ranges::Ranges;
pub(crate) use model_center_formats::config::text::UNLIMITED;
pub(crate) use model_center_formats::config::{encoder_decoder, model_center};
