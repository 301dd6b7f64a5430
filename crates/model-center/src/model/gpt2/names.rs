//! GPT-2 in Hugging Face folders: which parameter is which tensor, opening a folder, writing one.

use super::Gpt2;
use crate::config::{Config, Gpt2Config};
use crate::error::Result;
use crate::hf::{Alias, Allow, ModelFolder, NameTable, Rule};
use crate::model::decoder::DecoderHead;
use crate::model::labels::take_over;
use crate::model::opening::{open_with, save_as};
use crate::model::registry::{HeadValues, OpenOptions, OpenedModel, SaveOptions, architectures};
use crate::model::text::TextHead;
use bmtrain_dist::Model;
use bmtrain_dist::block::BlockOptions;
use std::borrow::Cow;
use std::path::Path;

/// The parameters. The maps of blocks lie in files as `[in, out]`.
static RULES: [Rule; 18] = [
    Rule::new("input_embedding.weight", "transformer.wte.weight"),
    Rule::new("position_embedding.weight", "transformer.wpe.weight"),
    Rule::new("decoder.layers.{i}.attention_norm.weight", "transformer.h.{i}.ln_1.weight"),
    Rule::new("decoder.layers.{i}.attention_norm.bias", "transformer.h.{i}.ln_1.bias"),
    Rule::new("decoder.layers.{i}.attention.project_qkv.weight", "transformer.h.{i}.attn.c_attn.weight").transposed(),
    Rule::new("decoder.layers.{i}.attention.project_qkv.bias", "transformer.h.{i}.attn.c_attn.bias"),
    Rule::new("decoder.layers.{i}.attention.attention_out.weight", "transformer.h.{i}.attn.c_proj.weight").transposed(),
    Rule::new("decoder.layers.{i}.attention.attention_out.bias", "transformer.h.{i}.attn.c_proj.bias"),
    Rule::new("decoder.layers.{i}.ffn_norm.weight", "transformer.h.{i}.ln_2.weight"),
    Rule::new("decoder.layers.{i}.ffn_norm.bias", "transformer.h.{i}.ln_2.bias"),
    Rule::new("decoder.layers.{i}.ffn.w_in.weight", "transformer.h.{i}.mlp.c_fc.weight").transposed(),
    Rule::new("decoder.layers.{i}.ffn.w_in.bias", "transformer.h.{i}.mlp.c_fc.bias"),
    Rule::new("decoder.layers.{i}.ffn.w_out.weight", "transformer.h.{i}.mlp.c_proj.weight").transposed(),
    Rule::new("decoder.layers.{i}.ffn.w_out.bias", "transformer.h.{i}.mlp.c_proj.bias"),
    Rule::new("decoder.output_norm.weight", "transformer.ln_f.weight"),
    Rule::new("decoder.output_norm.bias", "transformer.ln_f.bias"),
    Rule::new("lm_head.weight", "lm_head.weight"),
    Rule::new("cls_projection.weight", "score.weight"),
];

/// The causal masks that older versions stored.
const MASKS: &[&str] = &["transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"];

static TIED: NameTable = NameTable {
    base_prefix: "transformer.",
    rules: Cow::Borrowed(&RULES),
    aliases: Cow::Borrowed(&[Alias::new("lm_head.weight", "transformer.wte.weight")]),
    ignored: Cow::Borrowed(MASKS),
    old_names: Cow::Borrowed(&[]),
};

static UNTIED: NameTable = NameTable {
    base_prefix: "transformer.",
    rules: Cow::Borrowed(&RULES),
    aliases: Cow::Borrowed(&[]),
    ignored: Cow::Borrowed(MASKS),
    old_names: Cow::Borrowed(&[]),
};

/// The names of a model with this head. Where the head for the next word is the words' embedding, the file may hold it
/// under both names.
pub fn table(head: DecoderHead) -> &'static NameTable {
    match head {
        DecoderHead::CausalLm { tied: true } => &TIED,
        // What a file has of a head for the next word is none of these models' business.
        DecoderHead::CausalLm { tied: false } | DecoderHead::None | DecoderHead::Classifier { .. } => &UNTIED,
    }
}

/// The class that `transformers` opens a model of this head with.
fn architecture(head: DecoderHead) -> &'static str {
    match head {
        DecoderHead::None => "GPT2Model",
        DecoderHead::CausalLm { .. } => "GPT2LMHeadModel",
        DecoderHead::Classifier { .. } => "GPT2ForSequenceClassification",
    }
}

/// The head that the classes of a folder's `config.json` carry.
pub fn default_head(config: &Gpt2Config, architectures: &[String]) -> TextHead {
    match architectures.first().map(String::as_str) {
        Some("GPT2LMHeadModel") => TextHead::CausalLm,
        Some("GPT2ForSequenceClassification") => TextHead::Classification { outputs: config.cls_head.unwrap_or(2) },
        _ => TextHead::None,
    }
}

/// Open a folder. Everything that can be wrong with it is found before memory for a parameter is taken.
///
/// # Errors
/// A configuration, labels or weights that do not fit, see [`Plan::build`](crate::hf::Plan::build); no memory left.
pub fn open(folder: &Path, options: &OpenOptions) -> Result<OpenedModel> {
    let (config, head) = configure(folder, options)?;
    let blocks = BlockOptions { recompute: options.recompute };
    open_with(folder, options, table(head), &allowed(head, options.head_values), |device, builder| {
        Gpt2::new(device, config.clone(), head, blocks, builder)
    })
}

/// The folder's configuration with what the options change, and the head.
fn configure(folder: &Path, options: &OpenOptions) -> Result<(Gpt2Config, DecoderHead)> {
    let place = folder.join("config.json").display().to_string();
    let mut config = Gpt2Config::from_pretrained(folder)?;
    config.dropout_p = options.hidden_dropout.unwrap_or(config.dropout_p);
    config.embedding_dropout_p = options.hidden_dropout.unwrap_or(config.embedding_dropout_p);
    config.attention_dropout_p = options.attention_dropout.unwrap_or(config.attention_dropout_p);
    let own = default_head(&config, &architectures(folder)?);
    let head = options.head.unwrap_or(own);
    if let TextHead::Classification { outputs } = head {
        let trained = match own {
            TextHead::Classification { outputs } => Some(outputs),
            _ => None,
        };
        let labels = (&mut config.labels, &mut config.problem_type);
        take_over(labels, &place, (trained, outputs), options)?;
        config.cls_head = Some(outputs);
    }
    let head = DecoderHead::of(head, config.tied, "GPT-2")?;
    // The options have changed what reading the file had approved of.
    config.validate(&place)?;
    Ok((config, head))
}

/// What a folder may lack or have too much of for this head.
fn allowed(head: DecoderHead, values: HeadValues) -> Allow {
    let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let (own, unused): (&[&str], &[&str]) = match head {
        DecoderHead::None => (&[], &["lm_head.*", "score.*"]),
        DecoderHead::CausalLm { tied: true } => (&[], &["score.*"]),
        DecoderHead::CausalLm { tied: false } => (&["lm_head.*"], &["score.*"]),
        DecoderHead::Classifier { .. } => (&["cls_projection.*"], &["lm_head.*"]),
    };
    let (missing, fresh): (&[&str], &[&str]) = match values {
        HeadValues::Folder => (&[], &[]),
        HeadValues::FolderOrDrawn => (own, &[]),
        HeadValues::Drawn => (&[], own),
    };
    Allow { missing: texts(missing), unused: texts(unused), fresh: texts(fresh) }
}

/// Write a complete folder.
///
/// # Errors
/// The disk refuses; a failing device.
pub fn save(model: &Gpt2, folder: &Path, options: &SaveOptions<'_>) -> Result<()> {
    save_as(&written(model, options), Model::parameters(model), folder)
}

/// What [`save`] writes.
pub(super) fn written<'a>(model: &'a Gpt2, options: &SaveOptions<'a>) -> ModelFolder<'a, Gpt2Config> {
    let head = model.head_kind();
    let mut written = ModelFolder::new(model.config(), table(head), architecture(head));
    written.header.dtype = options.dtype;
    written.companions = options.companions;
    written
}
