//! Encoder-decoders with post-norm blocks whose encoder and decoder have separate sizes.

use serde_json::{Map, Value, json};

use super::dialect::{Dialect, Fixed, Spoken};
use super::ranges::Ranges;
use super::rows::{self, Row, RowConfig, Slot};
use super::{Fields, TextConfig};
use crate::Result;

/// The epsilon of all norms, which the files do not state.
pub(crate) const NORM_EPS: f32 = 1e-5;

/// Outputs of a classifier whose file does not state them: three in transformers, which has two elsewhere.
const SILENT_CLASSES: usize = 3;

/// Sizes and options of a model whose encoder, decoder and head share one token embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct EncoderDecoderFields {
    /// Fields that all families have; blocks, heads and F are the encoder's. Unless a file states another, the dropout
    /// of the embeddings' sum equals the layers' dropout.
    pub text: TextConfig,
    /// Blocks of the decoder. Hugging Face: `decoder_layers`.
    pub num_decoder_layers: usize,
    /// N of the decoder. Hugging Face: `decoder_attention_heads`.
    pub num_decoder_heads: usize,
    /// F of the decoder. Hugging Face: `decoder_ffn_dim`.
    pub dim_decoder_ff: usize,
    /// Dropout between the maps of the feed-forward, in `[0, 1)`. Hugging Face: `activation_dropout`.
    pub ffn_dropout_p: f32,
    /// Dropout before each linear layer of a classifier, in `[0, 1)`. Hugging Face: `classifier_dropout`.
    pub classifier_dropout_p: f32,
    /// Whether token embeddings are multiplied by the root of D. Hugging Face: `scale_embedding`.
    pub scale_embedding: bool,
    /// The first input token of the decoder, if the file states it.
    pub decoder_start_token_id: Option<usize>,
}

/// Dialect of such families, but for their own name and defaults.
pub const DIALECT: Dialect = Dialect {
    dim_model: &["d_model", "hidden_size"],
    num_layers: &["encoder_layers", "num_hidden_layers"],
    num_heads: &["encoder_attention_heads", "num_attention_heads"],
    dim_ff: &["encoder_ffn_dim"],
    dropout: &["dropout"],
    attention_dropout: &["attention_dropout"],
    init_std: &["init_std"],
    norm_eps: &[],
    activation: &["activation_function"],
    fixed: &[&[("is_encoder_decoder", Fixed::Flag(true))]],
    ..Dialect::HUGGING_FACE
};

/// Defaults of transformers where a file is silent.
pub fn defaults() -> TextConfig {
    TextConfig {
        vocab_size: 50_265,
        dim_model: 1024,
        num_heads: 16,
        dim_ff: 4096,
        position_size: 1024,
        dropout_p: 0.1,
        embedding_dropout_p: 0.1,
        norm_eps: NORM_EPS,
        tied: true,
        pad_token_id: Some(1),
        ..TextConfig::default()
    }
}

impl EncoderDecoderFields {
    /// A decoder like the encoder, nothing scaled, nothing dropped between the maps.
    pub fn of(text: TextConfig, decoder_start_token_id: Option<usize>) -> Self {
        EncoderDecoderFields {
            num_decoder_layers: text.num_layers,
            num_decoder_heads: text.num_heads,
            dim_decoder_ff: text.dim_ff,
            ffn_dropout_p: 0.0,
            classifier_dropout_p: 0.0,
            scale_embedding: false,
            decoder_start_token_id,
            text,
        }
    }

    /// H of the decoder.
    pub fn dim_decoder_head(&self) -> usize {
        self.text.dim_model / self.num_decoder_heads
    }
}

/// A configuration that is nothing else.
pub trait HasStacks: RowConfig {
    /// Flags that have one value in the family, which files may state.
    const FLAGS: &'static [(&'static str, bool)];

    /// Sizes and options.
    fn stacks(&self) -> &EncoderDecoderFields;

    /// The same, to change them.
    fn stacks_mut(&mut self) -> &mut EncoderDecoderFields;
}

/// The rows of such families.
pub const fn rows<C: HasStacks>() -> [Row<C>; 7] {
    [
        Row::required(&["decoder_layers"], &["num_decoder_layers"], |c| {
            Slot::Size(&mut c.stacks_mut().num_decoder_layers)
        }),
        Row::required(&["decoder_attention_heads"], &["num_decoder_heads"], |c| {
            Slot::Size(&mut c.stacks_mut().num_decoder_heads)
        }),
        Row::required(&["decoder_ffn_dim"], &["dim_decoder_ff"], |c| Slot::Size(&mut c.stacks_mut().dim_decoder_ff)),
        Row::new(&["activation_dropout"], &["ffn_dropout_p"], |c| Slot::Number(&mut c.stacks_mut().ffn_dropout_p)),
        Row::new(&["classifier_dropout"], &["classifier_dropout_p"], |c| {
            Slot::Number(&mut c.stacks_mut().classifier_dropout_p)
        }),
        Row::same(&["scale_embedding"], |c| Slot::Flag(&mut c.stacks_mut().scale_embedding)),
        Row::same(&["decoder_start_token_id"], |c| Slot::OptionalIndex(&mut c.stacks_mut().decoder_start_token_id)),
    ]
}

/// Take the configuration of such a family.
///
/// # Errors
/// A file that [`Dialect::take`] refuses; a decoder alone, embeddings or a head that are not shared,
/// blocks that are dropped, flags of another value.
pub fn take<C: HasStacks>(fields: &mut Fields) -> Result<C> {
    let drops_embeddings = fields.peek("embedding_dropout_p").is_some();
    let counts_classes = ["id2label", "num_labels", "cls_head"].iter().any(|name| fields.peek(name).is_some());
    let mut config = C::default();
    let (text, spoken) = C::DIALECT.take(fields, config.text().clone())?;
    let stacks = config.stacks_mut();
    *stacks = EncoderDecoderFields::of(text, stacks.decoder_start_token_id);
    let text = &mut stacks.text;
    if !counts_classes {
        text.cls_head = text.cls_head.map(|_| SILENT_CLASSES);
    }
    if spoken == Spoken::HuggingFace && !drops_embeddings {
        text.embedding_dropout_p = text.dropout_p;
    }
    if !text.tied {
        // Each stack would have its own token embedding.
        return Err(C::DIALECT.unsupported(fields, "tie_word_embeddings", "true"));
    }
    C::DIALECT.refuse_lone_stacks(fields)?;
    C::DIALECT.expect_flags(fields, C::FLAGS)?;
    C::DIALECT.refuse_layer_dropout(fields, &["encoder_layerdrop", "decoder_layerdrop"])?;
    let text = text.clone();
    rows::take(C::ROWS, &mut config, fields, &text, spoken)?;
    config.stacks().validate(fields.place())?;
    Ok(config)
}

/// Add what Hugging Face files of such families state besides the rows.
///
/// # Errors
/// Norms of another epsilon than transformers has.
pub fn adjust_hf<C: HasStacks>(stacks: &EncoderDecoderFields, map: &mut Map<String, Value>) -> Result<()> {
    map.insert("is_encoder_decoder".to_string(), json!(true));
    C::DIALECT.check_norm_eps(&stacks.text, NORM_EPS)
}

/// Take the encoder's blocks where they are named as ModelCenter names them.
pub fn take_encoder_layers(fields: &mut Fields, text: &mut TextConfig, is_stated: bool) -> Result<()> {
    let Some(layers) = fields.take_size("num_encoder_layers")? else { return Ok(()) };
    if is_stated && layers != text.num_layers {
        let reason = format!("the file states num_layers = {} and num_encoder_layers = {layers}", text.num_layers);
        return Err(fields.error("num_encoder_layers", &reason, "remove one of the two fields, or make them equal"));
    }
    text.num_layers = layers;
    Ok(())
}

impl EncoderDecoderFields {
    /// Check the fields that only such a family has; `place` names the source.
    fn validate(&self, place: &str) -> Result<()> {
        let (ranges, text) = (Ranges { place }, &self.text);
        ranges.sizes(&[("decoder_layers", self.num_decoder_layers), ("decoder_ffn_dim", self.dim_decoder_ff)])?;
        if !text.dim_model.is_multiple_of(self.num_decoder_heads) {
            let reason = format!("d_model {} is not divisible by {} heads", text.dim_model, self.num_decoder_heads);
            return Err(ranges.refuse("decoder_attention_heads", reason, "correct one of the two"));
        }
        ranges.dropouts(&[
            ("activation_dropout", self.ffn_dropout_p),
            ("classifier_dropout", self.classifier_dropout_p),
        ])?;
        ranges.decoder_start_token(self.decoder_start_token_id, text.vocab_size)
    }
}
