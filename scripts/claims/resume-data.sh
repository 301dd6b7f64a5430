#!/usr/bin/env bash
# Pretraining that is killed and goes on, on other numbers of ranks and loading threads, trains on the same samples to
# the same bits.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --release --package bmtrain-programs --test it -- pretrain::a_killed_run pretrain::ranks_threads
