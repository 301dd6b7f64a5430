//! BART (Lewis et al., 2019): learned positions, a norm after the embeddings, post-norm blocks, one token embedding
//! table shared by the encoder, the decoder and the language-modelling head.
//!
//! Defines [`LikeBart`], the shared implementation, which Marian uses too.

use crate::model::prelude::*;
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
pub type Bart = Transformer<BartConfig>;

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
        prefix: "Bart",
        suffixes: &[
            (TextHead::None, "Model"),
            (TextHead::CausalLm, "ForConditionalGeneration"),
            (TextHead::Classification { outputs: 0 }, "ForSequenceClassification"),
        ],
    };
    // Rows 0 and 1 are unused. Padding tokens count as positions.
    const POSITIONS: Added = Added::Learned(PositionTable { first: 2, count: Count::Places });
    const NORMS_EMBEDDINGS: bool = true;
    const EOS_TOKEN: usize = 2;
    // Version numbers that fairseq left in its models.
    const IGNORED: &'static [&'static str] = &["model.encoder.version", "model.decoder.version"];
}

impl<C: LikeBart> ModelFamily for C {
    const ARCHITECTURE: Architecture = Architecture::EncoderDecoder;
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

    fn spec(&self) -> Spec {
        let stacks = self.stacks();
        let text = &stacks.text;
        let norm = C::NORMS_EMBEDDINGS.then_some(NormOptions::layer(text.dim_model, text.norm_eps));
        let pair = StackSpec::encoder_and_decoder(text, stacks.num_decoder_layers, C::POSITIONS);
        let spec = Spec::encoder_decoder(self, pair.map(|stack| StackSpec { embedding_norm: norm, ..stack }));
        let eos_token = match text.extra.get("eos_token_id") {
            None => Some(C::EOS_TOKEN),
            // It may be a list, which gives no single EOS token to classify at.
            Some(id) => id.as_u64().and_then(|id| usize::try_from(id).ok()),
        };
        Spec {
            embedding_factor: if stacks.scale_embedding { (text.dim_model as f32).sqrt() } else { 1.0 },
            head: HeadSpec {
                logits_bias: true,
                dropout: HeadDropout::of_classifiers(stacks.classifier_dropout_p),
                ..spec.head
            },
            decoder_start_token: stacks.decoder_start_token_id,
            eos_token,
            ..spec
        }
    }

    fn block(&self, place: BlockPlace) -> BlockConfig {
        let stacks = self.stacks();
        let block_of = |text: &TextConfig| {
            let block = block(text, Placement::Post);
            BlockConfig { ffn: FeedForwardConfig { dropout: stacks.ffn_dropout_p, ..block.ffn }, ..block }
        };
        if place.stack == 0 {
            return block_of(&stacks.text);
        }
        let (num_heads, dim_head, dim_ff) =
            (stacks.num_decoder_heads, stacks.dim_decoder_head(), stacks.dim_decoder_ff);
        block_of(&TextConfig { num_heads, dim_head, dim_ff, ..stacks.text.clone() }).attending_to_encoder()
    }

    fn names(&self, head: Head) -> NameTable {
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

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "bart",
        doc: "BART with heads for the decoder's next token and for classification",
        open: Bart::open,
        facts: Bart::FACTS,
    },
    class: None,
    class_prefix: "Bart",
    signatures: &[Signature {
        prefix: "model.",
        has: &[fairseq::TENSORS, &["encoder.layernorm_embedding.weight"]],
        lacks: &["encoder.layer_norm.weight"],
    }],
};
