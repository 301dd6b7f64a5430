#!/usr/bin/env bash
# Real weights give what PyTorch gives of them: a Llama out of a GGUF file chooses the same next word at 200 places of a
# text with the same perplexity, and a RoBERTa fills in the same masked words (claim real-roberta).
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
# Without a figure the comparison said on stderr what could not be compared.
read -r figure word < <("$python" "$root/scripts/claims/real_weights.py" compare "$gguf" "$scratch/model" "$scratch/out.safetensors") || true
# The other claim prints its id, figure and word last, and ends with a failure where it falls short.
read -r _ roberta roberta_word < <("$root/scripts/claims/real-roberta.sh" | tail -n 1) || true
[ "${roberta_word:-}" = ok ] || word=short
verdict "${figure:-none};${roberta:-none}" "${word:-short}"
