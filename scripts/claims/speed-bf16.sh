#!/usr/bin/env bash
# Training steps in bf16 on a processor that multiplies bf16: our tokens/s over PyTorch autocast's and our own f32's.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

build step_bench
python="$("$root/scripts/python_env.sh")"
exec "$python" "$root/scripts/claims/speed_bf16.py" "$id" "$bin/step_bench" "$@"
