#!/usr/bin/env bash
# 16 documents of 128 tokens packed into one sequence of 2,048 against 16 sequences of 128: the time of attention alone
# and of a training step of GPT-2; each at most 1.25.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need python3 "install Python 3.9 or newer"
build cpu_bench step_bench
exec python3 "$root/scripts/claims/document_mask.py" "$bin/step_bench" "$bin/cpu_bench" "$@"
