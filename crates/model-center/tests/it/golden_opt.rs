//! Two tiny models of OPT against PyTorch in 64-bit floats: every hidden state, logit, loss and gradient of every head,
//! a training run, and directories there and back. The data are described in `golden/README.md` and made by
//! `scripts/golden/make_opt.py`.

use crate::goldens;

use bmtrain_dist::block::Recompute;

decoder_tests! { models: ["opt_a", "opt_b"], heads: ["lm", "untied", "cls"], trained: "lm" }

/// Embeddings larger than the hidden states, no final norm, no biases.
#[test]
fn a_model_without_biases_and_final_norm_does_all_that_too() {
    goldens::check_everything("opt_c", "lm", goldens::from_the_first_token);
}
