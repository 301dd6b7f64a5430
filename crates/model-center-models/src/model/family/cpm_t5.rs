//! The T5 of CPM-Pretrain, the program that CPM-1 was trained with: pre-norm blocks with layer norms, heads of any
//! size, learned positions. Encoder, decoder and language-modelling head share one token embedding, and encoder and
//! decoder one position embedding.
//!
//! CPM-Pretrain has no norm after its encoder, and one norm in a decoder block that comes after self-attention and
//! again after cross-attention. Here the encoder has a final norm, and each layer of a block a norm of its own, unless
//! `cpm_pretrain_norms` is set.

use crate::model::prelude::*;

model_config! {
    /// Sizes and options of a CPM-T5.
    ///
    /// Neither transformers nor ModelCenter has the family: fields have the names of CPM-Pretrain's arguments, and
    /// tensors ModelCenter's. Its 190 sentinels are ordinary tokens of the vocabulary.
    ///
    /// Source: CPM-Pretrain's arguments for fields and defaults; sizes are a base model's.
    pub struct CpmT5Config {
        /// The common fields; `num_layers` counts encoder blocks. Unless a file states another, the dropout of the
        /// embeddings' sum equals the layers' dropout.
        text: TextConfig {
            vocab_size: 26240,
            position_size: 1024,
            dropout_p: 0.1,
            embedding_dropout_p: 0.1,
            attention_dropout_p: 0.1,
            tied: true,
            ..TextConfig::default()
        };
        /// Number of decoder blocks; where a file does not state it, the encoder's.
        num_decoder_layers: usize = 12, Size("num_decoder_layers");
        /// Whether the linear layers of attention and feed-forward have biases.
        hidden_bias: bool = false, Flag("hidden_bias" => "att_bias", "ffn_bias");
        /// Whether norms are where CPM-Pretrain has them: none after the encoder, and in a decoder block one for
        /// cross-attention and feed-forward.
        cpm_pretrain_norms: bool = false, Flag("cpm_pretrain_norms");
        /// The decoder start token, if the file specifies one. CPM-Pretrain's decoder gets its input as given,
        /// beginning with a sentinel.
        decoder_start_token_id: Option<usize> = None, OptionalIndex("decoder_start_token_id");
    }
}

impl RowConfig for CpmT5Config {
    const DIALECT: Dialect = Dialect {
        title: "CPM-T5",
        model_type: "cpm_t5",
        num_layers: &["num_layers", "num_encoder_layers"],
        dim_ff: &["ff_hidden_size"],
        dim_head: &["kv_hidden_size"],
        dropout: &["hidden_dropout"],
        embedding_dropout: &["embedding_dropout"],
        attention_dropout: &["attention_dropout"],
        init_std: &["init_method_std"],
        norm_eps: &["layernorm_epsilon"],
        fixed: &[
            Fixed::PRE_NORM,
            &[
                ("is_encoder_decoder", Fixed::Flag(true)),
                ("norm_bias", Fixed::Flag(true)),
                ("attn_scale", Fixed::Flag(true)),
                ("pos_bias_type", Fixed::Text("none")),
            ],
        ],
        ..Dialect::HUGGING_FACE
    };

    fn read(fields: &mut Fields) -> Result<Self> {
        let stated = |names: &[&str]| names.iter().any(|name| fields.peek(name).is_some());
        let states_decoder = stated(&["num_decoder_layers"]);
        let drops_embeddings = stated(&["embedding_dropout", "embedding_dropout_p"]);
        let (mut config, _) = rows::take_config::<Self>(fields)?;
        if !config.text.tied {
            return Err(Self::DIALECT.unsupported(fields, "tie_word_embeddings", "true"));
        }
        Self::DIALECT.refuse_lone_stacks(fields)?;
        if !states_decoder {
            config.num_decoder_layers = config.text.num_layers;
        }
        if !drops_embeddings {
            config.text.embedding_dropout_p = config.text.dropout_p;
        }
        Ok(config)
    }

    fn validate(&self, place: &str) -> Result<()> {
        self.text.validate(place)?;
        rows::check(Self::ROWS, self, place)?;
        Ranges { place }.decoder_start_token(self.decoder_start_token_id, self.text.vocab_size)
    }

    fn adjust_hf(&self, map: &mut Map<String, Value>) -> Result<()> {
        map.insert("is_encoder_decoder".to_string(), json!(true));
        Ok(())
    }

    fn to_class(&self, _header: &HfHeader) -> Result<ClassFields> {
        Err(model_center::no_model_center(Self::DIALECT.title))
    }
}

/// A CPM-T5 with its head.
pub type CpmT5 = Transformer<CpmT5Config>;

impl ModelFamily for CpmT5Config {
    const ARCHITECTURE: Architecture = Architecture::EncoderDecoder;
    const DROPS_EMBEDDINGS: bool = true;

    /// Only directories of this crate use these class names, to name the model's head.
    fn classes(&self) -> Classes {
        Classes::encoder_decoder("CpmT5")
    }

    fn spec(&self) -> Spec {
        let norm = NormOptions::layer(self.text.dim_model, self.text.norm_eps);
        // Padding tokens count as positions.
        let added = Added::Shared(PositionTable::PLACES);
        let [encoder, decoder] = StackSpec::encoder_and_decoder(&self.text, self.num_decoder_layers, added);
        let encoder = StackSpec { output_norm: (!self.cpm_pretrain_norms).then_some(norm), ..encoder };
        let decoder = StackSpec { output_norm: Some(norm), ..decoder };
        Spec {
            padding_learns: true,
            decoder_start_token: self.decoder_start_token_id,
            starts_with_sentinel: true,
            ..Spec::encoder_decoder(self, [encoder, decoder])
        }
    }

    fn block(&self, place: BlockPlace) -> BlockConfig {
        let (block, bias) = (block(&self.text, Placement::Pre), self.hidden_bias);
        let block = BlockConfig {
            attention: AttentionConfig { bias, out_bias: bias, ..block.attention },
            ffn: FeedForwardConfig { bias, ..block.ffn },
            ..block
        };
        match place.stack {
            0 => block,
            _ => BlockConfig { shares_norm: self.cpm_pretrain_norms, ..block.attending_to_encoder() },
        }
    }

    fn names(&self, _head: Head) -> NameTable {
        model_center_names::encoder_decoder(self)
    }

    /// By the names of its tensors a directory counts as ModelCenter's.
    fn names_of_model_center(&self, head: Head) -> Option<NameTable> {
        Some(self.names(head))
    }
}

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "cpm_t5",
        doc: "CPM-Pretrain's T5, with learned positions, and the head for the decoder's next token",
        open: CpmT5::open,
        facts: CpmT5::FACTS,
    },
    class: None,
    class_prefix: "CpmT5",
    signatures: &[Signature {
        prefix: "",
        has: &[&[
            "input_embedding.weight",
            "position_embedding.weight",
            "decoder.layers.0.cross_att.self_attention.project_q.weight",
        ]],
        lacks: &[],
    }],
};
