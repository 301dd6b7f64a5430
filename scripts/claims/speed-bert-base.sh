#!/usr/bin/env bash
# BERT-base, 8 sequences of 128 tokens: our tokens/s over PyTorch's; at least 1.2.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

build step_bench
python="$("$root/scripts/python_env.sh")"
exec "$python" "$root/scripts/claims/speed.py" "$id" "$bin/step_bench" "$@"
