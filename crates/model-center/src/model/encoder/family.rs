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

    /// What ModelCenter's files call those of a model with this head, if it has the family.
    fn names_of_model_center(&self, _head: EncoderHead) -> Option<NameTable> {
        None
    }

    /// Their tensors in files that a model with this head has no use for; `*` stands for any text.
    fn unused(head: EncoderHead) -> &'static [&'static str];

    /// Names of a classifier's classes in order, empty if unknown.
    fn labels(&self) -> &[String];

    /// Outputs of a classifier, names of its classes and what they mean, to be changed.
    fn labels_mut(&mut self) -> (&mut Option<usize>, &mut Vec<String>, &mut Option<ProblemType>);

    /// Other rates of dropout than the file's, where given: of hidden states, also in front of the classifier, and of
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
    /// Rows of the table of positions, with those in front of the first token's.
    pub position_size: usize,
    /// What a token's position is. Tokens are counted by their ids: each that is not the padding word is one, whatever
    /// the attention mask says.
    pub positions: PositionTable,
    /// The word that stands for nothing: its row of the words gets no gradient where it is looked up.
    pub pad_token_id: Option<usize>,
    /// Initial values of the tables.
    pub table_init: Init,
    /// Initial values of the heads' maps.
    pub head_init: Init,
    /// Behind the embeddings' sum, and in the head for masked words.
    pub norm: NormOptions,
    /// In the head for masked words.
    pub word_activation: Activation,
    /// Dropout of the embeddings' sum.
    pub dropout_p: f32,
    /// Dropout in the classifier.
    pub classifier_dropout_p: f32,
    /// Whether the head for masked words shares the words' table.
    pub tied: bool,
    /// Outputs of the classifier, if the configuration says.
    pub cls_head: Option<usize>,
    /// What a classifier's labels mean, if the configuration says.
    pub problem_type: Option<ProblemType>,
}

impl Layout {
    /// The longest row, in tokens.
    pub fn max_length(&self) -> usize {
        self.position_size.saturating_sub(self.positions.first)
    }
}
