//! Two tiny models of Qwen 2 against PyTorch in 64-bit floats: every hidden state, logit, loss and gradient of every
//! head, a training run, and directories there and back. The data are described in `golden/README.md` and made by
//! `scripts/golden/make_qwen2.py`.

use crate::goldens;

use bmtrain_dist::block::Recompute;

decoder_tests! { models: ["qwen2_a", "qwen2_b"], heads: ["lm", "untied", "cls"], trained: "lm" }
