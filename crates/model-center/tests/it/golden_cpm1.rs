//! Tiny models of CPM-1 against plain PyTorch in 64-bit floats: every hidden state, logit, loss and gradient of every
//! head, a training run, and directories there and back. The data are described in `golden/README.md` and made by
//! `scripts/golden/make_cpm1.py`.

use crate::goldens;

use bmtrain_dist::block::Recompute;

// Padding that sees nothing gets zeros from both, so all states are defined.
family_tests! {
    models: ["cpm1_a", "cpm1_b"],
    heads: ["lm", "untied", "cls"],
    trained: "lm",
    defined: goldens::everywhere,
}

/// Several texts in a row, no context, a plain function in the feed-forward.
#[test]
fn spans_without_a_context_do_all_that_too() {
    goldens::check_everything("cpm1_c", "lm", goldens::everywhere);
}
