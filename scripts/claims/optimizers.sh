#!/usr/bin/env bash
# 50 steps of every optimizer on gradients that PyTorch takes too, in 32-bit floats: every value below 1e-6 apart; and
# the learning rates of every schedule.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

python="$("$root/scripts/python_env.sh")"
scratch
# The data of today's run, in the place of the committed ones.
"$python" "$root/scripts/golden/make_optimizers.py" --out "$scratch" >&2
export BMTRAIN_OPTIMIZER_GOLDENS="$scratch"
tests_verdict --release --package bmtrain-dist --test it -- golden_optimizers::
