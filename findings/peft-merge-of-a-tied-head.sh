#!/usr/bin/env bash
# Guess: merge_and_unload keeps what the adapter computes, whichever modules it updates.
# Seen: an update of lm_head acts on the logits alone while it is an adapter. Merged, it is added to the matrix that the
# input embedding is tied to, so that the merged model embeds its tokens in another way and computes other logits.
set -euo pipefail
# shellcheck source=findings/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages torch==2.15.0 transformers==5.23.0 peft==0.21.2
"$python" -W ignore - <<'PYTHON'
import torch
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()
torch.manual_seed(0)
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

ids = torch.arange(3, 9)[None]
moved = {}
for tied in (False, True):
    base = LlamaForCausalLM(LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=1,
                                        num_attention_heads=2,
                                        vocab_size=50, tie_word_embeddings=tied, initializer_range=0.2))
    tuned = get_peft_model(base, LoraConfig(target_modules=["lm_head"], init_lora_weights=False)).eval()
    with torch.no_grad():
        before = tuned(ids).logits
        after = tuned.merge_and_unload()(ids).logits
    moved[tied] = ((after - before).abs().max() / before.abs().max()).item()
print(f"merging moves logits by {moved[False]:.1g} of the largest without a tied head, by {moved[True]:.2g} with one")
assert moved[False] < 1e-5 and moved[True] > 0.01, "a tied head is merged in another way now"
PYTHON
