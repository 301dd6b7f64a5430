//! GPT-2 (Radford et al., 2019): learned positions, pre-norm blocks, a head tied to the words.

use super::block::block;
use super::decoder::{Classes, Count, DecoderFamily, DecoderHead, DecoderModel, Layout, PositionTable};
use crate::config::{Gpt2Config, TextConfig};
use crate::formats::{Alias, NameTable, Rule};
use crate::layer::{AttentionConfig, BlockConfig, FeedForwardConfig, Placement, PositionsConfig};
use bmtrain_dist::nn::norm::NormOptions;
use bmtrain_dist::param::Init;
use std::borrow::Cow;

/// A GPT-2 with its head.
pub type Gpt2 = DecoderModel<Gpt2Config>;

impl DecoderFamily for Gpt2Config {
    const TITLE: &'static str = "GPT-2";
    const CLASSES: Classes =
        Classes { base: "GPT2Model", words: "GPT2LMHeadModel", classifier: "GPT2ForSequenceClassification" };
    const DROPS_EMBEDDINGS: bool = true;
    const OTHER_HEADS: &'static [&'static str] =
        &["lm_head.*", "score.*", "classifier.*", "qa_outputs.*", "multiple_choice_head.*", "v_head.*"];

    fn text(&self) -> &TextConfig {
        &self.text
    }

    fn text_mut(&mut self) -> &mut TextConfig {
        &mut self.text
    }

    fn layout(&self) -> Layout {
        let norm = NormOptions::layer(self.text.dim_model, self.text.norm_eps);
        Layout {
            table: Some(PositionTable { first: 0, count: Count::Places }),
            padding_learns: true,
            ..Layout::new(self.text.dim_model, PositionsConfig::None, norm)
        }
    }

    fn block(&self, layer: usize) -> BlockConfig {
        let block = block(&self.text, Placement::Pre);
        let out_init = Init::normal(self.residual_std());
        BlockConfig {
            attention: AttentionConfig { scale: self.score_factor(layer), causal: true, out_init, ..block.attention },
            ffn: FeedForwardConfig { out_init, ..block.ffn },
            ..block
        }
    }

    fn stack_of_model_center(&self) -> Option<&'static str> {
        // It divides scores by the root of H alone.
        let is_plain = !self.scale_by_layer;
        is_plain.then_some("encoder")
    }

    fn names(&self, head: DecoderHead) -> NameTable {
        let tied = head == DecoderHead::CausalLm { tied: true };
        // What a file has of a head for the next word is none of the other models' business.
        let aliases: &[Alias] = if tied { &TIED } else { &[] };
        NameTable {
            base_prefix: "transformer.",
            rules: Cow::Borrowed(&RULES),
            aliases: Cow::Borrowed(aliases),
            ignored: Cow::Borrowed(MASKS),
            old_names: Cow::Borrowed(&[]),
        }
    }
}

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

/// The head for words, where it is the words' embedding: a file may hold it under both names.
static TIED: [Alias; 1] = [Alias::new("lm_head.weight", "transformer.wte.weight")];
