//! Two tiny models of Seed-OSS against PyTorch in 64-bit floats: every hidden state, logit, loss and gradient of every
//! head, a training run, and directories there and back. The data are described in `golden/README.md` and made by
//! `scripts/golden/make_seed_oss.py`.

use crate::goldens;

use bmtrain_dist::block::Recompute;

decoder_tests! { models: ["seed_oss_a", "seed_oss_b"], heads: ["lm", "cls"], trained: "lm" }
