//! Marian's models for translation (Junczys-Dowmunt et al., 2018; Tiedemann and Thottingal, 2020): a BART with
//! sinusoidal positions and no norm after the embeddings.

use super::bart::LikeBart;
use crate::model::prelude::*;
use model_center_formats::config::EncoderDecoderFields;
use model_center_formats::config::encoder_decoder::HasStacks;

/// The padding token, which is also the decoder start token.
const PADDING: usize = 58_100;

/// Sizes and options of a Marian. ModelCenter does not have the family; for files with ModelCenter's names, the default
/// sizes are a large model's.
///
/// Source: Junczys-Dowmunt et al. 2018 for the program, transformers for fields and defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct MarianConfig {
    /// All fields.
    pub stacks: EncoderDecoderFields,
}

fn defaults() -> TextConfig {
    TextConfig { vocab_size: 58_101, pad_token_id: Some(PADDING), ..encoder_decoder::defaults() }
}

impl Default for MarianConfig {
    fn default() -> Self {
        MarianConfig { stacks: EncoderDecoderFields::of(defaults(), Some(PADDING)) }
    }
}

impl ConfigRows for MarianConfig {
    const ROWS: &'static [Row<Self>] = &encoder_decoder::rows();

    fn text(&self) -> &TextConfig {
        &self.stacks.text
    }

    fn text_mut(&mut self) -> &mut TextConfig {
        &mut self.stacks.text
    }
}

impl RowConfig for MarianConfig {
    const DIALECT: Dialect = Dialect { title: "Marian", model_type: "marian", ..encoder_decoder::DIALECT };

    fn read(fields: &mut Fields) -> Result<Self> {
        let decoder = fields.peek_size("decoder_vocab_size")?;
        let both = fields.peek_size("vocab_size")?;
        if decoder.is_some_and(|decoder| both.is_some_and(|both| both != decoder)) {
            return Err(Self::DIALECT.unsupported(fields, "decoder_vocab_size", "vocab_size"));
        }
        encoder_decoder::take(fields)
    }

    fn adjust_hf(&self, map: &mut Map<String, Value>) -> Result<()> {
        encoder_decoder::adjust_hf::<Self>(&self.stacks, map)
    }
}

impl HasStacks for MarianConfig {
    /// Flags that remain in its files from BART's class, and one embedding table for both languages.
    const FLAGS: &'static [(&'static str, bool)] = &[
        ("normalize_before", false),
        ("normalize_embedding", false),
        ("add_final_layer_norm", false),
        ("static_position_embeddings", true),
        ("share_encoder_decoder_embeddings", true),
    ];

    fn stacks(&self) -> &EncoderDecoderFields {
        &self.stacks
    }

    fn stacks_mut(&mut self) -> &mut EncoderDecoderFields {
        &mut self.stacks
    }
}

/// A Marian with its head.
pub type Marian = Transformer<MarianConfig>;

impl LikeBart for MarianConfig {
    const CLASSES: Classes =
        Classes { prefix: "Marian", suffixes: &[(TextHead::None, "Model"), (TextHead::CausalLm, "MTModel")] };
    const POSITIONS: Added = Added::Sinusoids;
    const NORMS_EMBEDDINGS: bool = false;
    const EOS_TOKEN: usize = 0;
    // Checked against the computed values when the directory is opened. transformers computes them too if
    // a file has none.
    const IGNORED: &'static [&'static str] =
        &["model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"];
}

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "marian",
        doc: "Marian's models for translation with the head for the decoder's next token",
        open: Marian::open,
        facts: Marian::FACTS,
    },
    class: None,
    class_prefix: "Marian",
    signatures: &[Signature {
        prefix: "model.",
        has: &[fairseq::TENSORS],
        lacks: &["encoder.layernorm_embedding.weight", "encoder.layer_norm.weight"],
    }],
};
