//! What models have in common that come from fairseq: the names of a block's parameters in files.
//!
//! Called by OPT, BART and Marian.

use crate::formats::Rule;

/// Parameters of the blocks of a stack and of the tables beside it; `ours` and `theirs` are the names of the stack. A
/// stack has not all of them.
pub(super) fn rules(ours: &str, theirs: &str) -> Vec<Rule> {
    let layer = |a: &str, b: &str| (format!("layers.{{i}}.{a}"), format!("layers.{{i}}.{b}"));
    let names = [
        ("embedding_norm".to_owned(), "layernorm_embedding".to_owned()),
        layer("attention_norm", "self_attn_layer_norm"),
        layer("attention.project_qkv", "self_attn.{q_proj|k_proj|v_proj}"),
        layer("attention.attention_out", "self_attn.out_proj"),
        layer("cross_norm", "encoder_attn_layer_norm"),
        layer("cross_attention.project_q", "encoder_attn.q_proj"),
        layer("cross_attention.project_kv", "encoder_attn.{k_proj|v_proj}"),
        layer("cross_attention.attention_out", "encoder_attn.out_proj"),
        layer("ffn_norm", "final_layer_norm"),
        layer("ffn.w_in", "fc1"),
        layer("ffn.w_out", "fc2"),
        ("output_norm".to_owned(), "final_layer_norm".to_owned()),
    ];
    let both = |(a, b): &(String, String)| {
        ["weight", "bias"].map(|kind| Rule::owned(format!("{ours}.{a}.{kind}"), format!("{theirs}.{b}.{kind}")))
    };
    names.iter().flat_map(both).collect()
}

/// Tensors by which the weights of two such stacks are told.
pub(super) const TENSORS: &[&str] = &[
    "shared.weight",
    "encoder.layers.0.self_attn.q_proj.weight",
    "encoder.layers.0.self_attn_layer_norm.weight",
    "decoder.layers.0.encoder_attn.q_proj.weight",
];
