//! Two tiny BERTs against PyTorch in 64-bit floats: every hidden state, logit, loss and gradient of every head, and a
//! training run. The data are described in `golden/README.md` and made by `scripts/golden/make_bert.py`.
#![allow(missing_docs, clippy::unwrap_used)]

mod goldens;

use bmtrain_dist::block::Recompute;
use goldens::{check_head, check_training, everywhere};

const MODELS: [&str; 2] = ["bert_a", "bert_b"];
const HEADS: [&str; 4] = ["cls", "mlm", "nsp", "pretraining"];

#[test]
fn hidden_states_logits_losses_and_gradients_equal_those_of_pytorch() {
    for model in MODELS {
        for head in HEADS {
            check_head(model, head, Recompute::Keep, everywhere);
        }
    }
}

#[test]
fn recomputed_blocks_give_the_same_gradients() {
    for model in MODELS {
        check_head(model, "cls", Recompute::Checkpoint, everywhere);
    }
}

#[test]
fn thirty_adamw_steps_follow_pytorch() {
    for model in MODELS {
        check_training(model, "cls");
    }
}
