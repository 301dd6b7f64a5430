#!/usr/bin/env bash
# An AdamOffload step on 110 million f32 values: seconds of PyTorch's AdamW over ours, by default at least 1.5, fused at
# least 0.95.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

build cpu_bench
python="$("$root/scripts/python_env.sh")"
exec "$python" "$root/scripts/claims/speed_offload.py" "$bin/cpu_bench"
