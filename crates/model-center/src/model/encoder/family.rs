//! The properties of an encoder family; everything else is shared.
//!
//! Defines [`EncoderFamily`], which a family's configuration implements, and [`Layout`], the largest part of its
//! answer. Called by [`super::EncoderModel`] and [`open`](super::super::load::open).

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
    /// How its classifier is made.
    const CLASSIFIER: Classifier;

    /// Whether it has heads that tell whether a second sentence follows the first.
    const HAS_SENTENCES: bool;

    /// Its name for people.
    fn title(&self) -> &'static str;

    /// What the classes of `transformers` that open its models begin with.
    fn class_prefix(&self) -> &'static str;

    /// Sizes and rates.
    fn layout(&self) -> Layout;

    /// What every block is made of.
    fn block(&self) -> BlockConfig;

    /// What its parameters are called in files.
    fn names(&self) -> NameTable;

    /// Parameter names in ModelCenter's checkpoints for a model with this head, if it has the family.
    fn names_of_model_center(&self, _head: EncoderHead) -> Option<NameTable> {
        None
    }

    /// Their tensors in files that a model with this head has no use for; `*` stands for any text.
    fn unused(head: EncoderHead) -> &'static [&'static str];

    /// Names of a classifier's classes in order, empty if unknown.
    fn labels(&self) -> &[String];

    /// Outputs of a classifier, names of its classes and what they mean, to be changed.
    fn labels_mut(&mut self) -> (&mut Option<usize>, &mut Vec<String>, &mut Option<ProblemType>);

    /// Overrides the file's dropout probabilities, where given: for hidden states and the classifier's input, and for
    /// attention probabilities.
    fn set_dropout(&mut self, hidden: Option<f32>, attention: Option<f32>);

    /// Whether the fields fit together; `place` names the source.
    ///
    /// # Errors
    /// [`Error::Model`](crate::Error::Model) naming the field.
    fn validate(&self, place: &str) -> Result<()>;
}

/// What a classifier's last map reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Classifier {
    /// The pooler of the base model.
    Pooled,
    /// A map of its own with tanh, between two dropouts; the model has no pooler then.
    Dense,
}

/// What an encoder has besides its blocks.
#[derive(Debug, Clone)]
pub struct Layout {
    /// V.
    pub vocab_size: usize,
    /// D.
    pub dim_model: usize,
    /// Blocks.
    pub num_layers: usize,
    /// Rows of the table of token types.
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
    /// The longest row, in tokens.
    pub fn max_length(&self) -> usize {
        self.position_size.saturating_sub(self.positions.first)
    }
}
