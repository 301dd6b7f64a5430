#!/usr/bin/env bash
# Sentence embeddings from MiniLM's real weights against transformers; largest difference of an element below 1e-4.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

"$root/scripts/assets.sh" bert
build forward
python="$("$root/scripts/python_env.sh")"
scratch
"$python" "$root/scripts/claims/minilm_embedding.py" inputs "$cache/assets/minilm" "$scratch"
"$bin/forward" --model "$cache/assets/minilm" --inputs "$scratch/inputs.safetensors" \
    --out "$scratch/out.safetensors" >&2
difference="$("$python" "$root/scripts/claims/minilm_embedding.py" compare "$cache/assets/minilm" "$scratch")"
if awk -v d="$difference" 'BEGIN { exit !(d < 1e-4) }'; then
    verdict "$difference" ok
else
    verdict "$difference" short
fi
