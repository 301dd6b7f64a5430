#!/usr/bin/env bash
# A directory that the quickstart's recipe left after a few steps opens in transformers by itself, and gives five
# sentences the logits that our forward program gives them; largest difference of a logit below 1e-4.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

quickstart_data
build finetune forward
python="$("$root/scripts/python_env.sh")"
scratch
# A rate at which a few steps tell sentences apart.
quickstart_train "$scratch/run" --set data.eval_limit=64 \
    --set train.steps=24 --set train.batch_size=16 --set train.lr=2e-4 --set eval.every=end
compare() { "$python" "$root/scripts/claims/opens_in_transformers.py" "$1" "$scratch/run/model" "$scratch"; }
compare inputs
"$bin/forward" --model "$scratch/run/model" --inputs "$scratch/inputs.safetensors" --out "$scratch/out.safetensors" >&2
difference="$(compare compare)"
if awk -v d="$difference" 'BEGIN { exit !(d < 1e-4) }'; then
    verdict "$difference" ok
else
    verdict "$difference" short
fi
