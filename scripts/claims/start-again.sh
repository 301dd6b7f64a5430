#!/usr/bin/env bash
# Two ranks of a training run are killed at a random moment of joining or of their first second, both of them or one,
# 200 times. A rank that is left must end by itself with exit code 6; then the same command on the same port, or with
# the same Slurm job id, must train and leave nothing in /dev/shm. The figure is starts that trained / all, and the
# longest time until a rank that was left ended.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need python3 "install Python 3, on Debian: apt-get install python3"
build finetune
scratch
result="$(python3 "$root/scripts/claims/start_again.py" "$scratch" \
    "$root/crates/model-center/tests/golden/bert_a/nsp" "$bin/finetune")"
read -r figure outcome <<<"$result"
verdict "$figure" "$outcome"
