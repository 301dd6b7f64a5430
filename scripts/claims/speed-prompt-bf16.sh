#!/usr/bin/env bash
# Reading a prompt of 512 tokens in bf16, SmolLM2-135M: our tokens/s over our own in f32, at least 3, and over llama.cpp
# compiled for this processor, at least 1.2, with weights in bf16 and in Q8_0; generation in bf16 is as fast as without
# the processor's products of bf16. On a processor that does not multiply bf16: exit status 75.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

needs_bf16
need_pip
python="$("$root/scripts/llama_env.sh" native)"
"$root/scripts/assets.sh" llama
build convert decode_bench
scratch
assets="$cache/assets/smollm2"
for dtype in f32 bf16 q8_0; do
    "$python" "$root/scripts/claims/write_gguf.py" "$assets/SmolLM2-135M-Instruct.Q4_1.gguf" "$scratch/$dtype.gguf" \
        "$dtype"
done
# Out of the file that llama.cpp reads, so that both sides have the same weights.
"$bin/convert" "$scratch/bf16.gguf" "$scratch/bf16" --dtype bf16 >&2
"$bin/convert" "$scratch/f32.gguf" "$scratch/f32" --dtype f32 >&2
"$python" "$root/scripts/claims/speed_prompt_bf16.py" "$bin/decode_bench" "$scratch" "$assets/LICENSE" "$@"
