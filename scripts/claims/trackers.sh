#!/usr/bin/env bash
# Runs in Weights & Biases, aim and trackio: a run of the quickstart's recipe that is killed after a checkpoint and
# resumed, and every way into a tracker that docs/runs.md names, those that do not work as well. The figure is ways that
# do what the page states, of all. ok: all.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"
need_pip
build finetune runs
python="$("$root/scripts/trackers_env.sh")"
quickstart_data
scratch
quickstart_of_steps --set "run.name=first try" --set 'run.tags=["a", "b"]' --set "output.dir=$scratch/runs/first"
figure="$("$python" "$root/scripts/claims/trackers.py" "$scratch" "$bin/runs" "${recipe[@]}")"
if [ "${figure%/*}" = "${figure#*/}" ]; then verdict "$figure" ok; else verdict "$figure" short; fi
