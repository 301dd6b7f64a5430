//! BART (Lewis et al., 2019): learned positions, a norm after the embeddings, post-norm blocks, one token embedding
//! table shared by the encoder, the decoder and the language-modelling head.
//!
//! Defines [`LikeBart`], the shared implementation, which Marian uses too.

use crate::model::prelude::*;
use crate::model::seq2seq::{Added, Around, Classes, EncoderDecoder, Layout, Seq2SeqFamily, Seq2SeqHead, Seq2SeqModel};
use model_center_formats::config::EncoderDecoderFields;
use model_center_formats::config::encoder_decoder::HasStacks;
use std::fmt::Debug;

/// The decoder start token is the EOS token.
const DECODER_START_TOKEN: usize = 2;

/// Sizes and options of a BART. ModelCenter does not have the family; for files with ModelCenter's names, the default
/// sizes are BART-large's.
///
/// Source: Lewis et al. 2019 for the architecture, transformers for fields and defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct BartConfig {
    /// All fields.
    pub stacks: EncoderDecoderFields,
}

impl Default for BartConfig {
    fn default() -> Self {
        BartConfig { stacks: EncoderDecoderFields::of(encoder_decoder::defaults(), Some(DECODER_START_TOKEN)) }
    }
}

impl ConfigRows for BartConfig {
    const ROWS: &'static [Row<Self>] = &encoder_decoder::rows();

    fn text(&self) -> &TextConfig {
        &self.stacks.text
    }

    fn text_mut(&mut self) -> &mut TextConfig {
        &mut self.stacks.text
    }
}

impl RowConfig for BartConfig {
    const DIALECT: Dialect = Dialect { title: "BART", model_type: "bart", ..encoder_decoder::DIALECT };

    fn read(fields: &mut Fields) -> Result<Self> {
        encoder_decoder::take(fields)
    }

    fn adjust_hf(&self, map: &mut Map<String, Value>) -> Result<()> {
        encoder_decoder::adjust_hf::<Self>(&self.stacks, map)
    }
}

impl HasStacks for BartConfig {
    /// Options of other models from the time of BART. transformers no longer reads them.
    const FLAGS: &'static [(&'static str, bool)] = &[
        ("normalize_before", false),
        ("normalize_embedding", true),
        ("add_final_layer_norm", false),
        ("static_position_embeddings", false),
    ];

    fn stacks(&self) -> &EncoderDecoderFields {
        &self.stacks
    }

    fn stacks_mut(&mut self) -> &mut EncoderDecoderFields {
        &mut self.stacks
    }
}

/// A BART with its head.
pub type Bart = Seq2SeqModel<BartConfig>;

/// A family of models with the encoder and decoder of BART.
pub trait LikeBart: HasStacks + Debug + 'static {
    /// The `transformers` classes of the family.
    const CLASSES: Classes;

    /// Positions added to the token embeddings.
    const POSITIONS: Added;

    /// Whether a norm follows that sum.
    const NORMS_EMBEDDINGS: bool;

    /// The EOS token if the file does not specify one.
    const EOS_TOKEN: usize;

    /// Tensors of files that this crate computes or that have no effect.
    const IGNORED: &'static [&'static str];
}

impl LikeBart for BartConfig {
    const CLASSES: Classes = Classes {
        base: "BartModel",
        words: "BartForConditionalGeneration",
        classifier: Some("BartForSequenceClassification"),
    };
    // Rows 0 and 1 are unused. Padding tokens count as positions.
    const POSITIONS: Added = Added::Learned(PositionTable { first: 2, count: Count::Places });
    const NORMS_EMBEDDINGS: bool = true;
    const EOS_TOKEN: usize = 2;
    // Version numbers that fairseq left in its models.
    const IGNORED: &'static [&'static str] = &["model.encoder.version", "model.decoder.version"];
}

impl<C: LikeBart> Seq2SeqFamily for C {
    const DROPS_EMBEDDINGS: bool = true;

    fn classes(&self) -> Classes {
        C::CLASSES
    }

    fn set_hidden_dropout(&mut self, rate: f32) {
        let stacks = self.stacks_mut();
        stacks.text.set_hidden_dropout(rate, Self::DROPS_EMBEDDINGS);
        // Many of these models have no dropout in one of these places, and keep none.
        for place in [&mut stacks.ffn_dropout_p, &mut stacks.classifier_dropout_p] {
            *place = if *place > 0.0 { rate } else { 0.0 };
        }
    }

    fn decoder_layers(&self) -> usize {
        self.stacks().num_decoder_layers
    }

    fn decoder_start_token(&self) -> Option<usize> {
        self.stacks().decoder_start_token_id
    }

    fn eos_token(&self) -> Option<usize> {
        match self.text().extra.get("eos_token_id") {
            None => Some(C::EOS_TOKEN),
            // It may be a list, which gives no single EOS token to classify at.
            Some(word) => word.as_u64().and_then(|word| usize::try_from(word).ok()),
        }
    }

    fn layout(&self) -> Layout {
        let EncoderDecoderFields { text, scale_embedding, .. } = self.stacks();
        let around = Around {
            added: C::POSITIONS,
            embedding_norm: C::NORMS_EMBEDDINGS.then_some(NormOptions::layer(text.dim_model, text.norm_eps)),
            relative: None,
            output_norm: None,
            output_dropout: 0.0,
        };
        Layout {
            encoder: around,
            decoder: around,
            padding_learns: false,
            word_factor: if *scale_embedding { (text.dim_model as f32).sqrt() } else { 1.0 },
            head_factor: 1.0,
            logits_bias: true,
            classifier_dropout: self.stacks().classifier_dropout_p,
        }
    }

    fn encoder_block(&self) -> BlockConfig {
        block_of(self.stacks(), self.text())
    }

    fn decoder_block(&self) -> BlockConfig {
        let stacks = self.stacks();
        let (num_heads, dim_head, dim_ff) =
            (stacks.num_decoder_heads, stacks.dim_decoder_head(), stacks.dim_decoder_ff);
        let text = TextConfig { num_heads, dim_head, dim_ff, ..stacks.text.clone() };
        block_of(stacks, &text).attending_to_encoder()
    }

    fn names(&self, head: Seq2SeqHead) -> NameTable {
        let mut rules = vec![
            Rule::new("input_embedding.weight", "model.shared.weight"),
            Rule::new("lm_head.weight", "lm_head.weight"),
            Rule::new("cls_dense.weight", "classification_head.dense.weight"),
            Rule::new("cls_dense.bias", "classification_head.dense.bias"),
            Rule::new("cls_projection.weight", "classification_head.out_proj.weight"),
            Rule::new("cls_projection.bias", "classification_head.out_proj.bias"),
            // Files without it mean zeros.
            Rule::new("logits_bias", "final_logits_bias").optional(),
            Rule::new("encoder.position_embedding.weight", "model.encoder.embed_positions.weight"),
            Rule::new("decoder.position_embedding.weight", "model.decoder.embed_positions.weight"),
        ];
        rules.extend(fairseq::rules("encoder", "model.encoder"));
        rules.extend(fairseq::rules("decoder", "model.decoder"));
        let mut aliases = vec![
            Alias::new("model.encoder.embed_tokens.weight", "model.shared.weight"),
            Alias::new("model.decoder.embed_tokens.weight", "model.shared.weight"),
        ];
        aliases.extend(head.tied_alias("model.shared.weight"));
        NameTable {
            base_prefix: "model.",
            rules: Cow::Owned(rules),
            aliases: Cow::Owned(aliases),
            ignored: Cow::Borrowed(C::IGNORED),
            ..NameTable::default()
        }
    }
}

/// A block with the sizes of `text`, without cross-attention.
fn block_of(stacks: &EncoderDecoderFields, text: &TextConfig) -> BlockConfig {
    let block = block(text, Placement::Post);
    BlockConfig { ffn: FeedForwardConfig { dropout: stacks.ffn_dropout_p, ..block.ffn }, ..block }
}

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "bart",
        doc: "BART with heads for the decoder's next token and for classification",
        open: load::open::<EncoderDecoder<BartConfig>>,
    },
    class: None,
    class_prefix: "Bart",
    signatures: &[Signature {
        prefix: "model.",
        has: &[fairseq::TENSORS, &["encoder.layernorm_embedding.weight"]],
        lacks: &["encoder.layer_norm.weight"],
    }],
};
