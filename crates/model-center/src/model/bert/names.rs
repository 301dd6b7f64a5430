//! BERT in Hugging Face folders: which parameter is which tensor, opening a folder, writing one.

use super::{Bert, BertHead};
use crate::config::{BertConfig, Config};
use crate::error::{Error, Result};
use crate::hf::{Alias, Allow, FolderLayout, ModelFolder, NameTable, Rule};
use crate::model::labels::take_over;
use crate::model::opening::open_with;
use crate::model::registry::{HeadValues, OpenOptions, OpenedModel, SaveOptions};
use crate::model::text::TextHead;
use bmtrain_dist::block::BlockOptions;
use std::borrow::Cow;
use std::path::Path;

/// The names, for every head.
pub static NAMES: NameTable = NameTable {
    base_prefix: "bert.",
    rules: Cow::Borrowed(&[
        Rule::new("input_embedding.weight", "bert.embeddings.word_embeddings.weight"),
        Rule::new("position_embedding.weight", "bert.embeddings.position_embeddings.weight"),
        Rule::new("token_type_embedding.weight", "bert.embeddings.token_type_embeddings.weight"),
        Rule::new("embedding_norm.weight", "bert.embeddings.LayerNorm.weight"),
        Rule::new("embedding_norm.bias", "bert.embeddings.LayerNorm.bias"),
        Rule::new(
            "encoder.layers.{i}.attention.project_qkv.weight",
            "bert.encoder.layer.{i}.attention.self.{query|key|value}.weight",
        ),
        Rule::new(
            "encoder.layers.{i}.attention.project_qkv.bias",
            "bert.encoder.layer.{i}.attention.self.{query|key|value}.bias",
        ),
        Rule::new(
            "encoder.layers.{i}.attention.attention_out.weight",
            "bert.encoder.layer.{i}.attention.output.dense.weight",
        ),
        Rule::new(
            "encoder.layers.{i}.attention.attention_out.bias",
            "bert.encoder.layer.{i}.attention.output.dense.bias",
        ),
        Rule::new(
            "encoder.layers.{i}.attention_norm.weight",
            "bert.encoder.layer.{i}.attention.output.LayerNorm.weight",
        ),
        Rule::new("encoder.layers.{i}.attention_norm.bias", "bert.encoder.layer.{i}.attention.output.LayerNorm.bias"),
        Rule::new("encoder.layers.{i}.ffn.w_in.weight", "bert.encoder.layer.{i}.intermediate.dense.weight"),
        Rule::new("encoder.layers.{i}.ffn.w_in.bias", "bert.encoder.layer.{i}.intermediate.dense.bias"),
        Rule::new("encoder.layers.{i}.ffn.w_out.weight", "bert.encoder.layer.{i}.output.dense.weight"),
        Rule::new("encoder.layers.{i}.ffn.w_out.bias", "bert.encoder.layer.{i}.output.dense.bias"),
        Rule::new("encoder.layers.{i}.ffn_norm.weight", "bert.encoder.layer.{i}.output.LayerNorm.weight"),
        Rule::new("encoder.layers.{i}.ffn_norm.bias", "bert.encoder.layer.{i}.output.LayerNorm.bias"),
        Rule::new("pooler.dense.weight", "bert.pooler.dense.weight"),
        Rule::new("pooler.dense.bias", "bert.pooler.dense.bias"),
        Rule::new("cls_projection.weight", "classifier.weight"),
        Rule::new("cls_projection.bias", "classifier.bias"),
        Rule::new("lm_head.dense.weight", "cls.predictions.transform.dense.weight"),
        Rule::new("lm_head.dense.bias", "cls.predictions.transform.dense.bias"),
        Rule::new("lm_head.layer_norm.weight", "cls.predictions.transform.LayerNorm.weight"),
        Rule::new("lm_head.layer_norm.bias", "cls.predictions.transform.LayerNorm.bias"),
        Rule::new("lm_head.decoder.bias", "cls.predictions.bias"),
        Rule::new("nsp_projection.weight", "cls.seq_relationship.weight"),
        Rule::new("nsp_projection.bias", "cls.seq_relationship.bias"),
    ]),
    aliases: Cow::Borrowed(&[
        Alias::new("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        Alias::new("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ]),
    ignored: Cow::Borrowed(&["bert.embeddings.position_ids"]),
    old_names: Cow::Borrowed(&[("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")]),
};

/// The class that `transformers` opens a model of this head with.
fn architecture(head: BertHead) -> &'static str {
    match head {
        BertHead::None { .. } => "BertModel",
        BertHead::Classifier { .. } => "BertForSequenceClassification",
        BertHead::MaskedLm => "BertForMaskedLM",
        BertHead::NextSentence => "BertForNextSentencePrediction",
        BertHead::Pretraining => "BertForPreTraining",
    }
}

/// The head that the classes of a folder's `config.json` carry.
pub fn default_head(config: &BertConfig, architectures: &[String]) -> TextHead {
    match architectures.first().map(String::as_str) {
        Some("BertForSequenceClassification") => TextHead::Classification { outputs: config.cls_head.unwrap_or(2) },
        Some("BertForMaskedLM") => TextHead::MaskedLm,
        Some("BertForNextSentencePrediction") => TextHead::NextSentence,
        Some("BertForPreTraining") => TextHead::Pretraining,
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
    open_with(folder, options, &[&NAMES], &allowed(head, options.head_values), |device, builder| {
        Bert::new(device, config.clone(), head, blocks, builder)
    })
}

/// The folder's configuration with what the options change, and the head.
fn configure(folder: &Path, options: &OpenOptions) -> Result<(BertConfig, BertHead)> {
    let place = folder.join("config.json").display().to_string();
    let mut config = BertConfig::from_pretrained(folder)?;
    config.dropout_p = options.hidden_dropout.unwrap_or(config.dropout_p);
    config.attention_dropout_p = options.attention_dropout.unwrap_or(config.attention_dropout_p);
    config.classifier_dropout_p = options.hidden_dropout.unwrap_or(config.classifier_dropout_p);
    let own = default_head(&config, &crate::model::registry::architectures(folder)?);
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
    let head = BertHead::of(head)?;
    if matches!(head, BertHead::MaskedLm | BertHead::Pretraining) && !config.tied {
        let reason = "tie_word_embeddings is false: a masked-word head with a matrix of its own";
        return Err(Error::model(folder.display().to_string(), reason, "use a model with tied embeddings"));
    }
    // The options have changed what reading the file had approved of.
    config.validate(&place)?;
    Ok((config, head))
}

/// What a folder may lack or have too much of for this head.
fn allowed(head: BertHead, values: HeadValues) -> Allow {
    let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let own: &[&str] = match head {
        BertHead::None { .. } => &[],
        BertHead::Classifier { .. } => &["cls_projection.*"],
        BertHead::MaskedLm => &["lm_head.*"],
        BertHead::NextSentence => &["nsp_projection.*"],
        BertHead::Pretraining => &["lm_head.*", "nsp_projection.*"],
    };
    // The pooler belongs to the base model: it is kept where there is one.
    let pooler: &[&str] = match head {
        BertHead::None { with_pooler: true } => &["pooler.dense.*"],
        BertHead::None { .. } | BertHead::MaskedLm => &[],
        _ if values == HeadValues::Folder => &[],
        _ => &["pooler.dense.*"],
    };
    let (missing, fresh): (&[&str], &[&str]) = match values {
        HeadValues::Folder => (&[], &[]),
        HeadValues::FolderOrDrawn => (own, &[]),
        HeadValues::Drawn => (&[], own),
    };
    let unused: &[&str] = match head {
        BertHead::Classifier { .. } => &["cls.*"],
        BertHead::None { .. } => &["cls.*", "classifier.*"],
        BertHead::MaskedLm => &["cls.seq_relationship.*", "classifier.*", "*pooler.*"],
        BertHead::NextSentence => &["cls.predictions.*", "classifier.*"],
        BertHead::Pretraining => &["classifier.*"],
    };
    let missing = [texts(missing), texts(pooler)].concat();
    Allow { missing, unused: texts(unused), fresh: texts(fresh) }
}

/// What is written.
///
/// # Errors
/// A layout other than Hugging Face's.
pub(super) fn written<'a>(model: &'a Bert, options: &SaveOptions<'a>) -> Result<ModelFolder<'a, BertConfig>> {
    if options.layout == FolderLayout::ModelCenter {
        let reason = "BERT is not written in ModelCenter's layout";
        return Err(Error::model("the folder to write", reason, "write it in Hugging Face's"));
    }
    Ok(ModelFolder::new(model.config(), &NAMES, architecture(model.head_kind())).with(options))
}
