#!/usr/bin/env bash
# LoRA of rank 16 on a model of Qwen3-0.6B's shape in bf16, 2 sequences of 512 tokens: our tokens/s over PEFT's, at
# least 1.8, and peak resident memory, at most 0.5; beside the model in NF4 over PEFT with bitsandbytes, at least 2.0
# and at most 0.6. On a processor that does not multiply bf16: exit status 75.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

needs_bf16
"$root/scripts/assets.sh" tok prose
build finetune
python="$("$root/scripts/python_env.sh")"
PYTHONPATH="$("$root/scripts/bitsandbytes_env.sh")"
export PYTHONPATH
scratch
exec "$python" "$root/scripts/claims/speed_lora_bf16.py" "$bin/finetune" "$scratch" "$cache/assets/tokenizers/gpt2" \
    "$cache/assets/prose/moby_dick.txt" "$@"
