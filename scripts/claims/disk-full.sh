#!/usr/bin/env bash
# A disk that is full at any write of a save leaves the previous checkpoint, and the run goes on or stops as configured:
# in simulation at every write, and, as root, on a real file system without room. The figure is tests passed / all, plus
# `real` where that part ran.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests --package bmtrain-dist --test it -- full
if [ "$failed" -ne 0 ] || [ "$passed" -eq 0 ]; then verdict "$figure" short; fi
if [ "$(id -u)" -ne 0 ]; then
    note "not root: the real file system is left out"
    verdict "$figure" ok
fi

quickstart_data
build finetune ckpt
scratch
mkdir "$scratch/small"
# Room for one checkpoint of MiniLM (260 MiB) and its model, not for two.
if ! mount -t tmpfs -o size=420m tmpfs "$scratch/small" 2>/dev/null; then
    note "no file system can be mounted here: the real one is left out"
    verdict "$figure" ok
fi
trap 'umount "$scratch/small"; rm -rf "$scratch"' EXIT
short_run() {
    quickstart_train "$scratch/small/run" --set train.steps=6 --set train.batch_size=8 --set data.eval_limit=16 \
        --set eval.every=end --set save.which=last --set "checkpoint.every=2 steps" "$@"
}
status=0
short_run --set checkpoint.on_failure=stop 2>"$scratch/stop.log" || status=$?
cat "$scratch/stop.log" >&2
if [ "$status" -ne 5 ] || ! grep -q "No space left" "$scratch/stop.log"; then verdict "stopped_with_$status" short; fi
"$bin/ckpt" verify "$scratch/small/run" >&2 || verdict "damaged_by_a_full_disk" short
status=0
short_run 2>"$scratch/go_on.log" || status=$?
cat "$scratch/go_on.log" >&2
[ "$status" -eq 0 ] || verdict "went_on_to_$status" short
grep -q "going on after step 2" "$scratch/go_on.log" || verdict "did_not_resume" short
grep -q "was not saved, and the run goes on" "$scratch/go_on.log" || verdict "nothing_said" short
"$bin/ckpt" verify "$scratch/small/run" >&2 || verdict "damaged_by_a_full_disk" short
verdict "$figure+real" ok
