//! Two tiny GPT-2s against PyTorch in 64-bit floats: every hidden state, logit, loss and gradient of every head, and a
//! training run. The data are described in `golden/README.md` and made by `scripts/golden/make_gpt2.py`.
#![allow(missing_docs, clippy::unwrap_used)]

mod goldens;

use bmtrain_dist::block::Recompute;
use goldens::{check_head, check_training};
use model_center::model::TextBatch;

const MODELS: [&str; 2] = ["gpt2_a", "gpt2_b"];
const HEADS: [&str; 3] = ["lm", "untied", "cls"];

/// A position sees itself and what is before it: from the first token of its row on there is something to see.
fn from_the_first_token(batch: &TextBatch) -> Vec<bool> {
    let rows = batch.attention_mask.as_ref().unwrap().chunks(batch.length);
    rows.flat_map(|row| (0..row.len()).map(|at| row[..=at].contains(&1))).collect()
}

#[test]
fn hidden_states_logits_losses_and_gradients_equal_those_of_pytorch() {
    for model in MODELS {
        for head in HEADS {
            check_head(model, head, Recompute::Keep, from_the_first_token);
        }
    }
}

#[test]
fn recomputed_blocks_give_the_same_gradients() {
    for model in MODELS {
        check_head(model, "lm", Recompute::Checkpoint, from_the_first_token);
    }
}

#[test]
fn thirty_adamw_steps_follow_pytorch() {
    for model in MODELS {
        check_training(model, "lm");
    }
}
