//! The modules of a transformer around its blocks, as a family's configuration describes them.
//!
//! Defines [`Spec`], [`StackSpec`] and [`Added`], read by [`Transformer`](crate::model::Transformer).

use super::position_table::{Count, PositionTable};
use crate::layer::{Placement, PositionsConfig, position::RelativeConfig};
use crate::model::head::{ClassifierInput, HeadSpec};
use bmtrain_dist::nn::norm::NormOptions;
use bmtrain_dist::param::Init;
use model_center_formats::config::rows::RowConfig;
use model_center_formats::config::{LayerSharing, ProblemType, TextConfig};

/// The modules of a transformer around its blocks.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// The family's display name.
    pub title: &'static str,
    /// V.
    pub vocab_size: usize,
    /// D.
    pub dim_model: usize,
    /// Dimension of the token embeddings.
    pub embedding_size: usize,
    /// How embeddings of that dimension become hidden states.
    pub projection: Projection,
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
    /// Whether that factor is rounded to the dtype of the embeddings.
    pub rounds_factor: bool,
    /// Whether tokens of a decoder attend to later ones too, so that it cannot generate.
    pub attends_ahead: bool,
    /// Divide the token embeddings and the heads' inputs by the square root of their dimension.
    pub length_scale: bool,
    /// The encoder, the decoder, or both in this order.
    pub stacks: Vec<StackSpec>,
    /// Blocks that share their parameters, in each stack.
    pub sharing: Option<LayerSharing>,
    /// Whether directories have shared parameters once; else they have a copy of them for each place.
    pub files_share: bool,
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
    /// Whether the decoder input for span corruption begins with the sentinel to fill in instead of the decoder start
    /// token.
    pub starts_with_sentinel: bool,
}

impl Spec {
    /// A model of these stacks with the configuration's sizes and plain embeddings of dimension D, which its heads read
    /// too.
    pub fn new(config: &impl RowConfig, stacks: Vec<StackSpec>, classifier: ClassifierInput) -> Self {
        let text = config.text();
        let init = Init::normal(text.outer_std());
        Spec {
            title: config.dialect().title,
            vocab_size: text.vocab_size,
            dim_model: text.dim_model,
            embedding_size: text.dim_model,
            projection: Projection::Tokens,
            max_length: text.position_size,
            pad_token_id: text.pad_token_id,
            padding_learns: false,
            table_init: init,
            embedding_factor: 1.0,
            rounds_factor: false,
            attends_ahead: false,
            length_scale: false,
            stacks,
            sharing: text.sharing,
            files_share: false,
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

    /// A decoder, whose classifier reads the last token.
    pub fn decoder(config: &impl RowConfig, stack: StackSpec) -> Self {
        let max_length = stack.positions.reach(config.text().position_size);
        Spec { max_length, ..Spec::new(config, vec![stack], ClassifierInput::LastToken) }
    }

    /// An encoder with BERT's heads: a norm and the activation of the blocks before the masked-LM head's output matrix.
    pub fn encoder(config: &impl RowConfig, stack: StackSpec, classifier: ClassifierInput) -> Self {
        let text = config.text();
        let norm = NormOptions::layer(text.dim_model, text.norm_eps);
        let first = stack.added.table().map_or(0, |table| table.first);
        let spec = Spec::new(config, vec![stack], classifier);
        Spec {
            max_length: text.position_size.saturating_sub(first),
            head: HeadSpec { transform: Some((norm, text.ffn_activate_fn)), ..spec.head },
            ..spec
        }
    }

    /// An encoder with these positions in attention, and this norm after its embeddings and after its last block.
    pub fn encoder_of_norms(
        config: &impl RowConfig,
        positions: PositionsConfig,
        norm: NormOptions,
        classifier: ClassifierInput,
    ) -> Self {
        let text = config.text();
        let max_length = positions.reach(text.position_size);
        let (embedding_norm, output_norm) = (Some(norm), Some(norm));
        let stack = StackSpec::new("encoder", text, text.num_layers);
        let stack = StackSpec { embedding_norm, positions, output_norm, ..stack };
        Spec { max_length, ..Spec::new(config, vec![stack], classifier) }
    }

    /// An encoder-decoder of these stacks, whose classifier reads the last EOS token.
    pub fn encoder_decoder(config: &impl RowConfig, stacks: [StackSpec; 2]) -> Self {
        Spec::new(config, stacks.into(), ClassifierInput::EosToken)
    }

    /// The same encoder with all of its embeddings and the transform of its masked-LM head in this dimension.
    #[must_use]
    pub fn with_embeddings(self, size: usize, projection: Projection) -> Self {
        let sized = |norm: NormOptions| NormOptions { size, ..norm };
        let stack = |stack: StackSpec| StackSpec { embedding_norm: stack.embedding_norm.map(sized), ..stack };
        let transform = self.head.transform.map(|(norm, activation)| (sized(norm), activation));
        Spec {
            embedding_size: size,
            projection,
            stacks: self.stacks.into_iter().map(stack).collect(),
            head: HeadSpec { transform, ..self.head },
            ..self
        }
    }

    /// Dimension of the tables that are added to the token embeddings.
    pub(in crate::model) fn table_size(&self) -> usize {
        if self.projection == Projection::Sum { self.embedding_size } else { self.dim_model }
    }

    /// Dimension of the hidden states after the last block.
    pub(in crate::model) fn output_size(&self) -> usize {
        if self.projection == Projection::Sum { self.dim_model } else { self.embedding_size }
    }

    /// Whether it has an encoder and a decoder.
    pub fn is_encoder_decoder(&self) -> bool {
        self.stacks.len() > 1
    }
}

/// Linear layers between embeddings and hidden states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Projection {
    /// Where the token embeddings are not of dimension D, layers without bias project them to D and, after the last
    /// block, back.
    Tokens,
    /// One layer with bias projects the sum of all embeddings, after its norm and dropout.
    Sum,
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

impl StackSpec {
    /// A stack without positions, token types and norms.
    pub fn new(name: &'static str, text: &TextConfig, layers: usize) -> Self {
        StackSpec {
            name,
            layers,
            added: Added::None,
            position_rows: 0,
            position_padding: None,
            position_init: Init::normal(text.outer_std()),
            counts_ids: false,
            type_size: None,
            embedding_norm: None,
            embedding_dropout: text.embedding_dropout_p,
            positions: PositionsConfig::None,
            output_norm: None,
            output_dropout: 0.0,
        }
    }

    /// A decoder with these positions in attention and a norm after its last block.
    pub fn decoder(text: &TextConfig, positions: PositionsConfig, output_norm: NormOptions) -> Self {
        StackSpec { positions, output_norm: Some(output_norm), ..StackSpec::new("decoder", text, text.num_layers) }
    }

    /// An encoder with BERT's embeddings: learned positions, token types and a norm. `placement` is its blocks'.
    pub fn encoder(text: &TextConfig, positions: PositionTable, type_size: usize, placement: Placement) -> Self {
        let norm = NormOptions::layer(text.dim_model, text.norm_eps);
        // Where norms precede the layers, the first block has the one of the embeddings.
        let is_pre = placement == Placement::Pre;
        // Where positions count tokens, padding has a row, which is not trained.
        let position_padding = match positions.count {
            Count::Places => None,
            Count::Tokens => positions.first.checked_sub(1).map(|row| row as i64),
        };
        StackSpec {
            added: Added::Learned(positions),
            position_rows: text.position_size,
            position_padding,
            counts_ids: true,
            type_size: Some(type_size),
            embedding_norm: (!is_pre).then_some(norm),
            embedding_dropout: text.dropout_p,
            output_norm: is_pre.then_some(norm),
            ..StackSpec::new("encoder", text, text.num_layers)
        }
    }

    /// The encoder and the decoder of an encoder-decoder, with the same positions added to their embeddings.
    pub fn encoder_and_decoder(text: &TextConfig, decoder_layers: usize, added: Added) -> [Self; 2] {
        [("encoder", text.num_layers), ("decoder", decoder_layers)].map(|(name, layers)| {
            let position_init = Init::normal(text.init_std);
            StackSpec { position_init, ..StackSpec::new(name, text, layers) }.adding(added, text)
        })
    }

    /// The encoder and the decoder of T5: relative position biases, bidirectional only in the encoder, and an RMS norm
    /// after the last block.
    pub fn with_relative_positions(text: &TextConfig, decoder_layers: usize, relative: RelativeConfig) -> [Self; 2] {
        let [encoder, decoder] = StackSpec::encoder_and_decoder(text, decoder_layers, Added::None);
        [(encoder, true), (decoder, false)].map(|(stack, bidirectional)| StackSpec {
            positions: PositionsConfig::Relative(RelativeConfig { bidirectional, ..relative }),
            output_norm: Some(NormOptions::rms(text.dim_model, text.norm_eps)),
            ..stack
        })
    }

    /// The same stack with these positions added to the token embeddings; a table has a row for each position and those
    /// before the first.
    #[must_use]
    pub fn adding(self, added: Added, text: &TextConfig) -> Self {
        let position_rows = match added {
            Added::Learned(table) | Added::Shared(table) => table.first + text.position_size,
            Added::None | Added::Sinusoids => 0,
        };
        StackSpec { added, position_rows, ..self }
    }
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
    /// Sinusoidal, by position in the sequence, see `Sinusoids`.
    Sinusoids,
}

impl Added {
    /// The mapping from tokens to rows of the table.
    pub(in crate::model) fn table(self) -> Option<PositionTable> {
        match self {
            Added::None => None,
            Added::Learned(table) | Added::Shared(table) => Some(table),
            Added::Sinusoids => Some(PositionTable::PLACES),
        }
    }
}
