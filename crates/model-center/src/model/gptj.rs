//! GPT-J (Wang and Komatsuzaki, 2021): attention and feed-forward beside each other behind one norm, rotary positions
//! of pairs in the first elements of each head, a head with a matrix and a bias of its own.
//!
//! ModelCenter's GPT-J has a norm for each of the two, which its converter fills with the same values.

use super::block::block;
use super::decoder::{Classes, DecoderFamily, DecoderHead, DecoderModel, Layout};
use crate::config::{GptjConfig, TextConfig};
use crate::formats::{NameTable, Rule};
use crate::layer::position::{RotaryConfig, RotaryScaling};
use crate::layer::{AttentionConfig, BlockConfig, Placement, PositionsConfig, RotaryHeads};
use bmtrain_core::kernel::RotaryLayout;
use bmtrain_dist::nn::norm::NormOptions;
use std::borrow::Cow;

/// A GPT-J with its head.
pub type Gptj = DecoderModel<GptjConfig>;

impl DecoderFamily for GptjConfig {
    const TITLE: &'static str = "GPT-J";
    const CLASSES: Classes =
        Classes { base: "GPTJModel", words: "GPTJForCausalLM", classifier: "GPTJForSequenceClassification" };
    const DROPS_EMBEDDINGS: bool = true;

    fn text(&self) -> &TextConfig {
        &self.text
    }

    fn text_mut(&mut self) -> &mut TextConfig {
        &mut self.text
    }

    fn layout(&self) -> Layout {
        let rotary = RotaryConfig { dims: self.rotary_dim, base: 10_000.0, scaling: RotaryScaling::None };
        let norm = NormOptions::layer(self.text.dim_model, self.text.norm_eps);
        Layout {
            padding_learns: true,
            head_bias: true,
            ..Layout::new(self.text.dim_model, PositionsConfig::Rotary(rotary), norm)
        }
    }

    fn block(&self, _layer: usize) -> BlockConfig {
        let block = block(&self.text, Placement::Parallel);
        let attention = AttentionConfig {
            bias: false,
            out_bias: false,
            causal: true,
            rotary: Some(RotaryHeads { dims: self.rotary_dim, layout: RotaryLayout::Pairs }),
            ..block.attention
        };
        BlockConfig { attention, ..block }
    }

    fn stack_of_model_center(&self) -> Option<&'static str> {
        Some("encoder")
    }

    fn names(&self, _head: DecoderHead) -> NameTable {
        NameTable {
            base_prefix: "transformer.",
            rules: Cow::Borrowed(&RULES),
            aliases: Cow::Borrowed(&[]),
            // Causal masks that older versions stored.
            ignored: Cow::Borrowed(&["transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"]),
            old_names: Cow::Borrowed(&[]),
        }
    }
}

/// The parameters.
static RULES: [Rule; 14] = [
    Rule::new("input_embedding.weight", "transformer.wte.weight"),
    Rule::new("decoder.layers.{i}.attention_norm.weight", "transformer.h.{i}.ln_1.weight"),
    Rule::new("decoder.layers.{i}.attention_norm.bias", "transformer.h.{i}.ln_1.bias"),
    Rule::new(
        "decoder.layers.{i}.attention.project_qkv.weight",
        "transformer.h.{i}.attn.{q_proj|k_proj|v_proj}.weight",
    ),
    Rule::new("decoder.layers.{i}.attention.attention_out.weight", "transformer.h.{i}.attn.out_proj.weight"),
    Rule::new("decoder.layers.{i}.ffn.w_in.weight", "transformer.h.{i}.mlp.fc_in.weight"),
    Rule::new("decoder.layers.{i}.ffn.w_in.bias", "transformer.h.{i}.mlp.fc_in.bias"),
    Rule::new("decoder.layers.{i}.ffn.w_out.weight", "transformer.h.{i}.mlp.fc_out.weight"),
    Rule::new("decoder.layers.{i}.ffn.w_out.bias", "transformer.h.{i}.mlp.fc_out.bias"),
    Rule::new("decoder.output_norm.weight", "transformer.ln_f.weight"),
    Rule::new("decoder.output_norm.bias", "transformer.ln_f.bias"),
    Rule::new("lm_head.weight", "lm_head.weight"),
    Rule::new("lm_head.bias", "lm_head.bias"),
    Rule::new("cls_projection.weight", "score.weight"),
];
