#!/usr/bin/env bash
# Greedy decoding with SmolLM2-135M, one text at a time: our tokens/s over transformers'; at least 1.5.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need_pip
"$root/scripts/assets.sh" llama
build convert decode_bench
python="$("$root/scripts/python_env.sh")"
scratch
"$bin/convert" "$cache/assets/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$scratch/model" --dtype f32 >&2
"$python" "$root/scripts/claims/speed_decode.py" "$bin/decode_bench" "$scratch/model" "$@"
