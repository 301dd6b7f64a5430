//! What BART and the models that are built like it have: two stacks of sizes of their own, with norms behind the sums.
//!
//! Defines [`TwoStacks`], a part of a family's configuration; called by the configurations of BART and Marian.

use serde_json::{Map, Value, json};

use super::dialect::{Dialect, Fixed, Names, Spoken};
use super::json::number;
use super::ranges::Ranges;
use super::{Fields, HfHeader, TextConfig};
use crate::Result;

/// The epsilon of all norms, which the files do not state.
pub(super) const NORM_EPS: f32 = 1e-5;

/// Outputs of a classifier whose file does not say: transformers has three here, and two of its other models.
const SILENT_CLASSES: usize = 3;

/// Sizes and options of a model whose encoder and decoder look words up in one table, which is its head too.
#[derive(Debug, Clone, PartialEq)]
pub struct TwoStacks {
    /// What all families have; blocks, heads and F are the encoder's. Where a file does not say otherwise the sum of
    /// the embeddings is dropped out of as the layers are.
    pub text: TextConfig,
    /// Blocks of the decoder. Hugging Face: `decoder_layers`.
    pub num_decoder_layers: usize,
    /// N of the decoder. Hugging Face: `decoder_attention_heads`.
    pub num_decoder_heads: usize,
    /// F of the decoder. Hugging Face: `decoder_ffn_dim`.
    pub dim_decoder_ff: usize,
    /// Dropout between the maps of the feed-forward, in `[0, 1)`. Hugging Face: `activation_dropout`.
    pub ffn_dropout_p: f32,
    /// Dropout in front of each map of a classifier, in `[0, 1)`. Hugging Face: `classifier_dropout`.
    pub classifier_dropout_p: f32,
    /// Whether the words' rows are multiplied by the root of D. Hugging Face: `scale_embedding`.
    pub scale_embedding: bool,
    /// The word in front of the first that the decoder is to predict, if the file says.
    pub decoder_start_token_id: Option<usize>,
}

/// How the files of such families are written, but for their own name and defaults.
pub(super) const DIALECT: Dialect = Dialect {
    title: "BART",
    model_type: "bart",
    dim_model: &["d_model", "hidden_size"],
    num_layers: &["encoder_layers", "num_hidden_layers"],
    num_heads: &["encoder_attention_heads", "num_attention_heads"],
    dim_ff: &["encoder_ffn_dim"],
    ff_factor: None,
    dim_head: &[],
    position_size: &["max_position_embeddings"],
    dropout: &["dropout"],
    embedding_dropout: &[],
    attention_dropout: &["attention_dropout"],
    init_std: &["init_std"],
    norm_eps: &[],
    activation: &["activation_function"],
    gated: Some(false),
    hugging_face: defaults,
    model_center: defaults,
    fixed: &[&[("is_encoder_decoder", Fixed::Flag(true))]],
};

/// What transformers takes where a file is silent.
pub(super) fn defaults() -> TextConfig {
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

impl TwoStacks {
    /// A decoder like the encoder, nothing scaled, nothing dropped between the maps.
    pub(super) fn of(text: TextConfig, decoder_start_token_id: Option<usize>) -> Self {
        TwoStacks {
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

    /// Take the fields. `flags` are those that have one value in the family, `silent` is what a file means that does
    /// not say the word in front of the first.
    ///
    /// # Errors
    /// Those of [`Dialect::take`]; a decoder alone, embeddings or a head that are not shared, blocks that are dropped,
    /// flags of another value.
    pub(super) fn take(
        dialect: &Dialect,
        mut fields: Fields,
        flags: &[(&str, bool)],
        silent: Option<usize>,
    ) -> Result<Self> {
        let drops_embeddings = fields.peek("embedding_dropout_p").is_some();
        let counts_classes = ["id2label", "num_labels", "cls_head"].iter().any(|name| fields.peek(name).is_some());
        let (mut text, spoken) = dialect.take(&mut fields)?;
        if !counts_classes {
            text.cls_head = text.cls_head.map(|_| SILENT_CLASSES);
        }
        let is_hugging_face = spoken == Spoken::HuggingFace;
        if is_hugging_face && !drops_embeddings {
            text.embedding_dropout_p = text.dropout_p;
        }
        if !text.tied {
            // There each stack has words of its own.
            return Err(dialect.unsupported(&fields, "tie_word_embeddings", "true"));
        }
        dialect.refuse_lone_stacks(&fields)?;
        dialect.expect_flags(&fields, flags)?;
        dialect.refuse_layer_dropout(&fields, &["encoder_layerdrop", "decoder_layerdrop"])?;
        let mut stacks = TwoStacks::of(text, silent);
        stacks.take_decoder(&mut fields, is_hugging_face)?;
        let rate = fields.take_any(&["activation_dropout", "ffn_dropout_p"], Fields::take_number)?;
        stacks.ffn_dropout_p = rate.unwrap_or(stacks.ffn_dropout_p);
        let rate = fields.take_any(&["classifier_dropout", "classifier_dropout_p"], Fields::take_number)?;
        stacks.classifier_dropout_p = rate.unwrap_or(stacks.classifier_dropout_p);
        stacks.scale_embedding = fields.take_flag("scale_embedding")?.unwrap_or(stacks.scale_embedding);
        // A file that is silent means the default, and one that says null that there is none.
        if fields.has("decoder_start_token_id") {
            stacks.decoder_start_token_id = fields.take_index("decoder_start_token_id")?;
        }
        stacks.validate(fields.place())?;
        dialect.finish(fields, &mut stacks.text)?;
        Ok(stacks)
    }

    /// Take the decoder's sizes, which files of transformers must state.
    fn take_decoder(&mut self, fields: &mut Fields, is_hugging_face: bool) -> Result<()> {
        let names: [Names; 3] = [
            &["decoder_layers", "num_decoder_layers"],
            &["decoder_attention_heads", "num_decoder_heads"],
            &["decoder_ffn_dim", "dim_decoder_ff"],
        ];
        let targets = [&mut self.num_decoder_layers, &mut self.num_decoder_heads, &mut self.dim_decoder_ff];
        let mut missing = Vec::new();
        for (names, target) in names.into_iter().zip(targets) {
            match fields.take_any(names, Fields::take_size)? {
                Some(size) => *target = size,
                None if is_hugging_face => missing.push(names[0]),
                None => {}
            }
        }
        match missing.is_empty() {
            true => Ok(()),
            false => Err(fields.missing_sizes(&missing)),
        }
    }

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
        ranges.first_word(self.decoder_start_token_id, text.vocab_size)
    }

    /// The fields under ModelCenter's names.
    pub(super) fn to_dict(&self, dialect: &Dialect) -> Map<String, Value> {
        let mut map = dialect.to_dict(&self.text);
        let dropouts = ["ffn_dropout_p", "classifier_dropout_p"];
        self.write(&mut map, ["num_decoder_layers", "num_decoder_heads", "dim_decoder_ff"], dropouts);
        map
    }

    /// The fields under the names of transformers.
    ///
    /// # Errors
    /// A configuration that transformers has no form for.
    pub(super) fn to_hf_json(&self, dialect: &Dialect, header: &HfHeader) -> Result<Map<String, Value>> {
        dialect.check_norm_eps(&self.text, NORM_EPS)?;
        let mut map = dialect.to_hf_json(&self.text, header)?;
        let dropouts = ["activation_dropout", "classifier_dropout"];
        self.write(&mut map, ["decoder_layers", "decoder_attention_heads", "decoder_ffn_dim"], dropouts);
        map.insert("is_encoder_decoder".to_string(), json!(true));
        map.sort_keys();
        Ok(map)
    }

    fn write(&self, map: &mut Map<String, Value>, [layers, heads, ff]: [&str; 3], [ffn, classifier]: [&str; 2]) {
        map.insert(layers.to_string(), json!(self.num_decoder_layers));
        map.insert(heads.to_string(), json!(self.num_decoder_heads));
        map.insert(ff.to_string(), json!(self.dim_decoder_ff));
        map.insert(ffn.to_string(), number(self.ffn_dropout_p));
        map.insert(classifier.to_string(), number(self.classifier_dropout_p));
        map.insert("scale_embedding".to_string(), json!(self.scale_embedding));
        map.insert("decoder_start_token_id".to_string(), json!(self.decoder_start_token_id));
    }
}
