#!/usr/bin/env bash
# The quickstart on two ranks with ZeRO-3. With elastic sums its weights, losses and predictions equal one rank's,
# byte for byte; with fast sums its accuracy is within 1.5 points. The figure is the three accuracies: one rank, two
# elastic, two fast.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

quickstart_data
build finetune
scratch

# train NAME SUM ARGUMENTS...
train() {
    local name="$1" sum="$2"
    shift 2
    note "run $name"
    quickstart_train "$scratch/$name" "$@" \
        --set train.micro_batch_size=16 --set "train.gradient_sum=$sum" --set parallel.zero=3
}
accuracy() { python3 "$root/scripts/claims/accuracy.py" "$scratch/$1/metrics.jsonl"; }

train one elastic
train two elastic --ranks 2
train fast fast --ranks 2
one="$(accuracy one)"
two="$(accuracy two)"
fast="$(accuracy fast)"
outcome=ok
all=0
while read -r same name; do
    note "one rank and two: $same $name"
    all=$((all + 1))
    [ "$same" = same ] || outcome=short
done < <(python3 "$root/scripts/claims/compare_runs.py" "$scratch/one" "$scratch/two")
# A comparison that broke off has named fewer.
[ "$all" -ge 8 ] || outcome=short
awk -v one="$one" -v fast="$fast" 'BEGIN { d = one - fast; exit !(d <= 1.5 && d >= -1.5) }' || outcome=short
verdict "$one/$two/$fast" "$outcome"
