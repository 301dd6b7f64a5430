#!/usr/bin/env bash
# BERT-base on two ranks of one thread each against one rank of two threads, in turn: tensor-parallel on 4 x 128, and
# two pipeline stages on 64 x 128 in 8 micro-batches. The figures are medians of the ratios of tokens/s, at least 0.85
# and 0.80; noisy where the values of one rank spread by more than 10 %.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

build step_bench
need python3 "install Python 3"
exec python3 "$root/scripts/claims/speed_tp.py" "$bin/step_bench" "$@"
