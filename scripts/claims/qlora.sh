#!/usr/bin/env bash
# NF4 against bitsandbytes on random matrices and on SmolLM2-135M's, and training beside the quantised SmolLM2
# against PEFT beside the same weights dequantised: logits, gradients, losses of 10 steps.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

"$root/scripts/assets.sh" llama prose
build convert cpu_bench forward finetune
python="$("$root/scripts/python_env.sh")"
PYTHONPATH="$("$root/scripts/bitsandbytes_env.sh")"
export PYTHONPATH
scratch
"$bin/convert" "$cache/assets/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$scratch/smollm2" --dtype f32 >&2
exec "$python" "$root/scripts/claims/qlora.py" "$bin" "$scratch" "$cache/assets/prose/moby_dick.txt"
