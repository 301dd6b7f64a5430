#!/usr/bin/env bash
# SmolLM2-135M's perplexity on a text with WikiText's marks, LAMBADA and log-likelihoods of continuations against
# transformers; the largest relative difference of a loss or log-likelihood must be below 1e-5.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need_pip
"$root/scripts/assets.sh" llama prose
build convert evaluate
python="$("$root/scripts/python_env.sh")"
scratch

"$bin/convert" "$cache/assets/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$scratch/model" --dtype f32 >&2
"$python" "$root/scripts/claims/evaluate.py" make "$cache/assets/prose/moby_dick.txt" "$scratch"
for overlap in 512 64; do
    "$bin/evaluate" perplexity "$scratch/model" "$scratch/wiki.test.tokens" --length 512 --overlap "$overlap" \
        --batch 2 --json >"$scratch/perplexity-$overlap.json"
done
"$bin/evaluate" perplexity "$scratch/model" "$scratch/corpus.jsonl" --length 256 --iterations 3 --batch 2 --ranks 2 \
    --json >"$scratch/corpus.json"
"$bin/evaluate" lambada "$scratch/model" "$scratch/lambada.jsonl" --json >"$scratch/lambada.json"
"$bin/evaluate" likelihood "$scratch/model" "$scratch/requests.jsonl" --output "$scratch/scores.jsonl" >&2
difference="$("$python" "$root/scripts/claims/evaluate.py" compare "$scratch/model" "$scratch")"
if awk -v d="$difference" 'BEGIN { exit !(d < 1e-5) }'; then
    verdict "$difference" ok
else
    verdict "$difference" short
fi
