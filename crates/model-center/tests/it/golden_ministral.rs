//! Two tiny models of Ministral against PyTorch in 64-bit floats: every hidden state, logit, loss and gradient of every
//! head, a training run, and directories there and back. The data are described in `golden/README.md` and made by
//! `scripts/golden/make_ministral.py`.

use crate::goldens;

use bmtrain_dist::block::Recompute;

decoder_tests! { models: ["ministral_a", "ministral_b"], heads: ["lm", "cls"], trained: "lm" }
