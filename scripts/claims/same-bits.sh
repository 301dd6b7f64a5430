#!/usr/bin/env bash
# The same run gives the same bytes: MiniLM fine-tuned for a few steps into three directories, twice on two threads and
# once on one, and every row of the conformance table on one and two threads. The figure is the number of files and
# tests that agree.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

quickstart_data
build finetune
scratch

# train NAME THREADS: gradients are accumulated over two parts of each batch, evaluation runs twice.
train() {
    note "run $1: $2 thread(s)"
    quickstart_train "$scratch/$1" --set data.eval_limit=64 \
        --set train.steps=12 --set train.batch_size=16 --set train.micro_batch_size=8 --set log.every=1 \
        --set "eval.every=6 steps" --set "device.threads=$2"
}
train first 2
train again 2
train alone 1
same=0
different=0
for other in again alone; do
    while read -r outcome name; do
        note "first and $other: $outcome $name"
        if [ "$outcome" = same ]; then same=$((same + 1)); else different=$((different + 1)); fi
    done < <(python3 "$root/scripts/claims/compare_runs.py" "$scratch/first" "$scratch/$other")
done
# No verdict on nothing: each comparison has at least weights, metrics, and the state at the end.
if [ "$same" -lt 8 ]; then different=$((different + 1)); fi

tests --release --package bmtrain-core --test it -- conformance::two_threads_give_the_bits_of_one
# The test of this name must be there.
if [ "$passed" -eq 0 ]; then failed=$((failed + 1)); fi
same=$((same + passed))
different=$((different + failed))
if [ "$different" -eq 0 ]; then verdict "$same/$same" ok; else verdict "$same/$((same + different))" short; fi
