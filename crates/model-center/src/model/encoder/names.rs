//! What the files of encoders have alike: embeddings, blocks and pooler, under the family's prefix.
//!
//! Called by the families for their [`NameTable`](crate::hf::NameTable).

use crate::hf::Rule;

/// Old endings of names and what replaced them.
pub const OLD_NAMES: &[(&str, &str)] = &[("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")];

/// The parameters with a weight and a bias that a base model has.
const BOTH: [(&str, &str); 8] = [
    ("embedding_norm", "embeddings.LayerNorm"),
    ("encoder.layers.{i}.attention.project_qkv", "encoder.layer.{i}.attention.self.{query|key|value}"),
    ("encoder.layers.{i}.attention.attention_out", "encoder.layer.{i}.attention.output.dense"),
    ("encoder.layers.{i}.attention_norm", "encoder.layer.{i}.attention.output.LayerNorm"),
    ("encoder.layers.{i}.ffn.w_in", "encoder.layer.{i}.intermediate.dense"),
    ("encoder.layers.{i}.ffn.w_out", "encoder.layer.{i}.output.dense"),
    ("encoder.layers.{i}.ffn_norm", "encoder.layer.{i}.output.LayerNorm"),
    ("pooler.dense", "pooler.dense"),
];

/// The rules of a base model under this prefix, with its dot, and those of the heads behind it.
pub fn rules(prefix: &str, heads: &[(&'static str, &'static str)]) -> Vec<Rule> {
    let tables = ["word", "position", "token_type"].into_iter().map(|table| {
        let ours = if table == "word" { "input" } else { table };
        Rule::owned(format!("{ours}_embedding.weight"), format!("{prefix}embeddings.{table}_embeddings.weight"))
    });
    let both = BOTH.into_iter().flat_map(|(ours, theirs)| {
        ["weight", "bias"].map(|part| Rule::owned(format!("{ours}.{part}"), format!("{prefix}{theirs}.{part}")))
    });
    tables.chain(both).chain(heads.iter().map(|(ours, theirs)| Rule::new(ours, theirs))).collect()
}
