//! Three tiny models of Gemma 3 against PyTorch in 64-bit floats: every hidden state, logit, loss and gradient of every
//! head, a training run, and directories there and back. The data are described in `golden/README.md` and made by
//! `scripts/golden/make_gemma3.py`.

use crate::goldens;

use bmtrain_dist::block::Recompute;

decoder_tests! { models: ["gemma3_a", "gemma3_b"], heads: ["lm", "cls"], trained: "lm" }

/// Tokens attend to later ones too.
mod bidirectional {
    use super::*;

    decoder_tests! { models: ["gemma3_c"], heads: ["cls"], trained: "cls" }
}
