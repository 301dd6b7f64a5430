//! Megatron-LM's BERT since its version 1 (Shoeybi et al., 2019): BERT with its norms before the layers and one after
//! the last block, which trains where BERT's order diverges with size. Megatron-LM's
//! `--apply-residual-connection-post-layernorm` has BERT's order, and is [`super::bert`].

use super::bert::{self, BertConfig};
use crate::model::prelude::*;

model_config! {
    /// Sizes and options of a Megatron-BERT.
    ///
    /// ModelCenter does not have the family: its names mean the same as for a BERT, and defaults are taken from
    /// transformers.
    ///
    /// Source: Shoeybi et al. 2019 for the architecture, transformers for fields and defaults.
    pub struct MegatronBertConfig {
        /// The common fields. `dropout_p`, `embedding_dropout_p` and the dropout of a classifier are equal.
        text: TextConfig {
            vocab_size: 29056,
            dim_model: 1024,
            num_heads: 16,
            dim_head: 64,
            dim_ff: 4096,
            num_layers: 24,
            position_size: 512,
            norm_eps: 1e-12,
            tied: true,
            ..TextConfig::default()
        };
        /// Rows of the token type embedding. Hugging Face: `type_vocab_size`.
        type_size: usize = 2, Size(required "type_vocab_size" => "type_size");
    }
}

impl RowConfig for MegatronBertConfig {
    const DIALECT: Dialect = Dialect {
        title: "Megatron-BERT",
        model_type: "megatron-bert",
        hugging_face: encoder_files::defaults,
        fixed: &[Fixed::BIASES, Fixed::PRE_NORM],
        ..Dialect::HUGGING_FACE
    };

    fn read(fields: &mut Fields) -> Result<Self> {
        encoder_files::take(fields, |config: &mut Self| &mut config.text.dropout_p)
    }
}

/// A Megatron-BERT with its heads.
pub type MegatronBert = Transformer<MegatronBertConfig>;

impl ModelFamily for MegatronBertConfig {
    const ARCHITECTURE: Architecture = Architecture::Encoder;
    const DROPS_EMBEDDINGS: bool = true;
    const HAS_SENTENCES: bool = true;

    fn classes(&self) -> Classes {
        Classes::encoder(FAMILY.class_prefix)
    }

    fn spec(&self) -> Spec {
        let stack = StackSpec::encoder(&self.text, PositionTable::PLACES, self.type_size, Placement::Pre);
        let spec = Spec::encoder(self, stack, ClassifierInput::Pooled);
        Spec { head: HeadSpec { dropout: HeadDropout::of_classifiers(self.text.dropout_p), ..spec.head }, ..spec }
    }

    fn block(&self, _place: BlockPlace) -> BlockConfig {
        block(&self.text, Placement::Pre)
    }

    fn names(&self, _head: Head) -> NameTable {
        NameTable {
            base_prefix: "bert.",
            rules: Cow::Owned(encoder_files::rules("bert.", &NORMS, &bert::HEADS)),
            aliases: Cow::Borrowed(&bert::TIED),
            ignored: Cow::Borrowed(&["bert.embeddings.position_ids"]),
            ..NameTable::default()
        }
    }

    fn other_heads(head: Head) -> &'static [&'static str] {
        BertConfig::other_heads(head)
    }
}

/// The norms: before each layer, and after the last block.
const NORMS: [(&str, &str); 3] = [
    ("encoder.layers.{i}.attention_norm", "encoder.layer.{i}.attention.ln"),
    ("encoder.layers.{i}.ffn_norm", "encoder.layer.{i}.ln"),
    ("encoder.output_norm", "encoder.ln"),
];

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "megatron-bert",
        doc: "Megatron-LM's BERT, whose norms precede its layers, with the heads of BERT",
        open: MegatronBert::open,
        facts: MegatronBert::FACTS,
    },
    class: None,
    class_prefix: "MegatronBert",
    signatures: &[Signature {
        prefix: "bert.",
        has: &[encoder_files::TENSORS, &["encoder.layer.0.attention.ln.weight", encoder_files::OUTPUT_NORM]],
        lacks: &["roberta.", "embeddings.LayerNorm.weight"],
    }],
};
