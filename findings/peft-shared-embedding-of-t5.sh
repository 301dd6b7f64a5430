#!/usr/bin/env bash
# Guess: modules_to_save=["shared"] of a T5 trains the embedding that encoder and decoder look tokens up in.
# Seen: PEFT wraps the module `shared`, and encoder.embed_tokens and decoder.embed_tokens keep the original matrix. No
# forward pass reads the copy: changing it changes no logit, and training it is without effect.
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
from transformers import T5Config, T5ForConditionalGeneration

base = T5ForConditionalGeneration(T5Config(d_model=32, d_ff=48, d_kv=16, num_layers=1, num_heads=2, vocab_size=50))
tuned = get_peft_model(base, LoraConfig(target_modules=["q"], modules_to_save=["shared"])).eval()
ids = torch.arange(3, 9)[None]


def logits():
    with torch.no_grad():
        return tuned(input_ids=ids, decoder_input_ids=ids[:, :3]).logits


before = logits()
copies = [p for name, p in tuned.named_parameters() if "modules_to_save" in name]
assert len(copies) == 1 and copies[0].requires_grad
with torch.no_grad():
    copies[0].add_(5)
moved = (logits() - before).abs().max().item()
print(f"the trained copy is moved by 5, logits by {moved}")
assert moved == 0, "the copy is read now"
PYTHON
