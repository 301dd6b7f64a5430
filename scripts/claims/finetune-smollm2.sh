#!/usr/bin/env bash
# SmolLM2-135M learns Moby Dick on two ranks under ZeRO-3: its perplexity on chapters that it has not seen, before and
# after; it must fall to 0.85 of that.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need_pip
"$root/scripts/assets.sh" llama prose
build convert finetune generate
scratch

# The novel but for its last tenth, and that tenth.
novel="$cache/assets/prose/moby_dick.txt"
lines="$(wc -l <"$novel")"
head -n "$((lines - lines / 10))" "$novel" >"$scratch/train.txt"
tail -n "$((lines / 10))" "$novel" >"$scratch/eval.txt"
"$bin/convert" "$cache/assets/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$scratch/model" --dtype f32 >&2

"$bin/finetune" --recipe "$root/examples/recipes/novel_llama.toml" --ranks 2 --set "model.path=$scratch/model" \
    --set "data.train=$scratch/train.txt" --set "data.eval=$scratch/eval.txt" --set "output.dir=$scratch/run" \
    --set device.threads=2 >&2

# Greedy completions of a sentence by either model.
for directory in model run/model; do
    note "$directory:"
    "$bin/generate" "$scratch/$directory" --prompt "The old captain leaned over the rail, and" --greedy \
        --max-new-tokens 60 --echo --threads 2 >&2
done
# The first evaluation comes before the first step.
read -r before after < <(python3 -c 'import json, sys
evals = [record for record in map(json.loads, open(sys.argv[1])) if record["kind"] == "eval"]
assert evals[0]["step"] == 0 < evals[-1]["step"]
print(*("%.2f" % record["metrics"]["perplexity"] for record in (evals[0], evals[-1])))' "$scratch/run/metrics.jsonl")
note "perplexity of chapters that were held out: $before before, $after after"
if awk -v b="$before" -v a="$after" 'BEGIN { exit !(a <= 0.85 * b) }'; then
    verdict "$before->$after" ok
else
    verdict "$before->$after" short
fi
