//! The properties of an encoder family; everything else is shared.
//!
//! Defines [`EncoderFamily`], which a family's configuration implements, and [`Layout`]. Called by
//! [`super::EncoderModel`] and [`open`](super::super::load::open).

use super::EncoderHead;
use crate::config::{Config, ProblemType};
use crate::error::Result;
use crate::formats::NameTable;
use crate::layer::BlockConfig;
use crate::model::position_table::PositionTable;
use bmtrain_core::kernel::Activation;
use bmtrain_dist::nn::norm::NormOptions;
use bmtrain_dist::param::Init;
use std::fmt::Debug;

/// A family of encoders, as its configuration describes it.
pub trait EncoderFamily: Config + Clone + Debug + 'static {
    /// The input of its classifier.
    const CLASSIFIER: Classifier;

    /// Whether it has a next-sentence prediction head.
    const HAS_SENTENCES: bool;

    /// Display name.
    fn title(&self) -> &'static str;

    /// Prefix of its classes in `transformers`.
    fn class_prefix(&self) -> &'static str;

    /// Sizes and dropout probabilities.
    fn layout(&self) -> Layout;

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

    /// Names of a classifier's classes in order, empty if unknown.
    fn labels(&self) -> &[String];

    /// Number of outputs, class names and problem type of a classifier, to be changed.
    fn labels_mut(&mut self) -> (&mut Option<usize>, &mut Vec<String>, &mut Option<ProblemType>);

    /// Overrides the file's dropout probabilities, where given: for hidden states and the classifier's input, and for
    /// attention probabilities.
    fn set_dropout(&mut self, hidden: Option<f32>, attention: Option<f32>);

    /// Whether the fields are consistent; `place` names the source.
    fn validate(&self, place: &str) -> Result<()>;
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
    /// V.
    pub vocab_size: usize,
    /// D.
    pub dim_model: usize,
    /// Number of blocks.
    pub num_layers: usize,
    /// Rows of the token type embedding.
    pub type_size: usize,
    /// Rows of the position embedding table, including the unused rows before the first token's.
    pub position_size: usize,
    /// Position of each token. Tokens are counted by id, whatever the attention mask is: each that is not the padding
    /// token counts.
    pub positions: PositionTable,
    /// The padding token, whose embedding gets no gradient.
    pub pad_token_id: Option<usize>,
    /// Initializer of the embedding tables.
    pub table_init: Init,
    /// Initializer of the heads' linear layers.
    pub head_init: Init,
    /// After the sum of the embeddings, and in the masked-LM head.
    pub norm: NormOptions,
    /// In the masked-LM head.
    pub word_activation: Activation,
    /// Dropout probability after the sum of the embeddings.
    pub dropout_p: f32,
    /// Dropout in the classifier.
    pub classifier_dropout_p: f32,
    /// Whether the masked-LM head is tied to the token embedding.
    pub tied: bool,
    /// Outputs of the classifier, if the configuration specifies them.
    pub cls_head: Option<usize>,
    /// Problem type of the classifier, if the configuration specifies one.
    pub problem_type: Option<ProblemType>,
}

impl Layout {
    /// The maximum sequence length, in tokens.
    pub fn max_length(&self) -> usize {
        self.position_size.saturating_sub(self.positions.first)
    }
}
