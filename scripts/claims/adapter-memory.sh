#!/usr/bin/env bash
# SmolLM2-135M with LoRA of rank 16 on all linear layers, 4 sequences of 512 tokens: our peak resident memory over that
# of PEFT and transformers, at most 0.5; our tokens/s over theirs, at least 1.3; and the memory beside the model in NF4,
# blocks recomputed, at most 0.35.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

"$root/scripts/assets.sh" llama prose
build convert finetune
python="$("$root/scripts/python_env.sh")"
scratch
"$bin/convert" "$cache/assets/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$scratch/smollm2" --dtype f32 >&2
exec "$python" "$root/scripts/claims/adapter_memory.py" "$bin/finetune" "$scratch" "$cache/assets/prose/moby_dick.txt" \
    "$@"
