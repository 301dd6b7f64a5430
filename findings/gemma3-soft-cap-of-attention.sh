#!/usr/bin/env bash
# Guess: attn_logit_softcapping caps the scores of attention in Gemma 3 as it does in Gemma 2: both configurations have
# the field, and both document it.
# Seen: transformers 5.23.0 reads it for Gemma 3 and leaves it out of what it computes: with a cap of 0.5 the logits are
# those without one, bit for bit. In Gemma 2 they change, and final_logit_softcapping has an effect in both.
set -euo pipefail
# shellcheck source=findings/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages transformers==5.23.0 torch==2.15.0

"$python" - <<'PYTHON'
import sys

import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig

SIZES = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
         "num_key_value_heads": 1, "head_dim": 8, "query_pre_attn_scalar": 1, "attn_implementation": "eager"}
IDS = torch.arange(1, 13)[None]


def logits(config, kind, attention, final):
    model = kind(config(**SIZES, attn_logit_softcapping=attention, final_logit_softcapping=final)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
        return model(IDS).logits


changes = {}
for config, kind in ((Gemma2Config, Gemma2ForCausalLM), (Gemma3TextConfig, Gemma3ForCausalLM)):
    plain = logits(config, kind, None, None)
    for name, caps in (("attention", (0.5, None)), ("logits", (None, 0.5))):
        changes[kind.__name__, name] = (logits(config, kind, *caps) - plain).abs().max().item()
        print(f"{kind.__name__}: a cap of {name} changes logits by {changes[kind.__name__, name]:.2g}")
without_effect = [key for key, change in changes.items() if change == 0.0]
if without_effect != [("Gemma3ForCausalLM", "attention")]:
    sys.exit("this version behaves in another way")
PYTHON
