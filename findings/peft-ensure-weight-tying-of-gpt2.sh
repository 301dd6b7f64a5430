#!/usr/bin/env bash
# Guess: ensure_weight_tying=True with modules_to_save=["wte"] keeps GPT-2's embedding and output projection one matrix.
# Seen: PEFT looks for modules whose last name is embed_tokens or lm_head. For wte the option is without effect: the
# embedding becomes a matrix of its own, and lm_head stays the base model's.
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
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM


def is_tied(model, target, embedding):
    config = LoraConfig(target_modules=[target], modules_to_save=[embedding], ensure_weight_tying=True)
    base = get_peft_model(model, config).get_base_model()
    return base.get_input_embeddings().weight.data_ptr() == base.get_output_embeddings().weight.data_ptr()


gpt2 = GPT2LMHeadModel(GPT2Config(n_embd=32, n_head=2, n_layer=1, n_positions=32, vocab_size=50))
llama = LlamaForCausalLM(LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
                                     vocab_size=50, tie_word_embeddings=True))
found = is_tied(gpt2, "c_attn", "wte"), is_tied(llama, "q_proj", "embed_tokens")
print(f"tied with ensure_weight_tying: GPT-2's wte {found[0]}, Llama's embed_tokens {found[1]}")
assert found == (False, True), "the option acts on other modules now"
PYTHON
