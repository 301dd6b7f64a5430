//! Names that encoder checkpoints share: embeddings, blocks and pooler, under the family's prefix.

use super::{EncoderFamily, EncoderHead};
use crate::model::architecture::model_center_names;
use model_center_formats::{Alias, NameTable, Rule};
use std::borrow::Cow;

/// Old suffixes of names and their replacements.
pub const OLD_NAMES: &[(&str, &str)] = &[("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")];

/// The linear layers with a weight and a bias that a base model has.
const LINEAR: [(&str, &str); 5] = [
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

/// The masked-LM projection in ModelCenter's files, a copy of the token embedding.
static OWN_TIED: [Alias; 1] = [Alias::new(OWN_TABLE[0], "input_embedding.weight")];

/// ModelCenter's class reads the token embedding instead, so that this copy is stale after training.
static OWN_TABLE: [&str; 1] = ["lm_head.decoder.weight"];

/// Names in ModelCenter's files, with this crate's names for the heads. ModelCenter has no heads for
/// the next sentence, token classes and answer spans, and no classifier with a dense layer; their names match no
/// tensor.
pub fn of_model_center<C: EncoderFamily>(family: &C, head: EncoderHead) -> NameTable {
    let heads =
        ["pooler.dense", "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "cls_projection", "cls_dense"];
    let others = ["nsp_projection", "token_projection", "span_projection"];
    let heads = heads.into_iter().chain(others).flat_map(|name| {
        ["weight", "bias"].map(|kind| Rule::owned(format!("{name}.{kind}"), format!("{name}.{kind}")))
    });
    let (block, layers) = (family.block(), family.text().num_layers);
    let stack = model_center_names::Stack { ours: "encoder", theirs: "encoder", block: &block, layers };
    let table = model_center_names::table(&[stack], heads.collect());
    match head {
        EncoderHead::MaskedLm | EncoderHead::Pretraining => {
            NameTable { aliases: Cow::Borrowed(&OWN_TIED), ignored: Cow::Borrowed(&OWN_TABLE), ..table }
        }
        _ => table,
    }
}

/// The rules of a base model with these norms under this prefix, including its dot, followed by the rules of the heads.
pub fn rules(
    prefix: &str,
    norms: &[(&'static str, &'static str)],
    heads: &[(&'static str, &'static str)],
) -> Vec<Rule> {
    let tables = [("input", "word"), ("position", "position"), ("token_type", "token_type")].into_iter().map(
        |(ours, theirs)| {
            Rule::owned(format!("{ours}_embedding.weight"), format!("{prefix}embeddings.{theirs}_embeddings.weight"))
        },
    );
    let both = LINEAR.iter().chain(norms).flat_map(|(ours, theirs)| {
        ["weight", "bias"].map(|part| Rule::owned(format!("{ours}.{part}"), format!("{prefix}{theirs}.{part}")))
    });
    tables.chain(both).chain(heads.iter().map(|(ours, theirs)| Rule::new(ours, theirs))).collect()
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
