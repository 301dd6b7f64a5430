#!/usr/bin/env bash
# BERT-base, 4 x 128: two tensor-parallel ranks of one thread each against one rank of two threads, in turn. The figure
# is the median of the ratios of tokens/s, at least 0.85; noisy where the values of one rank spread by more than 10 %.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

build step_bench
need python3 "install Python 3"
exec python3 "$root/scripts/claims/speed_tp.py" "$bin/step_bench" "$@"
