//! Tiny models of BART against PyTorch in 64-bit floats: every hidden state of both stacks, logit, loss and gradient, a
//! training run, and directories there and back. The data are described in `golden/README.md` and made by
//! `scripts/golden/make_bart.py`.

use crate::goldens;

use bmtrain_dist::block::Recompute;

seq2seq_tests! { models: ["bart_a", "bart_b"] }

/// The head for classes of a text, whose decoder reads what the encoder does and is masked nowhere.
mod classes {
    use super::{Recompute, goldens};

    family_tests! { models: ["bart_a", "bart_b"], heads: ["cls"], trained: "cls", defined: goldens::everywhere }
}
