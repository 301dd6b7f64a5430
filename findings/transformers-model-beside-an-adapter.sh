#!/usr/bin/env bash
# Guess: from_pretrained of a directory with a model's config.json and weights opens these weights; or, since an adapter
# of PEFT is beside them, the model that adapter_config.json names, with the adapter.
# Seen: where peft is installed, it opens the directory's own weights with the adapter on top of them, and the model
# that adapter_config.json names is not read. So a merged model that is saved into the directory of its adapter opens
# with the update in it twice.
set -euo pipefail
# shellcheck source=findings/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages torch==2.15.0 transformers==5.23.0 peft==0.21.2
"$python" -W ignore - <<'PYTHON'
import sys
import tempfile
from pathlib import Path

import torch
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()
torch.manual_seed(0)
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

directory = tempfile.TemporaryDirectory()
base, both = (str(Path(directory.name) / name) for name in ("base", "both"))
config = LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                     initializer_range=0.2)
LlamaForCausalLM(config).save_pretrained(base)
lora = LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
tuned = get_peft_model(AutoModelForCausalLM.from_pretrained(base), lora)
tuned.save_pretrained(both)
merged = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), both).merge_and_unload()
merged.save_pretrained(both)
twice = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), both).merge_and_unload()
twice = PeftModel.from_pretrained(twice, both)

ids = torch.tensor([[1, 2, 3, 4]])
with torch.no_grad():
    opened = AutoModelForCausalLM.from_pretrained(both).eval()(ids).logits
    distance = {name: (model.eval()(ids).logits - opened).abs().max().item()
                for name, model in (("the merged model", merged), ("the update twice", twice))}
print(", ".join(f"{name}: {value:.1g}" for name, value in distance.items()), "from what opens")
sys.exit(not (distance["the update twice"] < 1e-5 < 1e-2 < distance["the merged model"]))
PYTHON
