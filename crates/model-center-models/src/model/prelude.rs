//! What the file of a family uses, beside the kind of its transformer ([`decoder`](super::decoder),
//! [`encoder`](super::encoder) or [`seq2seq`](super::seq2seq)).

pub use std::borrow::Cow;

pub use bmtrain_core::kernel::{Activation, RotaryLayout};
pub use bmtrain_dist::nn::norm::NormOptions;
pub use bmtrain_dist::param::Init;
pub use serde_json::{Map, Value, json};

pub use super::position_table::{Count, PositionTable};
pub use super::{ModelEntry, load};
pub use crate::layer::position::{RelativeConfig, RotaryConfig, RotaryScaling};
pub use crate::layer::{AttentionConfig, BlockConfig, FeedForwardConfig, Placement, PositionsConfig, RotaryHeads};
pub use model_center_base::error::{Error, Result};
pub use model_center_formats::config::dialect::{Dialect, Fixed, FixedFields, Spoken};
pub use model_center_formats::config::rows::{self, ConfigRows, Row, RowConfig, Slot};
pub use model_center_formats::config::{ClassFields, Fields, HfHeader, RotaryFields, TextConfig, WindowFields};
pub use model_center_formats::model_config;
pub use model_center_formats::{Alias, NameTable, Rule, torchtitan};

pub(super) use super::block::{block, block_without_biases};
pub(super) use super::fairseq;
pub(super) use super::registry::{Family, Signature};
pub(crate) use model_center_formats::config::model_center::{Class, RELATIVE};
pub(crate) use model_center_formats::config::ranges::Ranges;
pub(crate) use model_center_formats::config::text::UNLIMITED;
pub(crate) use model_center_formats::config::{encoder_decoder, model_center};
