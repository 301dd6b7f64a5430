//! The properties of an encoder family; everything else is shared.
//!
//! Defines [`EncoderFamily`], which a family's configuration implements, and [`Layout`]. Called by
//! [`super::EncoderModel`] and [`open`](crate::model::load::open).

use super::EncoderHead;
use crate::layer::BlockConfig;
use crate::model::architecture::position_table::PositionTable;
use bmtrain_core::kernel::Activation;
use bmtrain_dist::param::Init;
use model_center_base::error::Result;
use model_center_formats::NameTable;
use model_center_formats::config::Fields;
use model_center_formats::config::dialect::Spoken;
use model_center_formats::config::ranges::refuse_other_encoders;
use model_center_formats::config::rows::{self, RowConfig};
use serde_json::{Map, Value};
use std::fmt::Debug;

/// A family of encoders, as its configuration describes it.
pub trait EncoderFamily: RowConfig + Debug {
    /// The input of its classifier.
    const CLASSIFIER: Classifier;

    /// Whether it has a next-sentence prediction head.
    const HAS_SENTENCES: bool;

    /// Prefix of its classes in `transformers`.
    fn class_prefix(&self) -> &'static str;

    /// The modules around the blocks.
    fn layout(&self) -> Layout;

    /// Dropout in the classifier, to be changed.
    fn classifier_dropout(&mut self) -> &mut f32;

    /// Configuration of every block.
    fn block(&self) -> BlockConfig;

    /// Parameter names in checkpoints.
    fn names(&self) -> NameTable;

    /// Parameter names in ModelCenter's checkpoints for a model with this head, if it has the family.
    fn names_of_model_center(&self, _head: EncoderHead) -> Option<NameTable> {
        None
    }

    /// Tensors in checkpoints that a model with this head does not use; `*` matches any text.
    fn unused(head: EncoderHead) -> &'static [&'static str];
}

/// Input of a classifier's last layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Classifier {
    /// The pooler of the base model.
    Pooled,
    /// A dense layer with tanh, between two dropouts; the model has no pooler then.
    Dense,
}

/// The modules of an encoder around its blocks.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Rows of the token type embedding.
    pub type_size: usize,
    /// Position of each token. Tokens are counted by id, whatever the attention mask is: each that is not the padding
    /// token counts.
    pub positions: PositionTable,
    /// Initializer of the heads' linear layers.
    pub head_init: Init,
    /// In the masked-LM head.
    pub word_activation: Activation,
    /// Dropout in the classifier.
    pub classifier_dropout_p: f32,
}

/// Takes the configuration of an encoder. The dropout of hidden states is the default of the classifier's and, in
/// ModelCenter's files, of the attention's.
pub(crate) fn take<C: EncoderFamily>(fields: &mut Fields) -> Result<C> {
    let dialect = C::dialect_of(fields)?;
    dialect.spoken(fields)?;
    refuse_other_encoders(fields, dialect.title)?;
    let stated = |names: &[&str]| names.iter().any(|name| fields.peek(name).is_some());
    let states_attention = stated(&["attention_probs_dropout_prob", "attention_dropout_p"]);
    let states_classifier = stated(&["classifier_dropout", "classifier_dropout_p"]);
    // Equal to `dropout_p`, under a name from ModelCenter's dialect of other families.
    let embedding = fields.take_number("embedding_dropout_p")?;
    let (mut config, spoken) = rows::take_config::<C>(fields)?;
    let text = config.text_mut();
    let dropout = text.dropout_p;
    if embedding.is_some_and(|p| p != dropout) {
        return Err(dialect.unsupported(fields, "embedding_dropout_p", "dropout_p"));
    }
    text.embedding_dropout_p = dropout;
    if spoken == Spoken::ModelCenter && !states_attention {
        text.attention_dropout_p = dropout;
    }
    if !states_classifier {
        *config.classifier_dropout() = dropout;
    }
    Ok(config)
}

/// In Hugging Face's files `null` stands for a classifier's dropout that equals the one of hidden states.
pub(crate) fn adjust_hf<C: EncoderFamily>(config: &C, map: &mut Map<String, Value>) {
    if config.layout().classifier_dropout_p == config.text().dropout_p {
        map.insert("classifier_dropout".to_string(), Value::Null);
    }
}
