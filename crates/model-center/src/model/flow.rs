//! What flows through a stack of blocks of text, and between pipeline stages.

use bmtrain_core::{Tensor, Var};
use bmtrain_dist::block::Bundle;

/// Hidden states and which of them are padding.
#[derive(Debug, Clone)]
pub struct TextFlow {
    /// `[B, L, D]`.
    pub hidden: Var,
    /// u8 `[B, L]`, 1 for tokens and 0 for padding; `None` when nothing is padded.
    pub padding: Option<Tensor>,
}

impl Bundle for TextFlow {
    fn vars(&self) -> Vec<Var> {
        vec![self.hidden.clone()]
    }

    fn rebuild(&self, vars: &mut dyn Iterator<Item = Var>) -> Self {
        TextFlow { hidden: self.hidden.rebuild(vars), padding: self.padding.clone() }
    }
}
