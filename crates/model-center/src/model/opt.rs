//! OPT (Zhang et al., 2022): learned positions counted by tokens, pre-norm blocks with ReLU, a head tied to the words;
//! the model of 350 million parameters with norms behind the sums and words of a length of their own.

use super::block::block;
use super::decoder::{Classes, Count, DecoderFamily, DecoderHead, DecoderModel, Layout, PositionTable};
use super::fairseq;
use crate::config::{OptConfig, TextConfig};
use crate::formats::{Alias, NameTable, Rule};
use crate::layer::{AttentionConfig, BlockConfig, FeedForwardConfig, Placement, PositionsConfig};
use bmtrain_dist::nn::norm::NormOptions;
use std::borrow::Cow;

/// An OPT with its head.
pub type Opt = DecoderModel<OptConfig>;

impl DecoderFamily for OptConfig {
    const TITLE: &'static str = "OPT";
    const CLASSES: Classes =
        Classes { base: "OPTModel", words: "OPTForCausalLM", classifier: "OPTForSequenceClassification" };

    fn text(&self) -> &TextConfig {
        &self.text
    }

    fn text_mut(&mut self) -> &mut TextConfig {
        &mut self.text
    }

    fn layout(&self) -> Layout {
        let norm = NormOptions::layer(self.text.dim_model, self.text.norm_eps);
        Layout {
            word_size: self.dim_word,
            // Row 1 is padding's, and row 0 nobody's.
            table: Some(PositionTable { first: 2, count: Count::Tokens }),
            output_norm: self.has_final_norm().then_some(norm),
            ..Layout::new(self.text.dim_model, PositionsConfig::None, norm)
        }
    }

    fn block(&self, _layer: usize) -> BlockConfig {
        let bias = self.bias;
        let block = block(&self.text, if self.norm_before { Placement::Pre } else { Placement::Post });
        BlockConfig {
            attention: AttentionConfig { bias, out_bias: bias, causal: true, ..block.attention },
            ffn: FeedForwardConfig { bias, ..block.ffn },
            ..block
        }
    }

    fn stack_of_model_center(&self) -> Option<&'static str> {
        // It does not have the model of 350 million parameters, and always a norm at the end.
        (self.has_final_norm() && self.dim_word == self.text.dim_model).then_some("decoder")
    }

    fn names(&self, head: DecoderHead) -> NameTable {
        let tied = head == DecoderHead::CausalLm { tied: true };
        // What a file has of a head for the next word is none of the other models' business.
        let aliases: &[Alias] = if tied { &TIED } else { &[] };
        let mut rules = RULES.to_vec();
        rules.extend(fairseq::rules("decoder", "model.decoder"));
        NameTable {
            base_prefix: "model.",
            rules: Cow::Owned(rules),
            aliases: Cow::Borrowed(aliases),
            // A number that fairseq left in its models.
            ignored: Cow::Borrowed(&["model.decoder.version"]),
            old_names: Cow::Borrowed(&[]),
        }
    }
}

/// The parameters outside of the stack's blocks.
static RULES: [Rule; 6] = [
    Rule::new("input_embedding.weight", "model.decoder.embed_tokens.weight"),
    Rule::new("position_embedding.weight", "model.decoder.embed_positions.weight"),
    Rule::new("project_in.weight", "model.decoder.project_in.weight"),
    Rule::new("project_out.weight", "model.decoder.project_out.weight"),
    Rule::new("lm_head.weight", "lm_head.weight"),
    Rule::new("cls_projection.weight", "score.weight"),
];

/// The head for words, where it is the words' embedding: a file may hold it under both names.
static TIED: [Alias; 1] = [Alias::new("lm_head.weight", "model.decoder.embed_tokens.weight")];
