#!/usr/bin/env bash
# LoRA, DoRA and IA3 against PEFT on SmolLM2-135M, and LoRA on MiniLM as a classifier and a T5 with random weights:
# logits and gradients of an adapter that PEFT wrote; losses of 20 steps with LoRA, on one rank and in three layouts;
# PEFT's logits of the adapter that we wrote; logits of the merged model.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

"$root/scripts/assets.sh" llama bert prose
build convert forward finetune
python="$("$root/scripts/python_env.sh")"
scratch
"$bin/convert" "$cache/assets/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$scratch/smollm2" --dtype f32 >&2
exec "$python" "$root/scripts/claims/lora.py" "$bin" "$scratch" "$cache/assets/minilm" \
    "$cache/assets/prose/moby_dick.txt"
