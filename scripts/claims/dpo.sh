#!/usr/bin/env bash
# Usage: scripts/claims/dpo.sh [--tiny]
#
# DPO and IPO against TRL on SmolLM2-135M with LoRA: losses, rewards and norms of gradients of 20 steps; with --tiny on
# a Llama with random weights and SmolLM2's vocabulary, which takes a minute.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

size=smollm2
case "${1:-}" in
--tiny) size=tiny ;;
'') ;;
*) fail "dpo.sh $1" "it takes --tiny or nothing" "see the beginning of scripts/claims/dpo.sh" ;;
esac
"$root/scripts/assets.sh" llama prose
build convert finetune
python="$("$root/scripts/python_env.sh")"
packages="$("$root/scripts/trl_env.sh")"
scratch
"$bin/convert" "$cache/assets/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$scratch/smollm2" --dtype f32 >&2
exec "$python" "$root/scripts/claims/dpo.py" "$bin" "$scratch" "$packages" "$cache/assets/prose/moby_dick.txt" "$size"
