//! An architecture (encoder, decoder, encoder-decoder) as the description that a family's configuration yields.
//!
//! Defines [`Architecture`], [`Spec`] and [`StackSpec`]. Implemented by [`encoder::Encoder`],
//! [`decoder::Decoder`] and [`seq2seq::EncoderDecoder`]; read by [`crate::model::Transformer`].

pub(in crate::model) mod block;
pub mod decoder;
pub mod encoder;
pub(in crate::model) mod fairseq;
pub(in crate::model) mod model_center_names;
pub mod position_table;
pub mod seq2seq;

use crate::layer::PositionsConfig;
use crate::model::head::{ClassifierInput, Head, HeadSpec};
use crate::model::load::infer::FoundHeads;
pub use crate::model::transformer::modules::StackBlock;
use crate::model::{HeadInit, OpenOptions};
use bmtrain_dist::Builder;
use bmtrain_dist::nn::norm::NormOptions;
use bmtrain_dist::param::Init;
use model_center_base::error::Result;
use model_center_formats::config::{LayerSharing, ProblemType, TextConfig, TextHead, rows::RowConfig};
use model_center_formats::directory::DirectoryLayout;
use model_center_formats::{Allow, NameTable};
use position_table::{Count, PositionTable};
use std::borrow::Cow;
use std::fmt::Debug;
use std::path::Path;

/// The modules of a transformer around its blocks.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// The family's display name.
    pub title: &'static str,
    /// V.
    pub vocab_size: usize,
    /// D.
    pub dim_model: usize,
    /// Dimension of the token embeddings; if it is not D, linear layers without bias project to D and back.
    pub embedding_size: usize,
    /// The maximum sequence length, in tokens.
    pub max_length: usize,
    /// The padding token.
    pub pad_token_id: Option<usize>,
    /// Whether the padding token's embedding gets a gradient.
    pub padding_learns: bool,
    /// Initializer of the token embedding.
    pub table_init: Init,
    /// Factor of the token embeddings.
    pub embedding_factor: f32,
    /// Divide the token embeddings and the heads' inputs by the square root of their dimension.
    pub length_scale: bool,
    /// The encoder, the decoder, or both in this order.
    pub stacks: Vec<StackSpec>,
    /// Blocks that share their parameters, in each stack.
    pub sharing: Option<LayerSharing>,
    /// Configuration of the heads.
    pub head: HeadSpec,
    /// Problem type of the classifier, if the configuration states one.
    pub problem_type: Option<ProblemType>,
    /// Names of the classes.
    pub label_names: Vec<String>,
    /// Whether a batch may have a context with bidirectional attention, and spans.
    pub has_spans: bool,
    /// Virtual tokens before every sequence that are keys and values alone (prefix tuning). The builder's options set
    /// it, not the configuration.
    pub prefix: usize,
    /// The decoder start token of an encoder-decoder.
    pub decoder_start_token: Option<usize>,
    /// The EOS token, whose hidden state the classifier of an encoder-decoder reads.
    pub eos_token: Option<usize>,
    /// Whether the decoder input begins with the sentinel to fill in instead of the decoder start token.
    pub starts_with_sentinel: bool,
}

impl Spec {
    /// A model of these stacks with the sizes in `text` and plain embeddings of dimension D, which its heads read too.
    pub fn new(title: &'static str, text: &TextConfig, stacks: Vec<StackSpec>, classifier: ClassifierInput) -> Self {
        let init = Init::normal(text.outer_std());
        Spec {
            title,
            vocab_size: text.vocab_size,
            dim_model: text.dim_model,
            embedding_size: text.dim_model,
            max_length: text.position_size,
            pad_token_id: text.pad_token_id,
            padding_learns: false,
            table_init: init,
            embedding_factor: 1.0,
            length_scale: false,
            stacks,
            sharing: text.sharing,
            head: HeadSpec::new(text.dim_model, init, classifier),
            problem_type: text.problem_type,
            label_names: text.labels.clone(),
            has_spans: false,
            prefix: 0,
            decoder_start_token: None,
            eos_token: None,
            starts_with_sentinel: false,
        }
    }

    /// Whether it has an encoder and a decoder.
    pub fn is_encoder_decoder(&self) -> bool {
        self.stacks.len() > 1
    }
}

/// The modules of one stack around its blocks.
#[derive(Debug, Clone, PartialEq)]
pub struct StackSpec {
    /// `encoder` or `decoder`.
    pub name: &'static str,
    /// Number of blocks, or of their places where blocks share parameters.
    pub layers: usize,
    /// Positions added to the token embeddings.
    pub added: Added,
    /// Rows of the learned position embedding.
    pub position_rows: usize,
    /// The row that gets no gradient.
    pub position_padding: Option<i64>,
    /// Initializer of the position and token type embeddings.
    pub position_init: Init,
    /// Whether positions count tokens by id, each that is not the padding token, instead of by the attention mask.
    pub counts_ids: bool,
    /// Rows of the token type embedding.
    pub type_size: Option<usize>,
    /// The norm after the sum of the embeddings.
    pub embedding_norm: Option<NormOptions>,
    /// Dropout probability after the sum of the embeddings.
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
    /// Learned: rows of an embedding table.
    Learned(PositionTable),
    /// Learned: rows of one embedding table for all stacks that have these.
    Shared(PositionTable),
    /// Sinusoidal, by position in the sequence, see [`seq2seq::Sinusoids`].
    Sinusoids,
}

impl Added {
    /// The mapping from tokens to rows of the table.
    pub(in crate::model) fn table(self) -> Option<PositionTable> {
        match self {
            Added::None => None,
            Added::Learned(table) | Added::Shared(table) => Some(table),
            Added::Sinusoids => Some(PositionTable { first: 0, count: Count::Places }),
        }
    }
}

/// An architecture of one family: how its configuration describes a [`Spec`], its files and its heads.
pub trait Architecture: Debug + 'static {
    /// The family's configuration.
    type Config: RowConfig + Debug;

    /// The block.
    type Block: StackBlock;

    /// Whether ModelCenter's files of the family hold all heads at once, whatever class they name.
    const HAS_ALL_HEADS: bool = false;

    /// The modules around the blocks.
    fn spec(config: &Self::Config) -> Spec;

    /// Declares the parameters of block `layer` of a stack under the builder's name.
    fn block(config: &Self::Config, stack: usize, layer: usize, builder: &Builder)
    -> bmtrain_dist::Result<Self::Block>;

    /// Whether two blocks of a stack compute the same with the same parameters.
    fn are_alike(_config: &Self::Config, _stack: usize, _blocks: [usize; 2]) -> bool {
        true
    }

    /// Parameter names in Hugging Face files.
    fn names(config: &Self::Config, head: Head) -> NameTable;

    /// Parameter names in ModelCenter's files, if it has the family.
    fn names_of_model_center(_config: &Self::Config, _head: Head) -> Option<NameTable> {
        None
    }

    /// Parameter names in torchtitan's checkpoints, if it has the family.
    fn names_of_torchtitan(_config: &Self::Config, _head: Head) -> Option<NameTable> {
        None
    }

    /// Whether ModelCenter's files can hold a model with this head.
    fn check_model_center(_config: &Self::Config, _head: Head) -> Result<()> {
        Ok(())
    }

    /// The class of `transformers` for this head.
    fn class(config: &Self::Config, head: Head) -> Cow<'static, str>;

    /// Whether names in files have the family's prefix; `None` to infer it from the class.
    fn has_prefix(_head: Head) -> Option<bool> {
        None
    }

    /// Conversion of a parameter's values to and from files of this layout, if they differ.
    fn rescaled(_config: &Self::Config, _parameter: &str, _layout: DirectoryLayout) -> Option<fn(f32) -> f32> {
        None
    }

    /// The head of a class of `transformers`, a classifier without its number of outputs; `None` for an unknown class.
    fn head_of_class(config: &Self::Config, class: &str) -> Option<TextHead>;

    /// The classes to list in the error about an unknown one.
    fn known_classes(config: &Self::Config) -> Vec<String>;

    /// The head of ModelCenter's files, which name no class.
    fn head_of_model_center(_config: &mut Self::Config, _directory: &Path) -> Result<TextHead> {
        Ok(TextHead::CausalLm)
    }

    /// The heads whose tensors a directory has.
    fn heads_of_tensors(config: &Self::Config, directory: &Path) -> Result<FoundHeads> {
        let words = Self::names(config, Head::CausalLm { tied: false });
        let classes = Self::names(config, Head::Classifier { outputs: 1 });
        FoundHeads::of(directory, ("lm_head.weight", &words), None, ("cls_projection.weight", &classes))
    }

    /// The default head for weights without tensors of any head, and for weights with a language-modelling head.
    fn default_heads(config: &mut Self::Config) -> (TextHead, TextHead);

    /// The head for the one that the caller requests.
    fn head(config: &mut Self::Config, head: TextHead, directory: &Path) -> Result<Head>;

    /// Changes that options and weights make in the configuration before it is used.
    ///
    /// # Errors
    /// A dtype that the family does not compute in; weights that cannot be opened.
    fn prepare(_config: &mut Self::Config, _directory: &Path, _options: &OpenOptions) -> Result<()> {
        Ok(())
    }

    /// Overrides the dropout probability of hidden states.
    fn set_hidden_dropout(config: &mut Self::Config, rate: f32);

    /// Whether tensors of the directory that this crate computes have the computed values.
    ///
    /// # Errors
    /// [`Error::Model`](crate::Error::Model) naming the tensor.
    fn check_weights(_config: &Self::Config, _directory: &Path) -> Result<()> {
        Ok(())
    }

    /// Whether the weights have the tensors that a head requires.
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
