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
quickstart_of_steps --set "output.dir=$scratch/run"
figure="$("$python" "$root/scripts/claims/event_files.py" "$scratch" "$bin/runs" "${recipe[@]}")"
if [ "${figure%/*}" = "${figure#*/}" ]; then verdict "$figure" ok; else verdict "$figure" short; fi
