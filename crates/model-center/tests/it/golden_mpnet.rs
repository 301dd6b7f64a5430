//! Two tiny MPNets against PyTorch in 64-bit floats: every hidden state, logit, loss and gradient of every head, a
//! training run, and directories there and back. The data are described in `golden/README.md` and made by
//! `scripts/golden/make_mpnet.py`.

use crate::goldens;

use bmtrain_dist::block::Recompute;

family_tests! {
    models: ["mpnet_a", "mpnet_b"],
    heads: ["cls", "mlm", "tokens"],
    trained: "cls",
    defined: goldens::everywhere,
}

#[test]
fn answer_spans_equal_those_of_pytorch() {
    goldens::check_untrained("mpnet_b", "qa", goldens::everywhere);
}
