#!/usr/bin/env bash
# A rank that is killed or stopped in the middle of training, among processes that share memory and among MPI processes.
# Every other rank prints a message that names it, within 5 s of the kill and within 31 s of the stop, which is the
# deadline and one second for the clock; the job ends within 5 s and 33 s. Five kills and two stops of each kind. The
# figure is the worst seconds, killed and stopped, each as message/end.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

mpirun_here
quickstart_data
# shellcheck disable=SC2034
features=mpi
build finetune
scratch
result="$(python3 "$root/scripts/claims/dead_rank.py" "$scratch" "$bin/finetune" \
    --recipe "$root/examples/recipes/quickstart.toml" \
    --set "model.path=$cache/assets/minilm" --set "data.train=$sentences/train.jsonl" \
    --set data.eval_limit=12 --set "data.eval=$sentences/heldout.jsonl" --set train.batch_size=12 \
    --set train.micro_batch_size=4 --set log.every=1)"
read -r figure outcome <<<"$result"
verdict "$figure" "$outcome"
