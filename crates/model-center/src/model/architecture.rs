//! What an architecture (encoder, decoder, encoder-decoder) makes of a family's configuration.
//!
//! Defines [`Architecture`], [`Spec`] and [`StackSpec`]. Implemented by [`super::encoder::Encoder`],
//! [`super::decoder::Decoder`] and [`super::seq2seq::EncoderDecoder`]; read by [`super::Transformer`].

use super::head::{Head, HeadSpec};
use super::infer::FoundHeads;
use super::position_table::{Count, PositionTable};
use super::registry::{HeadInit, OpenOptions};
use super::text_model::TextHead;
use crate::config::{Config, ProblemType};
use crate::error::Result;
use crate::formats::{Allow, DirectoryLayout, NameTable};
use crate::layer::{BlockConfig, PositionsConfig};
use bmtrain_dist::nn::norm::NormOptions;
use bmtrain_dist::param::Init;
use std::borrow::Cow;
use std::fmt::Debug;
use std::path::Path;

/// A transformer besides the layers of its blocks.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// The family's name for people.
    pub title: &'static str,
    /// V.
    pub vocab_size: usize,
    /// D.
    pub dim_model: usize,
    /// Length of a token embedding; where it is not D, projections without bias lead from it and back to it.
    pub embedding_size: usize,
    /// The longest sequence, in tokens.
    pub max_length: usize,
    /// The padding token.
    pub pad_token_id: Option<usize>,
    /// Whether the padding token's embedding gets a gradient where it is looked up.
    pub padding_learns: bool,
    /// Initial values of the token embedding.
    pub table_init: Init,
    /// Factor of the token embeddings.
    pub embedding_factor: f32,
    /// Divide token embeddings by the root of their length, and the input of the heads, too.
    pub length_scale: bool,
    /// The encoder, the decoder, or both in this order.
    pub stacks: Vec<StackSpec>,
    /// What the heads are made of.
    pub head: HeadSpec,
    /// What a classifier's labels mean, if the configuration states it.
    pub problem_type: Option<ProblemType>,
    /// Names of the classes.
    pub label_names: Vec<String>,
    /// Whether a batch may have a context with bidirectional attention, and spans.
    pub has_spans: bool,
    /// The token with which the decoder of an encoder-decoder starts.
    pub decoder_start_token: Option<usize>,
    /// The token that ends a text, at which the classifier of an encoder-decoder reads.
    pub eos_token: Option<usize>,
    /// Whether a decoder starts with the sentinel that it is to fill in, not with its start token.
    pub starts_with_sentinel: bool,
}

impl Spec {
    /// Whether it has an encoder and a decoder.
    pub fn is_encoder_decoder(&self) -> bool {
        self.stacks.len() > 1
    }
}

/// One stack besides the layers of its blocks.
#[derive(Debug, Clone, PartialEq)]
pub struct StackSpec {
    /// `encoder` or `decoder`.
    pub name: &'static str,
    /// Number of blocks.
    pub layers: usize,
    /// Positions that are added to the token embeddings.
    pub added: Added,
    /// Rows of the table of learned positions.
    pub position_rows: usize,
    /// The row that gets no gradient.
    pub position_padding: Option<i64>,
    /// Initial values of the tables of positions and token types.
    pub position_init: Init,
    /// Whether tokens are counted by their ids, each that is not the padding token, and not by the attention mask.
    pub counts_ids: bool,
    /// Rows of the table of token types.
    pub type_size: Option<usize>,
    /// The norm of the embeddings' sum.
    pub embedding_norm: Option<NormOptions>,
    /// Dropout of the embeddings' sum.
    pub embedding_dropout: f32,
    /// Positions in self-attention.
    pub positions: PositionsConfig,
    /// The norm after the last block.
    pub output_norm: Option<NormOptions>,
    /// Dropout after that norm.
    pub output_dropout: f32,
}

/// Positions that are added to the token embeddings of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// None.
    None,
    /// Rows of a table that is trained.
    Learned(PositionTable),
    /// Computed rows, see [`super::seq2seq::Sinusoids`], by position in the sequence.
    Sinusoids,
}

impl Added {
    /// Which row belongs to which token.
    pub(super) fn table(self) -> Option<PositionTable> {
        match self {
            Added::None => None,
            Added::Learned(table) => Some(table),
            Added::Sinusoids => Some(PositionTable { first: 0, count: Count::Places }),
        }
    }
}

/// An architecture of one family: how its configuration describes a [`Spec`], its files and its heads.
pub trait Architecture: Debug + 'static {
    /// The family's configuration.
    type Config: Config + Clone + Debug + 'static;

    /// Whether ModelCenter's files of it have all heads at once, whatever class they name.
    const HAS_ALL_HEADS: bool = false;

    /// The model besides its blocks.
    fn spec(config: &Self::Config) -> Spec;

    /// The layers of block `layer` of a stack.
    fn block(config: &Self::Config, stack: usize, layer: usize) -> BlockConfig;

    /// Parameter names in Hugging Face files.
    fn names(config: &Self::Config, head: Head) -> NameTable;

    /// Parameter names in ModelCenter's files, if it has the family.
    fn names_of_model_center(config: &Self::Config, head: Head) -> Option<NameTable>;

    /// Whether ModelCenter's files can hold a model with this head.
    ///
    /// # Errors
    /// [`Error::Model`](crate::Error::Model) naming the head.
    fn check_model_center(_config: &Self::Config, _head: Head) -> Result<()> {
        Ok(())
    }

    /// The class of `transformers` for this head.
    fn class(config: &Self::Config, head: Head) -> Cow<'static, str>;

    /// Whether names in files have the family's prefix; `None` to tell by the class.
    fn has_prefix(_head: Head) -> Option<bool> {
        None
    }

    /// The values of a parameter in files of this layout, where they are not its own.
    fn rescaled(_config: &Self::Config, _parameter: &str, _layout: DirectoryLayout) -> Option<fn(f32) -> f32> {
        None
    }

    /// The head of a class of `transformers`, of a classifier without its outputs; `None` for an unknown one.
    fn head_of_class(config: &Self::Config, class: &str) -> Option<TextHead>;

    /// Classes for the error about an unknown one.
    fn known_classes(config: &Self::Config) -> Vec<String>;

    /// The head of ModelCenter's files, which name no class.
    ///
    /// # Errors
    /// Weights that cannot be opened.
    fn head_of_model_center(config: &mut Self::Config, directory: &Path) -> Result<TextHead>;

    /// The heads whose tensors a directory has.
    ///
    /// # Errors
    /// Weights that cannot be opened.
    fn heads_of_tensors(config: &Self::Config, directory: &Path) -> Result<FoundHeads>;

    /// The default head for weights without tensors of any head, and for weights with a language-modelling head.
    fn default_heads(config: &mut Self::Config) -> (TextHead, TextHead);

    /// The head that a program asks for.
    ///
    /// # Errors
    /// A head that the family does not have.
    fn head(config: &mut Self::Config, head: TextHead, directory: &Path) -> Result<Head>;

    /// What options and weights change in the configuration before anything is read of it.
    ///
    /// # Errors
    /// A dtype that the family does not compute in; weights that cannot be opened.
    fn prepare(config: &mut Self::Config, directory: &Path, options: &OpenOptions) -> Result<()>;

    /// Whether tensors of the directory that are computed here have the values that are computed.
    ///
    /// # Errors
    /// [`Error::Model`](crate::Error::Model) naming the tensor.
    fn check_weights(_config: &Self::Config, _directory: &Path) -> Result<()> {
        Ok(())
    }

    /// Outputs of a classifier, names of its classes and their meaning.
    fn labels_mut(config: &mut Self::Config) -> (&mut Option<usize>, &mut Vec<String>, &mut Option<ProblemType>);

    /// Whether the fields, which options have changed, fit together; `place` names the source.
    ///
    /// # Errors
    /// [`Error::Model`](crate::Error::Model) naming the field.
    fn validate(config: &Self::Config, place: &str) -> Result<()>;

    /// Whether the weights have what a head needs.
    ///
    /// # Errors
    /// [`Error::Model`](crate::Error::Model) naming the head.
    fn check_directory(
        _config: &Self::Config,
        _place: &str,
        _head: (TextHead, HeadInit),
        _is_model_center: bool,
    ) -> Result<()> {
        Ok(())
    }

    /// Tensors that a directory may lack or have in excess.
    fn allowed(config: &Self::Config, head: Head, values: HeadInit, is_model_center: bool) -> Allow;

    /// Options for a family that does not compute in every dtype.
    fn options(options: &OpenOptions) -> Cow<'_, OpenOptions> {
        Cow::Borrowed(options)
    }
}
