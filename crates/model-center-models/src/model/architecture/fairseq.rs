//! Parameter names of blocks, shared by models from fairseq.

use model_center_formats::Rule;

/// Parameter names of a stack's blocks and of the tables next to it; `ours` and `theirs` are the stack's names. A stack
/// does not have all of them.
pub(in crate::model) fn rules(ours: &str, theirs: &str) -> Vec<Rule> {
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

/// Tensors that identify the weights of such an encoder-decoder.
pub(in crate::model) const TENSORS: &[&str] = &[
    "shared.weight",
    "encoder.layers.0.self_attn.q_proj.weight",
    "encoder.layers.0.self_attn_layer_norm.weight",
    "decoder.layers.0.encoder_attn.q_proj.weight",
];
