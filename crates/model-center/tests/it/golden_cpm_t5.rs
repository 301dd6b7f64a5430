//! Tiny models of CPM-Pretrain's T5 against plain PyTorch in 64-bit floats: every hidden state of both stacks, logit,
//! loss and gradient, a training run, and directories there and back. The data are described in `golden/README.md` and
//! made by `scripts/golden/make_cpm_t5.py`.

use crate::goldens;

use bmtrain_dist::block::Recompute;

seq2seq_tests! { models: ["cpm_t5_a", "cpm_t5_b", "cpm_t5_c"] }
