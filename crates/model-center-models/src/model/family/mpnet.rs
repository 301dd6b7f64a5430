//! MPNet (Song et al., 2020): RoBERTa's positions and heads, and learned biases for ranges of distances, one table for
//! all blocks. No token types.

use crate::model::prelude::*;

/// Ranges of distances, and the distance from which all share the last: transformers has them whatever a file states.
const DISTANCES: [usize; 2] = [32, 128];

/// The padding token, from which positions count: the same.
const PADDING: usize = 1;

model_config! {
    /// Sizes and options of an MPNet.
    ///
    /// Source: Song et al. 2020 for the architecture, transformers for fields and defaults.
    pub struct MpnetConfig {
        /// The common fields. `position_size` counts the rows of the position embedding, with the two that no token
        /// has. `dropout_p`, `embedding_dropout_p` and the dropout of classifiers are equal.
        text: TextConfig {
            vocab_size: 30527,
            position_size: 514,
            norm_eps: 1e-12,
            tied: true,
            pad_token_id: Some(PADDING),
            ..TextConfig::default()
        };
        /// Ranges of distances, 32.
        buckets: usize = DISTANCES[0], Size("relative_attention_num_buckets");
    }
}

impl RowConfig for MpnetConfig {
    const DIALECT: Dialect = Dialect {
        title: "MPNet",
        model_type: "mpnet",
        hugging_face: |text| TextConfig { pad_token_id: text.pad_token_id, ..encoder_files::defaults(text.clone()) },
        fixed: &[Fixed::BIASES, Fixed::POST_NORM],
        ..Dialect::HUGGING_FACE
    };

    fn read(fields: &mut Fields) -> Result<Self> {
        encoder_files::take_body(fields)
    }

    fn validate(&self, place: &str) -> Result<()> {
        self.text.validate(place)?;
        rows::check(Self::ROWS, self, place)?;
        let refuse = |field: &str, reason: String, fix: &str| Err(Ranges { place }.refuse(field, reason, fix));
        if self.text.pad_token_id != Some(PADDING) {
            let reason = format!("MPNet's padding token is {PADDING}, from which its positions count");
            return refuse("pad_token_id", reason, "set it to 1, or use a model whose vocabulary has it there");
        }
        if self.buckets != DISTANCES[0] {
            let reason = format!("MPNet has {} ranges of distances, and not {}", DISTANCES[0], self.buckets);
            return refuse("relative_attention_num_buckets", reason, "set it to 32, or use a model with 32");
        }
        if self.text.position_size <= PADDING + 1 {
            let reason = format!("a table of {} positions has none for a token", self.text.position_size);
            return refuse("position_size", reason, "give more positions than 2");
        }
        Ok(())
    }
}

/// An MPNet with its heads.
pub type Mpnet = Transformer<MpnetConfig>;

impl ModelFamily for MpnetConfig {
    const ARCHITECTURE: Architecture = Architecture::Encoder;
    const DROPS_EMBEDDINGS: bool = true;

    fn classes(&self) -> Classes {
        Classes::encoder(FAMILY.class_prefix)
    }

    fn spec(&self) -> Spec {
        let positions = PositionTable { first: PADDING + 1, count: Count::Tokens };
        let relative = RelativeConfig::new(self.text.num_heads, DISTANCES, self.text.outer_std());
        let stack = StackSpec {
            type_size: None,
            positions: PositionsConfig::Relative(relative),
            ..StackSpec::encoder(&self.text, positions, 1, Placement::Post)
        };
        let spec = Spec::encoder(self, stack, ClassifierInput::FirstToken);
        // Independent of the activation of the blocks.
        let transform = spec.head.transform.map(|(norm, _)| (norm, Activation::Gelu));
        let dropout = HeadDropout::of_classifiers(self.text.dropout_p);
        Spec { head: HeadSpec { transform, dropout, ..spec.head }, ..spec }
    }

    fn block(&self, _place: BlockPlace) -> BlockConfig {
        block(&self.text, Placement::Post)
    }

    fn names(&self, _head: Head) -> NameTable {
        encoder_files::table("mpnet.", [&MODULES, &HEADS], &TIED, &["mpnet.embeddings.position_ids"])
    }

    fn other_heads(head: Head) -> &'static [&'static str] {
        encoder_files::other_heads(head)
    }
}

/// The layers of a base model.
const MODULES: [(&str, &str); 9] = [
    ("embedding_norm", "embeddings.LayerNorm"),
    ("encoder.relative_attention_bias", "encoder.relative_attention_bias"),
    ("encoder.layers.{i}.attention.project_qkv", "encoder.layer.{i}.attention.attn.{q|k|v}"),
    ("encoder.layers.{i}.attention.attention_out", "encoder.layer.{i}.attention.attn.o"),
    ("encoder.layers.{i}.attention_norm", "encoder.layer.{i}.attention.LayerNorm"),
    ("encoder.layers.{i}.ffn.w_in", "encoder.layer.{i}.intermediate.dense"),
    ("encoder.layers.{i}.ffn.w_out", "encoder.layer.{i}.output.dense"),
    ("encoder.layers.{i}.ffn_norm", "encoder.layer.{i}.output.LayerNorm"),
    ("pooler.dense", "pooler.dense"),
];

/// The layers of the heads.
const HEADS: [(&str, &str); 7] = [
    ("cls_dense", "classifier.dense"),
    ("cls_projection", "classifier.out_proj"),
    ("token_projection", "classifier"),
    ("span_projection", "qa_outputs"),
    ("lm_head.dense", "lm_head.dense"),
    ("lm_head.layer_norm", "lm_head.layer_norm"),
    ("lm_head.decoder", "lm_head"),
];

/// The masked-LM head's matrix tied to the token embedding, and its bias under a second name.
static TIED: [Alias; 2] = [
    Alias::new("lm_head.decoder.weight", "mpnet.embeddings.word_embeddings.weight"),
    Alias::new("lm_head.decoder.bias", "lm_head.bias"),
];

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "mpnet",
        doc: "MPNet with classification, answer-span and masked-token heads",
        open: Mpnet::open,
        facts: Mpnet::FACTS,
    },
    class: None,
    class_prefix: "MPNet",
    signatures: &[Signature {
        prefix: "mpnet.",
        has: &[&["encoder.relative_attention_bias.weight", "encoder.layer.0.attention.attn.q.weight"]],
        lacks: &[],
    }],
};
