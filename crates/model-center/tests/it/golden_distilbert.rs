//! Two tiny DistilBERTs against PyTorch in 64-bit floats: every hidden state, logit, loss and gradient of every head, a
//! training run, and directories there and back. The data are described in `golden/README.md` and made by
//! `scripts/golden/make_distilbert.py`.

use crate::goldens;

use bmtrain_dist::block::Recompute;

family_tests! {
    models: ["distilbert_a", "distilbert_b"],
    heads: ["cls", "mlm", "tokens", "qa"],
    trained: "cls",
    defined: goldens::everywhere,
}
