//! Two tiny Code World Models against PyTorch in 64-bit floats: every hidden state, logit, loss and gradient of every
//! head, a training run, and directories there and back. The data are described in `golden/README.md` and made by
//! `scripts/golden/make_cwm.py`.

use crate::goldens;

use bmtrain_dist::block::Recompute;

decoder_tests! { models: ["cwm_a", "cwm_b"], heads: ["lm", "untied"], trained: "lm" }
