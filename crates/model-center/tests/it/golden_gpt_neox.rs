//! Two tiny models of GPT-NeoX against PyTorch in 64-bit floats: every hidden state, logit, loss and gradient of every
//! head, a training run, and directories there and back. The data are described in `golden/README.md` and made by
//! `scripts/golden/make_gpt_neox.py`.

use crate::goldens;

use bmtrain_dist::block::Recompute;

decoder_tests! { models: ["gpt_neox_a", "gpt_neox_b"], heads: ["lm", "untied", "cls"], trained: "lm" }
