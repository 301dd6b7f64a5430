#!/usr/bin/env bash
# The same run gives the same bytes, with each instruction set that this processor has: MiniLM fine-tuned for a few
# steps into three directories, twice on two threads and once on one, in f32 or, with a set that multiplies bf16, in
# bf16; then every row of the conformance table with each set on one and two threads. The figure is the number of files
# that agree, by instruction set, and of tests.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

quickstart_data
build finetune doctor
scratch
sets="$("$bin/doctor" --json | python3 -c 'import json, sys; print(*json.load(sys.stdin)["instruction_sets"])')"

# train SET NAME THREADS: gradients are accumulated over two parts of each batch, evaluation runs twice. A step with
# portable code takes several times as long, so that there are fewer.
train() {
    note "run $2 with $1: $3 thread(s)"
    local half=6
    if [ "$1" = portable ]; then half=2; fi
    # In f32 such a set does what the one of its vectors does.
    local dtype=f32
    case "$1" in amx | *_bf16) dtype=bf16 ;; esac
    BMTRAIN_CPU="$1" quickstart_train "$scratch/$1/$2" --set data.eval_limit=64 \
        --set "train.steps=$((2 * half))" --set train.batch_size=16 --set train.micro_batch_size=8 --set log.every=1 \
        --set "model.dtype=$dtype" --set "eval.every=$half steps" --set "device.threads=$3"
}

# compare SET: sets same and different to the number of files in which the other runs of a set are and are not as its
# first one.
compare() {
    same=0
    different=0
    local other outcome name
    for other in again alone; do
        while read -r outcome name; do
            note "$1, first and $other: $outcome $name"
            if [ "$outcome" = same ]; then same=$((same + 1)); else different=$((different + 1)); fi
        done < <(python3 "$root/scripts/claims/compare_runs.py" "$scratch/$1/first" "$scratch/$1/$other")
    done
    # No verdict on nothing: each comparison has at least weights, metrics, and the state at the end.
    if [ "$same" -lt 8 ]; then different=$((different + 1)); fi
}

figures=""
outcome=ok
for set in $sets; do
    mkdir "$scratch/$set"
    train "$set" first 2
    train "$set" again 2
    train "$set" alone 1
    compare "$set"
    figures="${figures:+$figures,}$set=$same/$((same + different))"
    if [ "$different" -gt 0 ]; then outcome=short; fi
done

tests --release --package bmtrain-core --test it -- conformance::two_threads_give_the_bits_of_one
# The test of this name must be there.
if [ "$passed" -eq 0 ]; then failed=$((failed + 1)); fi
if [ "$failed" -gt 0 ]; then outcome=short; fi
verdict "$figures,table=$passed/$((passed + failed))" "$outcome"
