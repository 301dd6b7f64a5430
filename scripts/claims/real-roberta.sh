#!/usr/bin/env bash
# A real RoBERTa predicts the same masked amino acids of antibodies as PyTorch, every one of them;
# logits below 1e-4.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

"$root/scripts/assets.sh" roberta
build forward
python="$("$root/scripts/python_env.sh")"
scratch
"$python" "$root/scripts/convert_sapiens.py" "$cache/assets/sapiens" "$scratch/model"
"$python" "$root/scripts/claims/real_roberta.py" inputs "$scratch/model" "$scratch"
"$bin/forward" --model "$scratch/model" --inputs "$scratch/inputs.safetensors" --out "$scratch/out.safetensors" >&2
read -r recovered different error < <(\
    "$python" "$root/scripts/claims/real_roberta.py" compare "$cache/assets/sapiens" "$scratch") || true
[ -n "${recovered:-}" ] || verdict none short
figure="$recovered,$different,$error"
if [ "$different" = 0 ] && awk -v e="$error" 'BEGIN { exit !(e < 1e-4) }'; then
    verdict "$figure" ok
else
    verdict "$figure" short
fi
