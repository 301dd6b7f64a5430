//! Two tiny models of Gemma 2 against PyTorch in 64-bit floats: every hidden state, logit, loss and gradient of every
//! head, a training run, and directories there and back. The data are described in `golden/README.md` and made by
//! `scripts/golden/make_gemma2.py`.

use crate::goldens;

use bmtrain_dist::block::Recompute;

decoder_tests! { models: ["gemma2_a", "gemma2_b"], heads: ["lm", "cls"], trained: "lm" }
