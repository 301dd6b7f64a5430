#!/usr/bin/env bash
# GPT-2 of 124 million weights, 4 sequences of 256 tokens: our tokens/s over PyTorch's; at least 1.2.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

build step_bench
python="$("$root/scripts/python_env.sh")"
exec "$python" "$root/scripts/claims/speed.py" "$id" "$bin/step_bench" "$@"
