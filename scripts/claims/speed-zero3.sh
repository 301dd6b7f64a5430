#!/usr/bin/env bash
# MiniLM, 16 sequences of 128 tokens, under ZeRO-3 on two ranks of one thread each: its tokens/s over one rank's
# with two threads, at least 0.92; and over DeepSpeed's ZeRO-3 over gloo, at least 1.5. The figure is both
# ratios.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

build step_bench
python="$("$root/scripts/python_env.sh")"
exec "$python" "$root/scripts/claims/speed_zero3.py" "$bin/step_bench" "$@"
