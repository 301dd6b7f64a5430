//! CPM-2 (Zhang et al., 2021) as ModelCenter has it: built as T5, with gates and with linear maps whose inputs are divided by the
//! root of their length, those of the heads too; the words are not.
//!
//! In ModelCenter the last range of distances is taken for padding and never learns. Here it learns like the others.

use super::cpm1::{block, relative};
use super::seq2seq::{Added, Around, Classes, Layout, Seq2SeqFamily, Seq2SeqHead, Seq2SeqModel};
use crate::config::{Cpm2Config, TextConfig};
use crate::hf::{NameTable, Rule, model_center};
use crate::layer::{AttentionConfig, BlockConfig};
use bmtrain_dist::nn::norm::NormOptions;

/// A CPM-2 with its head.
pub type Cpm2 = Seq2SeqModel<Cpm2Config>;

impl Seq2SeqFamily for Cpm2Config {
    const TITLE: &'static str = "CPM-2";

    const BEGINS_WITH_SENTINELS: bool = true;

    /// Nobody else has these names: they say in folders of ours which head a model has.
    fn classes(&self) -> Classes {
        Classes { base: "CPM2Model", words: "CPM2ForConditionalGeneration", classifier: None }
    }

    fn text(&self) -> &TextConfig {
        &self.cpm.text
    }

    fn text_mut(&mut self) -> &mut TextConfig {
        &mut self.cpm.text
    }

    /// Nothing of the embeddings is dropped.
    fn set_hidden_dropout(&mut self, rate: f32) {
        self.cpm.text.dropout_p = rate;
    }

    fn decoder_layers(&self) -> usize {
        self.num_decoder_layers
    }

    fn first_word(&self) -> Option<usize> {
        self.decoder_start_token_id
    }

    fn layout(&self) -> Layout {
        let text = &self.cpm.text;
        let around = |bidirectional: bool| Around {
            added: Added::None,
            embedding_norm: None,
            relative: Some(relative(&self.cpm, bidirectional)),
            output_norm: Some(NormOptions::rms(text.dim_model, text.norm_eps)),
            output_dropout: 0.0,
        };
        let head_factor = if self.cpm.length_scale { 1.0 / (text.dim_model as f32).sqrt() } else { 1.0 };
        Layout {
            encoder: around(true),
            decoder: around(false),
            padding_learns: true,
            word_factor: 1.0,
            head_factor,
            logits_bias: false,
            classifier_dropout: 0.0,
        }
    }

    fn encoder_block(&self, _layer: usize) -> BlockConfig {
        block(&self.cpm)
    }

    fn decoder_block(&self, _layer: usize) -> BlockConfig {
        let block = block(&self.cpm);
        BlockConfig {
            attention: AttentionConfig { causal: true, ..block.attention },
            cross: Some(block.attention),
            ..block
        }
    }

    /// Nobody but ModelCenter has names for them.
    fn names(&self, _head: Seq2SeqHead) -> NameTable {
        let blocks = [self.encoder_block(0), self.decoder_block(0)];
        let layers = [self.cpm.text.num_layers, self.num_decoder_layers];
        let stack = |index: usize, name: &'static str| model_center::Stack {
            ours: name,
            theirs: name,
            block: &blocks[index],
            layers: layers[index],
        };
        let rules = vec![
            Rule::new("lm_head.weight", "output_projection.weight"),
            Rule::new("encoder.relative_attention_bias.weight", "position_bias_enc.relative_attention_bias"),
            Rule::new("decoder.relative_attention_bias.weight", "position_bias_dec.relative_attention_bias"),
        ];
        model_center::table(&[stack(0, "encoder"), stack(1, "decoder")], rules)
    }

    fn names_of_model_center(&self) -> Option<NameTable> {
        Some(self.names(Seq2SeqHead::None))
    }
}
