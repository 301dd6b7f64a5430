//! CPM-2 (Zhang et al., 2021) as ModelCenter has it: built as T5, with gates and with linear maps whose inputs are
//! divided by the root of their length, those of the heads too; the words are not.
//!
//! In ModelCenter the last range of distances is taken for padding and never learns. Here it learns like the others.

use super::cpm1::{block, relative};
use super::seq2seq::{Classes, Layout, Seq2SeqFamily, Seq2SeqHead, Seq2SeqModel};
use crate::config::{Cpm2Config, TextConfig};
use crate::formats::{NameTable, model_center};
use crate::layer::BlockConfig;
use bmtrain_dist::nn::norm::NormOptions;

/// A CPM-2 with its head.
pub type Cpm2 = Seq2SeqModel<Cpm2Config>;

impl Seq2SeqFamily for Cpm2Config {
    const TITLE: &'static str = "CPM-2";
    const DROPS_EMBEDDINGS: bool = false;

    const BEGINS_WITH_SENTINELS: bool = true;

    /// Nobody else has these names: they say in directories of ours which head a model has.
    fn classes(&self) -> Classes {
        Classes { base: "CPM2Model", words: "CPM2ForConditionalGeneration", classifier: None }
    }

    fn text(&self) -> &TextConfig {
        &self.cpm.text
    }

    fn text_mut(&mut self) -> &mut TextConfig {
        &mut self.cpm.text
    }

    fn decoder_layers(&self) -> usize {
        self.num_decoder_layers
    }

    fn decoder_start_token(&self) -> Option<usize> {
        self.decoder_start_token_id
    }

    fn layout(&self) -> Layout {
        let text = &self.cpm.text;
        let output_norm = NormOptions::rms(text.dim_model, text.norm_eps);
        let head_factor = if self.cpm.length_scale { 1.0 / (text.dim_model as f32).sqrt() } else { 1.0 };
        Layout { head_factor, ..Layout::of_distances(relative(&self.cpm, true), output_norm, 0.0) }
    }

    fn encoder_block(&self) -> BlockConfig {
        block(&self.cpm)
    }

    fn decoder_block(&self) -> BlockConfig {
        block(&self.cpm).attending_to_encoder()
    }

    /// Nobody but ModelCenter has names for them.
    fn names(&self, _head: Seq2SeqHead) -> NameTable {
        let encoder = (&self.encoder_block(), self.cpm.text.num_layers);
        model_center::encoder_decoder(encoder, (&self.decoder_block(), self.num_decoder_layers))
    }

    fn names_of_model_center(&self) -> Option<NameTable> {
        Some(self.names(Seq2SeqHead::None))
    }
}
