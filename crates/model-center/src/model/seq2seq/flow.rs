//! What flows through the two stacks, and between pipeline stages.

use bmtrain_core::{Tensor, Var};
use bmtrain_dist::block::Bundle;

/// Hidden states of both stacks and which of them are padding.
#[derive(Debug, Clone)]
pub struct Seq2SeqFlow {
    /// Of the encoder, `[B, S, D]`.
    pub encoder: Var,
    /// Of the decoder, `[B, L, D]`.
    pub decoder: Var,
    /// Of the encoder, u8 `[B, S]`, 1 for tokens and 0 for padding; `None` when nothing is padded.
    pub padding: Option<Tensor>,
    /// Of the decoder, u8 `[B, L]`.
    pub decoder_padding: Option<Tensor>,
}

impl Bundle for Seq2SeqFlow {
    fn vars(&self) -> Vec<Var> {
        vec![self.encoder.clone(), self.decoder.clone()]
    }

    fn rebuild(&self, vars: &mut dyn Iterator<Item = Var>) -> Self {
        Seq2SeqFlow { encoder: self.encoder.rebuild(vars), decoder: self.decoder.rebuild(vars), ..self.clone() }
    }
}
