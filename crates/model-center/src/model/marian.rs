//! Marian's models for translation (Junczys-Dowmunt et al., 2018; Tiedemann and Thottingal, 2020): a BART whose
//! positions are computed and whose embeddings have no norm.

use super::bart::LikeBart;
use super::seq2seq::{Added, Classes, Seq2SeqModel};
use crate::config::{MarianConfig, TwoStacks};

/// A Marian with its head.
pub type Marian = Seq2SeqModel<MarianConfig>;

impl LikeBart for MarianConfig {
    const TITLE: &'static str = "Marian";
    const CLASSES: Classes = Classes { base: "MarianModel", words: "MarianMTModel", classifier: None };
    const POSITIONS: Added = Added::Sinusoids;
    const NORMS_EMBEDDINGS: bool = false;
    const LAST_WORD: usize = 0;
    // They are checked where the directory is opened. transformers computes them too where a file has none.
    const IGNORED: &'static [&'static str] =
        &["model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"];

    fn stacks(&self) -> &TwoStacks {
        &self.stacks
    }

    fn stacks_mut(&mut self) -> &mut TwoStacks {
        &mut self.stacks
    }
}
