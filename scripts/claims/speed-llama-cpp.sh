#!/usr/bin/env bash
# SmolLM2-135M with weights in f32 and in bf16, one sequence at a time: our tokens/s over llama.cpp's, of a prompt of
# 512 tokens and of generation; at least 0.9 for each. `--isa avx2` (the default) or `avx512`.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

isa_option avx2 "$@"
need_pip
python="$("$root/scripts/llama_env.sh" "$isa")"
"$root/scripts/assets.sh" llama
build convert decode_bench
scratch
assets="$cache/assets/smollm2"
for dtype in f32 bf16; do
    "$python" "$root/scripts/claims/write_gguf.py" "$assets/SmolLM2-135M-Instruct.Q4_1.gguf" "$scratch/$dtype.gguf" \
        "$dtype"
    # Out of the file that llama.cpp reads, so that both sides have the same weights.
    "$bin/convert" "$scratch/$dtype.gguf" "$scratch/$dtype" --dtype "$dtype" >&2
done
"$python" "$root/scripts/claims/speed_llama_cpp.py" "$bin/decode_bench" "$scratch" "$assets/LICENSE" --isa "$isa" \
    ${rest[@]+"${rest[@]}"}
