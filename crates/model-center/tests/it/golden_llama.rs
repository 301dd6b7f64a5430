//! Two tiny models of Llama against PyTorch in 64-bit floats: every hidden state, logit, loss and gradient of every
//! head, a training run, and directories there and back. The data are described in `golden/README.md` and made by
//! `scripts/golden/make_llama.py`.

use crate::goldens;

use bmtrain_dist::block::Recompute;

decoder_tests! { models: ["llama_a", "llama_b"], heads: ["lm", "untied", "cls"], trained: "lm" }
