//! What the files of encoders share: configuration fields, and names of embeddings, blocks and pooler under the
//! family's prefix.

use crate::model::head::Head;
use model_center_base::error::Result;
use model_center_formats::config::dialect::Spoken;
use model_center_formats::config::ranges::refuse_other_encoders;
use model_center_formats::config::rows::{self, RowConfig};
use model_center_formats::config::{Fields, TextConfig};
use model_center_formats::{Alias, NameTable, Rule};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// What most encoders of transformers have where a file is silent.
pub(in crate::model) fn defaults(text: TextConfig) -> TextConfig {
    TextConfig { dropout_p: 0.1, attention_dropout_p: 0.1, pad_token_id: Some(0), ..text }
}

/// Takes the configuration of an encoder. The dropout of hidden states is the default of the classifier's, which
/// `classifier_dropout` accesses, and, in ModelCenter's files, of the attention's.
pub(in crate::model) fn take<C: RowConfig>(
    fields: &mut Fields,
    classifier_dropout: fn(&mut C) -> &mut f32,
) -> Result<C> {
    let states_classifier = is_stated(fields, &["classifier_dropout", "classifier_dropout_p"]);
    let mut config: C = take_body(fields)?;
    if !states_classifier {
        *classifier_dropout(&mut config) = config.text().dropout_p;
    }
    Ok(config)
}

/// The same of an encoder whose classifier's dropout has a default of its own.
pub(in crate::model) fn take_body<C: RowConfig>(fields: &mut Fields) -> Result<C> {
    let dialect = C::dialect_of(fields)?;
    dialect.spoken(fields)?;
    refuse_other_encoders(fields, dialect.title)?;
    let states_attention = is_stated(fields, &[dialect.attention_dropout, &["attention_dropout_p"]].concat());
    // Equal to `dropout_p`, under a name from ModelCenter's dialect of other families.
    let embedding = fields.take_number("embedding_dropout_p")?;
    let (mut config, spoken) = rows::take_config::<C>(fields)?;
    let text = config.text_mut();
    let dropout = text.dropout_p;
    if embedding.is_some_and(|p| p != dropout) {
        return Err(dialect.unsupported(fields, "embedding_dropout_p", "dropout_p"));
    }
    text.embedding_dropout_p = dropout;
    if spoken == Spoken::ModelCenter && !states_attention {
        text.attention_dropout_p = dropout;
    }
    Ok(config)
}

fn is_stated(fields: &Fields, names: &[&str]) -> bool {
    names.iter().any(|name| fields.peek(name).is_some())
}

/// In Hugging Face's files `null` stands for a classifier's dropout that equals the one of hidden states.
pub(in crate::model) fn adjust_hf(text: &TextConfig, classifier_dropout: f32, map: &mut Map<String, Value>) {
    if classifier_dropout == text.dropout_p {
        map.insert("classifier_dropout".to_string(), Value::Null);
    }
}

/// Old suffixes of names and their replacements.
pub const OLD_NAMES: &[(&str, &str)] = &[("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")];

/// The linear layers with a weight and a bias that a base model has.
pub const LINEAR: [(&str, &str); 5] = [
    ("encoder.layers.{i}.attention.project_qkv", "encoder.layer.{i}.attention.self.{query|key|value}"),
    ("encoder.layers.{i}.attention.attention_out", "encoder.layer.{i}.attention.output.dense"),
    ("encoder.layers.{i}.ffn.w_in", "encoder.layer.{i}.intermediate.dense"),
    ("encoder.layers.{i}.ffn.w_out", "encoder.layer.{i}.output.dense"),
    ("pooler.dense", "pooler.dense"),
];

/// The norms after the embeddings and after the sums of a block.
pub const POST_NORMS: [(&str, &str); 3] = [
    ("embedding_norm", "embeddings.LayerNorm"),
    ("encoder.layers.{i}.attention_norm", "encoder.layer.{i}.attention.output.LayerNorm"),
    ("encoder.layers.{i}.ffn_norm", "encoder.layer.{i}.output.LayerNorm"),
];

/// The rules of a base model with these norms under this prefix, including its dot, followed by the rules of the heads.
pub fn rules(
    prefix: &str,
    norms: &[(&'static str, &'static str)],
    heads: &[(&'static str, &'static str)],
) -> Vec<Rule> {
    rules_of(prefix, &[&LINEAR, norms].concat(), heads)
}

/// The names of an encoder with these linear layers and norms under this prefix, and these of its heads, each with a
/// weight and a bias. `tied` are tensors under a second name, `ignored` tensors of files that a model does not have.
pub fn table(
    prefix: &'static str,
    [modules, heads]: [&[(&'static str, &'static str)]; 2],
    tied: &'static [Alias],
    ignored: &'static [&'static str],
) -> NameTable {
    let mut rules = rules_of(prefix, modules, &[]);
    rules.extend(heads.iter().flat_map(|(ours, theirs)| {
        ["weight", "bias"].map(|part| Rule::owned(format!("{ours}.{part}"), format!("{theirs}.{part}")))
    }));
    let (aliases, ignored) = (Cow::Borrowed(tied), Cow::Borrowed(ignored));
    NameTable { base_prefix: prefix, rules: Cow::Owned(rules), aliases, ignored, ..NameTable::default() }
}

fn rules_of(
    prefix: &str,
    modules: &[(&'static str, &'static str)],
    heads: &[(&'static str, &'static str)],
) -> Vec<Rule> {
    let tables = [("input", "word"), ("position", "position"), ("token_type", "token_type")].into_iter().map(
        |(ours, theirs)| {
            Rule::owned(format!("{ours}_embedding.weight"), format!("{prefix}embeddings.{theirs}_embeddings.weight"))
        },
    );
    let both = modules.iter().flat_map(|(ours, theirs)| {
        ["weight", "bias"].map(|part| Rule::owned(format!("{ours}.{part}"), format!("{prefix}{theirs}.{part}")))
    });
    both.chain(tables).chain(heads.iter().map(|(ours, theirs)| Rule::new(ours, theirs))).collect()
}

/// Tensors of heads for other tasks where a classifier has a dense layer of its own.
pub(in crate::model) fn other_heads(head: Head) -> &'static [&'static str] {
    match head {
        Head::Classifier { .. } => &["lm_head.*", "qa_outputs.*", "classifier.weight", "classifier.bias", "*pooler.*"],
        Head::TokenClassifier { .. } => {
            &["lm_head.*", "qa_outputs.*", "classifier.dense.*", "classifier.out_proj.*", "*pooler.*"]
        }
        Head::Span => &["lm_head.*", "classifier.*", "*pooler.*"],
        Head::MaskedLm => &["classifier.*", "qa_outputs.*", "*pooler.*"],
        Head::None | Head::CausalLm { .. } | Head::NextSentence | Head::Pretraining => {
            &["lm_head.*", "classifier.*", "qa_outputs.*"]
        }
    }
}

/// The norm after the last block, which encoders with norms before their layers have.
pub(in crate::model) const OUTPUT_NORM: &str = "encoder.ln.weight";

/// Tensors that identify the weights of such encoders.
pub(in crate::model) const TENSORS: &[&str] = &[
    "embeddings.word_embeddings.weight",
    "embeddings.position_embeddings.weight",
    "embeddings.token_type_embeddings.weight",
    "encoder.layer.0.attention.self.query.weight",
    "encoder.layer.0.attention.output.dense.weight",
];
