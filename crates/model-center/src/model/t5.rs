//! T5 1.0 and 1.1, FLAN-T5 and mT5 (Raffel et al., 2020; Xue et al., 2021): RMS norms, learned biases for ranges of
//! distances, one table of them for each stack, scores that nothing divides, and no other bias.

use super::seq2seq::{Classes, Layout, Seq2SeqFamily, Seq2SeqHead, Seq2SeqModel};
use crate::config::{HeadScale, T5Config, T5Kind, TextConfig};
use crate::formats::{Alias, DirectoryLayout, NameTable, Rule, model_center};
use crate::layer::position::RelativeConfig;
use crate::layer::{AttentionConfig, BlockConfig, FeedForwardConfig, Placement};
use bmtrain_dist::nn::norm::NormOptions;
use bmtrain_dist::param::Init;
use std::borrow::Cow;

/// A T5 with its head.
pub type T5 = Seq2SeqModel<T5Config>;

impl Seq2SeqFamily for T5Config {
    const TITLE: &'static str = "T5";
    const DROPS_EMBEDDINGS: bool = true;
    const LEAVES_F16: bool = true;

    fn classes(&self) -> Classes {
        match self.kind {
            T5Kind::T5 => Classes { base: "T5Model", words: "T5ForConditionalGeneration", classifier: None },
            T5Kind::MT5 => Classes { base: "MT5Model", words: "MT5ForConditionalGeneration", classifier: None },
        }
    }

    fn text(&self) -> &TextConfig {
        &self.text
    }

    fn text_mut(&mut self) -> &mut TextConfig {
        &mut self.text
    }

    fn decoder_layers(&self) -> usize {
        self.num_decoder_layers
    }

    fn decoder_start_token(&self) -> Option<usize> {
        self.decoder_start_token_id
    }

    fn weights_tell_the_head(&self) -> bool {
        // Since version 5 transformers writes of every model that its head is tied, and stores the matrix of one that
        // is not.
        self.text.tied && self.scale == HeadScale::One
    }

    fn layout(&self) -> Layout {
        let text = &self.text;
        let relative = RelativeConfig {
            heads: text.num_heads,
            buckets: self.position_bias_num_buckets,
            max_distance: self.position_bias_max_distance,
            bidirectional: true,
            init: Init::normal(self.pos_init_std),
        };
        let output_norm = NormOptions::rms(text.dim_model, text.norm_eps);
        Layout {
            head_factor: self.scale.factor(text.dim_model),
            ..Layout::of_distances(relative, output_norm, text.dropout_p)
        }
    }

    fn encoder_block(&self) -> BlockConfig {
        let (text, attention) = (&self.text, attention(&self.text));
        BlockConfig {
            placement: Placement::Pre,
            attention,
            cross: None,
            ffn: FeedForwardConfig {
                gated: text.ffn_gated,
                bias: false,
                dropout: text.dropout_p,
                ..FeedForwardConfig::new(text.dim_model, text.dim_ff, text.ffn_activate_fn, attention.init)
            },
            norm: NormOptions::rms(text.dim_model, text.norm_eps),
            dropout: text.dropout_p,
        }
    }

    fn decoder_block(&self) -> BlockConfig {
        self.encoder_block().attending_to_encoder()
    }

    fn names_of_model_center(&self) -> Option<NameTable> {
        let encoder = (&self.encoder_block(), self.text.num_layers);
        Some(model_center::encoder_decoder(encoder, (&self.decoder_block(), self.num_decoder_layers)))
    }

    fn rescaled_norm(&self, layout: DirectoryLayout) -> Option<fn(f32) -> f32> {
        match (self.scale, layout) {
            (HeadScale::Root, DirectoryLayout::ModelCenter) => Some(|value| value / 100.0),
            (HeadScale::HundredRoot, DirectoryLayout::HuggingFace) => Some(|value| value * 100.0),
            _ => None,
        }
    }

    fn names(&self, head: Seq2SeqHead) -> NameTable {
        let mut rules =
            vec![Rule::new("input_embedding.weight", "shared.weight"), Rule::new("lm_head.weight", "lm_head.weight")];
        rules.extend(stack("encoder", 1, self.text.ffn_gated));
        rules.extend(stack("decoder", 2, self.text.ffn_gated));
        let mut aliases = vec![
            Alias::new("encoder.embed_tokens.weight", "shared.weight"),
            Alias::new("decoder.embed_tokens.weight", "shared.weight"),
        ];
        if head == (Seq2SeqHead::CausalLm { tied: true }) {
            aliases.push(Alias::new("lm_head.weight", "shared.weight"));
        }
        NameTable {
            base_prefix: "",
            rules: Cow::Owned(rules),
            aliases: Cow::Owned(aliases),
            // The first versions stored one that nothing adds.
            ignored: Cow::Borrowed(&["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"]),
            old_names: Cow::Borrowed(&[]),
        }
    }
}

/// Attention without positions, of either kind.
fn attention(text: &TextConfig) -> AttentionConfig {
    AttentionConfig {
        bias: false,
        out_bias: false,
        scale: 1.0,
        dropout: text.attention_dropout_p,
        ..AttentionConfig::new(text.dim_model, text.num_heads, text.dim_head, Init::normal(text.init_std))
    }
}

/// Parameters of one stack in files; `last` is the number of a block's feed-forward layer among its layers.
fn stack(name: &str, last: usize, is_gated: bool) -> Vec<Rule> {
    let rule = |ours: &str, theirs: &str| Rule::owned(format!("{name}.{ours}"), format!("{name}.{theirs}"));
    let block =
        |ours: &str, theirs: &str| rule(&format!("layers.{{i}}.{ours}"), &format!("block.{{i}}.layer.{theirs}"));
    let w_in = if is_gated { "{wi_0|wi_1}" } else { "wi" };
    vec![
        // Stored with the first block and used by all.
        rule("relative_attention_bias.weight", "block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
        block("attention_norm.weight", "0.layer_norm.weight"),
        block("attention.project_qkv.weight", "0.SelfAttention.{q|k|v}.weight"),
        block("attention.attention_out.weight", "0.SelfAttention.o.weight"),
        block("cross_norm.weight", "1.layer_norm.weight"),
        block("cross_attention.project_q.weight", "1.EncDecAttention.q.weight"),
        block("cross_attention.project_kv.weight", "1.EncDecAttention.{k|v}.weight"),
        block("cross_attention.attention_out.weight", "1.EncDecAttention.o.weight"),
        block("ffn_norm.weight", &format!("{last}.layer_norm.weight")),
        block("ffn.w_in.weight", &format!("{last}.DenseReluDense.{w_in}.weight")),
        block("ffn.w_out.weight", &format!("{last}.DenseReluDense.wo.weight")),
        rule("output_norm.weight", "final_layer_norm.weight"),
    ]
}
