#!/usr/bin/env bash
# A checkpoint that is saved beside the training delays the step it begins with by at most 10 %. The figure is that
# delay in percent of a step, the median over the saves of a run of MiniLM against the same steps without saving.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

quickstart_data
build finetune
scratch
every=8
train() {
    quickstart_train "$scratch/$1" --set train.steps=88 --set train.batch_size=32 --set data.eval_limit=16 \
        --set eval.every=end --set save.which=last --set log.every=1 --set log.quiet=true \
        --set checkpoint.minutes=0 --set "checkpoint.every=$2"
}
train plain never
train saving "$every steps"
figure="$(python3 "$root/scripts/claims/save_stall.py" "$scratch/saving/metrics.jsonl" \
    "$scratch/plain/metrics.jsonl" "$every")"
if awk -v v="$figure" 'BEGIN { exit !(v <= 10) }'; then verdict "$figure%" ok; else verdict "$figure%" short; fi
