//! Two tiny ALBERTs against PyTorch in 64-bit floats: every hidden state, logit, loss and gradient of every head, a
//! training run, and directories there and back. The data are described in `golden/README.md` and made by
//! `scripts/golden/make_albert.py`.

use crate::goldens;

use bmtrain_dist::block::Recompute;

family_tests! {
    models: ["albert_a", "albert_b"],
    heads: ["cls", "mlm", "pretraining", "tokens"],
    trained: "cls",
    defined: goldens::everywhere,
}

#[test]
fn answer_spans_equal_those_of_pytorch() {
    goldens::check_untrained("albert_a", "qa", goldens::everywhere);
}
