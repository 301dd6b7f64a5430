#!/usr/bin/env bash
# The walk of docs/training-step.md holds in the sources. The figure is the number of files from the program's main to
# the matrix product, at most 9.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests --package bmtrain-programs --test it -- step_path::
if [ "$failed" -eq 0 ] && [ "$passed" -eq 2 ] && [ "${figure%%_*}" -le 9 ]; then
    verdict "$figure" ok
else
    verdict "$figure" short
fi
