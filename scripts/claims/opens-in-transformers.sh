#!/usr/bin/env bash
# A folder that the quickstart's recipe left after a few steps opens in transformers by itself, and gives five sentences the
# logits that our forward program gives them; largest difference of a logit below 1e-4.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need_pip
"$root/scripts/assets.sh" bert sent
sentences="$cache/data/movie_reviews"
python3 "$root/scripts/prepare_sentences.py" "$cache/assets/sentences/movie_reviews.tsv" "$sentences"
build finetune forward
python="$("$root/scripts/python_env.sh")"
scratch
# A rate at which a few steps tell sentences apart.
"$bin/finetune" --recipe "$root/examples/recipes/quickstart.toml" --set "model.path=$cache/assets/minilm" \
    --set "data.train=$sentences/train.jsonl" --set "data.eval=$sentences/heldout.jsonl" --set data.eval_limit=64 \
    --set train.steps=24 --set train.batch_size=16 --set train.lr=2e-4 --set eval.every=end \
    --set "output.dir=$scratch/run" >&2
compare() { "$python" "$root/scripts/claims/opens_in_transformers.py" "$1" "$scratch/run/model" "$scratch"; }
compare inputs
"$bin/forward" --model "$scratch/run/model" --inputs "$scratch/inputs.safetensors" --out "$scratch/out.safetensors" >&2
difference="$(compare compare)"
if awk -v d="$difference" 'BEGIN { exit !(d < 1e-4) }'; then verdict "$difference" ok; else verdict "$difference" short; fi
