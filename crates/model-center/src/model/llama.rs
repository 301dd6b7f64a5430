//! Llama 1, 2 and 3 (Touvron et al., 2023; Grattafiori et al., 2024): RMS norms, rotary positions, gated feed-forward
//! layers, and key heads that several query heads share.

use super::decoder::{Classes, DecoderFamily, DecoderHead, DecoderModel, Layout};
use crate::config::{LlamaConfig, RotaryFields, TextConfig};
use crate::formats::{Alias, NameTable, Rule};
use crate::layer::position::{RotaryConfig, RotaryScaling};
use crate::layer::{AttentionConfig, BlockConfig, FeedForwardConfig, Placement, PositionsConfig, RotaryHeads};
use bmtrain_core::kernel::RotaryLayout;
use bmtrain_dist::nn::norm::NormOptions;
use bmtrain_dist::param::Init;
use std::borrow::Cow;

/// A Llama with its head.
pub type Llama = DecoderModel<LlamaConfig>;

impl DecoderFamily for LlamaConfig {
    const TITLE: &'static str = "Llama";
    const CLASSES: Classes =
        Classes { base: "LlamaModel", words: "LlamaForCausalLM", classifier: "LlamaForSequenceClassification" };

    fn text(&self) -> &TextConfig {
        &self.text
    }

    fn text_mut(&mut self) -> &mut TextConfig {
        &mut self.text
    }

    fn layout(&self) -> Layout {
        layout(&self.text, self.rotary)
    }

    fn block(&self, _layer: usize) -> BlockConfig {
        let block = block(&self.text, self.num_heads_kv);
        BlockConfig {
            attention: AttentionConfig { bias: self.att_bias, out_bias: self.att_bias, ..block.attention },
            ffn: FeedForwardConfig { bias: self.ffn_bias, ..block.ffn },
            ..block
        }
    }

    fn stack_of_model_center(&self) -> Option<&'static str> {
        // Its angles are plain.
        let is_plain = self.rotary == RotaryFields { base: 10_000.0, scaling: RotaryScaling::None };
        is_plain.then_some("encoder")
    }

    fn names(&self, head: DecoderHead) -> NameTable {
        names(&self.text, self.num_heads_kv, head)
    }
}

/// What decoders of this kind have besides their blocks.
pub(super) fn layout(text: &TextConfig, rotary: RotaryFields) -> Layout {
    let RotaryFields { base, scaling } = rotary;
    let positions = PositionsConfig::Rotary(RotaryConfig { dims: text.dim_head, base, scaling });
    Layout::new(text.dim_model, positions, NormOptions::rms(text.dim_model, text.norm_eps))
}

/// A block of decoders of this kind, without biases.
pub(super) fn block(text: &TextConfig, num_heads_kv: usize) -> BlockConfig {
    let init = Init::normal(text.init_std);
    BlockConfig {
        placement: Placement::Pre,
        attention: AttentionConfig {
            num_heads_kv,
            bias: false,
            out_bias: false,
            causal: true,
            rotary: Some(RotaryHeads { dims: text.dim_head, layout: RotaryLayout::Halves }),
            dropout: text.attention_dropout_p,
            ..AttentionConfig::new(text.dim_model, text.num_heads, text.dim_head, init)
        },
        cross: None,
        ffn: FeedForwardConfig {
            gated: true,
            bias: false,
            ..FeedForwardConfig::new(text.dim_model, text.dim_ff, text.ffn_activate_fn, init)
        },
        norm: NormOptions::rms(text.dim_model, text.norm_eps),
        dropout: text.dropout_p,
    }
}

/// Parameters of decoders of this kind in files, with and without biases and norms of heads.
pub(super) fn names(text: &TextConfig, num_heads_kv: usize, head: DecoderHead) -> NameTable {
    let (q, kv) = (text.num_heads * text.dim_head, num_heads_kv * text.dim_head);
    let qkv = |ours: &'static str, theirs: &'static str| Rule::new(ours, theirs).rows(vec![q, kv, kv]);
    let rules = vec![
        Rule::new("input_embedding.weight", "model.embed_tokens.weight"),
        Rule::new("decoder.layers.{i}.attention_norm.weight", "model.layers.{i}.input_layernorm.weight"),
        qkv(
            "decoder.layers.{i}.attention.project_qkv.weight",
            "model.layers.{i}.self_attn.{q_proj|k_proj|v_proj}.weight",
        ),
        qkv("decoder.layers.{i}.attention.project_qkv.bias", "model.layers.{i}.self_attn.{q_proj|k_proj|v_proj}.bias"),
        Rule::new("decoder.layers.{i}.attention.query_norm.weight", "model.layers.{i}.self_attn.q_norm.weight"),
        Rule::new("decoder.layers.{i}.attention.key_norm.weight", "model.layers.{i}.self_attn.k_norm.weight"),
        Rule::new("decoder.layers.{i}.attention.attention_out.weight", "model.layers.{i}.self_attn.o_proj.weight"),
        Rule::new("decoder.layers.{i}.attention.attention_out.bias", "model.layers.{i}.self_attn.o_proj.bias"),
        Rule::new("decoder.layers.{i}.ffn_norm.weight", "model.layers.{i}.post_attention_layernorm.weight"),
        Rule::new("decoder.layers.{i}.ffn.w_in.weight", "model.layers.{i}.mlp.{gate_proj|up_proj}.weight"),
        Rule::new("decoder.layers.{i}.ffn.w_in.bias", "model.layers.{i}.mlp.{gate_proj|up_proj}.bias"),
        Rule::new("decoder.layers.{i}.ffn.w_out.weight", "model.layers.{i}.mlp.down_proj.weight"),
        Rule::new("decoder.layers.{i}.ffn.w_out.bias", "model.layers.{i}.mlp.down_proj.bias"),
        Rule::new("decoder.output_norm.weight", "model.norm.weight"),
        Rule::new("lm_head.weight", "lm_head.weight"),
        Rule::new("cls_projection.weight", "score.weight"),
    ];
    let tied = head == DecoderHead::CausalLm { tied: true };
    let aliases = if tied { vec![Alias::new("lm_head.weight", "model.embed_tokens.weight")] } else { Vec::new() };
    NameTable {
        base_prefix: "model.",
        rules: Cow::Owned(rules),
        aliases: Cow::Owned(aliases),
        // Older versions stored the angles.
        ignored: Cow::Borrowed(&["model.layers.*.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"]),
        old_names: Cow::Borrowed(&[]),
    }
}
