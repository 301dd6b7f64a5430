#!/usr/bin/env bash
# Real weights give the results of PyTorch: a Llama from a GGUF file predicts the same next token at 200 positions of a
# text with the same perplexity, and a RoBERTa predicts the same masked tokens (claim real-roberta).
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

"$root/scripts/assets.sh" llama
build convert forward
python="$("$root/scripts/python_env.sh")"
scratch
gguf="$cache/assets/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
"$bin/convert" "$gguf" "$scratch/model" --dtype f32 >&2
"$python" "$root/scripts/claims/real_weights.py" text >"$scratch/text.jsonl"
"$bin/forward" --model "$scratch/model" --inputs "$scratch/text.jsonl" --out "$scratch/out.safetensors" >&2
# Without a figure, the comparison has printed the reason on stderr.
read -r figure outcome < <(\
    "$python" "$root/scripts/claims/real_weights.py" compare "$gguf" "$scratch/model" \
    "$scratch/out.safetensors") || true
# The other claim prints its id, figure and outcome last, and fails where it falls short.
read -r _ roberta roberta_outcome < <("$root/scripts/claims/real-roberta.sh" | tail -n 1) || true
[ "${roberta_outcome:-}" = ok ] || outcome=short
verdict "${figure:-none};${roberta:-none}" "${outcome:-short}"
