#!/usr/bin/env bash
# Prompt tuning against PEFT on SmolLM2-135M and a T5 with random weights: logits and gradients of virtual tokens that
# PEFT wrote; losses of 20 steps of SmolLM2 from a text, on one rank and in three layouts; PEFT's logits of the
# directory that we wrote.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

"$root/scripts/assets.sh" llama prose
build convert forward finetune
python="$("$root/scripts/python_env.sh")"
scratch
"$bin/convert" "$cache/assets/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$scratch/smollm2" --dtype f32 >&2
exec "$python" "$root/scripts/claims/prompt_tuning.py" "$bin" "$scratch" "$cache/assets/prose/moby_dick.txt"
