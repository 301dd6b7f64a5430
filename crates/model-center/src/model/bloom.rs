//! BLOOM (Le Scao et al., 2022): ALiBi, a norm behind the embedding, pre-norm blocks, a head tied to the words.

use super::block::block;
use super::decoder::{Classes, DecoderFamily, DecoderHead, DecoderModel, Layout};
use crate::config::{BloomConfig, TextConfig};
use crate::formats::{Alias, NameTable, Rule};
use crate::layer::{AttentionConfig, BlockConfig, Placement, PositionsConfig};
use bmtrain_dist::nn::norm::NormOptions;
use std::borrow::Cow;

/// A BLOOM with its head.
pub type Bloom = DecoderModel<BloomConfig>;

impl DecoderFamily for BloomConfig {
    const TITLE: &'static str = "BLOOM";
    const CLASSES: Classes =
        Classes { base: "BloomModel", words: "BloomForCausalLM", classifier: "BloomForSequenceClassification" };

    fn text(&self) -> &TextConfig {
        &self.text
    }

    fn text_mut(&mut self) -> &mut TextConfig {
        &mut self.text
    }

    fn layout(&self) -> Layout {
        let norm = NormOptions::layer(self.text.dim_model, self.text.norm_eps);
        Layout {
            padding_learns: true,
            embedding_norm: Some(norm),
            ..Layout::new(self.text.dim_model, PositionsConfig::Alibi(self.text.num_heads), norm)
        }
    }

    fn block(&self, _layer: usize) -> BlockConfig {
        let block = block(&self.text, Placement::Pre);
        BlockConfig { attention: AttentionConfig { causal: true, ..block.attention }, ..block }
    }

    /// Queries, keys and values of a head stand beside each other in files.
    fn names(&self, head: DecoderHead) -> NameTable {
        let (heads, size) = (self.text.num_heads, self.text.num_heads * self.text.dim_head);
        let rule = |ours: &str, theirs: &str| {
            let both = |kind: &str| {
                let ours = format!("decoder.layers.{{i}}.{ours}.{kind}");
                Rule::owned(ours, format!("transformer.h.{{i}}.{theirs}.{kind}"))
            };
            ["weight", "bias"].map(both)
        };
        let qkv = rule("attention.project_qkv", "self_attention.query_key_value");
        let mut rules: Vec<Rule> = OUTER.to_vec();
        rules.extend(qkv.map(|rule| rule.rows(vec![size; 3]).interleaved(heads)));
        for (ours, theirs) in [
            ("attention_norm", "input_layernorm"),
            ("attention.attention_out", "self_attention.dense"),
            ("ffn_norm", "post_attention_layernorm"),
            ("ffn.w_in", "mlp.dense_h_to_4h"),
            ("ffn.w_out", "mlp.dense_4h_to_h"),
        ] {
            rules.extend(rule(ours, theirs));
        }
        let tied = head == DecoderHead::CausalLm { tied: true };
        // What a file has of a head for the next word is none of the other models' business.
        let aliases: &[Alias] = if tied { &TIED } else { &[] };
        NameTable {
            base_prefix: "transformer.",
            rules: Cow::Owned(rules),
            aliases: Cow::Borrowed(aliases),
            ignored: Cow::Borrowed(&[]),
            old_names: Cow::Borrowed(&[]),
        }
    }
}

/// The parameters outside of the blocks.
static OUTER: [Rule; 7] = [
    Rule::new("input_embedding.weight", "transformer.word_embeddings.weight"),
    Rule::new("embedding_norm.weight", "transformer.word_embeddings_layernorm.weight"),
    Rule::new("embedding_norm.bias", "transformer.word_embeddings_layernorm.bias"),
    Rule::new("decoder.output_norm.weight", "transformer.ln_f.weight"),
    Rule::new("decoder.output_norm.bias", "transformer.ln_f.bias"),
    Rule::new("lm_head.weight", "lm_head.weight"),
    Rule::new("cls_projection.weight", "score.weight"),
];

/// The head for words, where it is the words' embedding: a file may hold it under both names.
static TIED: [Alias; 1] = [Alias::new("lm_head.weight", "transformer.word_embeddings.weight")];
