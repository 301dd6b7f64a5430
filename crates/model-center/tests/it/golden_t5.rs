//! Tiny models of T5 1.0, T5 1.1 and mT5 against PyTorch in 64-bit floats: every hidden state of both stacks, logit,
//! loss and gradient, a training run, and directories there and back. The data are described in `golden/README.md` and
//! made by `scripts/golden/make_t5.py`.

use crate::goldens;

use bmtrain_dist::block::Recompute;

seq2seq_tests! { models: ["t5_a", "t5_b", "t5_mt5"] }
