#!/usr/bin/env bash
# Best weights that were damaged while a run was cut off are restored from a checkpoint, or named with exit code 4.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --package bmtrain-programs --test it -- \
    resume::best::damaged_best_weights_are_restored_or_named_in_every_layout
