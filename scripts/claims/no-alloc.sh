#!/usr/bin/env bash
# Steady state: over 200 steps after the third, the pool asks the system for nothing, no large block is taken from the
# heap, and resident memory stays flat. The figure is requests / large allocations / growth in bytes.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

build step_bench
scratch
status=0
"$bin/step_bench" --model minilm --batch 2 --seq 32 --steps 200 --threads 2 --no-floor --check-alloc --json \
    >"$scratch/line" || status=$?
cat "$scratch/line" >&2
figure="$(python3 -c '
import json, sys
line = json.loads(sys.stdin.read())
print(line["pool_requests"], line["large_allocations"], line["resident_growth_bytes"], sep="/")' <"$scratch/line")" ||
    fail "no-alloc" "step_bench ended with status $status and printed no figures" "run it by hand, see the lines above"
if [ "$status" -eq 0 ]; then verdict "$figure" ok; else verdict "$figure" short; fi
