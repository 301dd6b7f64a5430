#!/usr/bin/env bash
# Event files against the package tensorboard: a run of the quickstart's recipe that is killed after a checkpoint and
# resumed, and its export. The figure is scalars that agree, of all in metrics.jsonl.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"
need_pip
build finetune runs
python="$("$root/scripts/tensorboard_env.sh")"
quickstart_data
scratch
recipe=("$bin/finetune" --recipe "$root/examples/recipes/quickstart.toml" --set "model.path=$cache/assets/minilm"
    --set "data.train=$sentences/train.jsonl" --set "data.eval=$sentences/heldout.jsonl" --set data.eval_limit=64
    --set train.steps=40 --set "eval.every=10 steps" --set log.every=1 --set "checkpoint.every=10 steps"
    --set "output.dir=$scratch/run")
figure="$("$python" "$root/scripts/claims/event_files.py" "$scratch" "$bin/runs" "${recipe[@]}")"
if [ "${figure%/*}" = "${figure#*/}" ]; then verdict "$figure" ok; else verdict "$figure" short; fi
