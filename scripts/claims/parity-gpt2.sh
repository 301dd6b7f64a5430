#!/usr/bin/env bash
# Tiny GPT-2s against goldens in 64-bit floats: hidden states, logits, losses, all gradients, 30 AdamW steps; and the folders
# that trained ones leave open in transformers with nothing missing and nothing left over, and the same logits: largest
# relative error below 1e-5.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

python="$("$root/scripts/python_env.sh")"
scratch
export BMTRAIN_GPT2_EXPORTS="$scratch"
tests --release --package model-center --test golden_gpt2 --test gpt2
if [ "$failed" -gt 0 ] || [ "$passed" -eq 0 ]; then verdict "$figure" short; fi
difference="$("$python" "$root/scripts/claims/parity_gpt2.py" "$scratch")"
if awk -v d="$difference" 'BEGIN { exit !(d < 1e-5) }'; then verdict "$figure/$difference" ok; else verdict "$figure/$difference" short; fi
