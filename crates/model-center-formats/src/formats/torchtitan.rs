//! torchtitan's names of the parameters of its Llama 3 and Qwen 3: `layers.3.attention.qkv_linear.wq.weight`.
//!
//! Defines [`is_torchtitan`] and [`table`]. A family that torchtitan has makes a table of them; it is chosen where a
//! checkpoint of `torch.distributed.checkpoint` is opened as a model.

use super::{Alias, NameTable, Rule, TensorSource};
use std::borrow::Cow;

/// The token embedding, by whose name the weights are recognized.
const TOKENS: &str = "tok_embeddings.weight";
/// Until version 0.2.2 projections were not in a module of their own, and the head was `output`, as in Meta's files.
const OLD_NAMES: &[(&str, &str)] = &[
    ("attention.wq.weight", "attention.qkv_linear.wq.weight"),
    ("attention.wk.weight", "attention.qkv_linear.wk.weight"),
    ("attention.wv.weight", "attention.qkv_linear.wv.weight"),
    ("output.weight", "lm_head.weight"),
];

/// Whether these are weights under torchtitan's names, which no model of Hugging Face or ModelCenter has.
pub fn is_torchtitan(weights: &dyn TensorSource) -> bool {
    weights.entries().iter().any(|entry| entry.name == TOKENS)
}

/// The names of a decoder without biases, with `q` rows of queries and `kv` of keys, and as many of values.
///
/// With `pairs`, queries and keys have the rows of each head of this size in pairs ([`Rule::paired`]): torchtitan
/// rotates neighbours in a Llama, as Meta does, and halves in a Qwen 3, as Hugging Face does in both. With `tied`, the
/// head and the token embedding are one matrix, which its checkpoints have under both names.
///
/// Source: torchtitan 0.3.0, `models/llama3/state_dict_adapter.py` and `models/qwen3/state_dict_adapter.py`.
pub fn table([q, kv]: [usize; 2], pairs: Option<usize>, tied: bool) -> NameTable {
    let qkv = Rule::new(
        "decoder.layers.{i}.attention.project_qkv.weight",
        "layers.{i}.attention.qkv_linear.{wq|wk|wv}.weight",
    )
    .rows(vec![q, kv, kv]);
    let rules = vec![
        Rule::new("input_embedding.weight", TOKENS),
        Rule::new("decoder.layers.{i}.attention_norm.weight", "layers.{i}.attention_norm.weight"),
        pairs.map_or(qkv.clone(), |head| qkv.paired(head)),
        Rule::new("decoder.layers.{i}.attention.query_norm.weight", "layers.{i}.attention.q_norm.weight"),
        Rule::new("decoder.layers.{i}.attention.key_norm.weight", "layers.{i}.attention.k_norm.weight"),
        Rule::new("decoder.layers.{i}.attention.attention_out.weight", "layers.{i}.attention.wo.weight"),
        Rule::new("decoder.layers.{i}.ffn_norm.weight", "layers.{i}.ffn_norm.weight"),
        Rule::new("decoder.layers.{i}.ffn.w_in.weight", "layers.{i}.feed_forward.{w1|w3}.weight"),
        Rule::new("decoder.layers.{i}.ffn.w_out.weight", "layers.{i}.feed_forward.w2.weight"),
        Rule::new("decoder.output_norm.weight", "norm.weight"),
        Rule::new("lm_head.weight", "lm_head.weight"),
        // It has no classifiers: the rule is for one that begins anew.
        Rule::new("cls_projection.weight", "score.weight"),
    ];
    NameTable {
        rules: Cow::Owned(rules),
        aliases: tied.then(|| Alias::new("lm_head.weight", TOKENS)).into_iter().collect(),
        old_names: Cow::Borrowed(OLD_NAMES),
        ..NameTable::default()
    }
}
