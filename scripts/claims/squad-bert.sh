#!/usr/bin/env bash
# MiniLM fine-tuned on SQuAD-format questions made of Moby Dick, here and in transformers with the same settings: the difference of
# F1 on 300 held-out samples, in points, must be at most 1.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need_pip
"$root/scripts/assets.sh" bert prose
build finetune
python="$("$root/scripts/python_env.sh")"
scratch

tasks="$root/scripts/claims/token_tasks.py"
"$python" "$tasks" make qa "$cache/assets/prose/moby_dick.txt" "$scratch"
"$bin/finetune" --set "model.path=$cache/assets/minilm" --set data.task=question-answering --set "data.train=$scratch/train.json" \
    --set "data.eval=$scratch/eval.json" --set data.max_length=160 --set train.epochs=3 --set train.batch_size=16 \
    --set train.lr=3e-4 --set train.warmup=0 --set train.schedule=linear --set train.seed=3 \
    --set model.hidden_dropout=0.1 --set "output.dir=$scratch/run" --set log.quiet=true >&2
ours="$(python3 -c 'import json, sys
evals = [record for record in map(json.loads, open(sys.argv[1])) if record["kind"] == "eval"]
print("%.2f" % (100 * evals[-1]["metrics"]["token_f1"]))' "$scratch/run/metrics.jsonl")"
settings='{"max_length": 160, "epochs": 3, "batch_size": 16, "lr": 3e-4}'
theirs="$("$python" "$tasks" train qa "$cache/assets/minilm" "$scratch" "$settings")"
note "F1: $ours here, $theirs in transformers"
if awk -v a="$ours" -v b="$theirs" 'BEGIN { exit !(a - b < 1 && b - a < 1) }'; then
    verdict "$ours/$theirs" ok
else
    verdict "$ours/$theirs" short
fi
