//! Tiny models of Marian against PyTorch in 64-bit floats: every hidden state of both stacks, logit, loss and gradient,
//! a training run, and directories there and back. The data are described in `golden/README.md` and made by
//! `scripts/golden/make_marian.py`.

use crate::goldens;

use bmtrain_dist::block::Recompute;

seq2seq_tests! { models: ["marian_a", "marian_b"] }
