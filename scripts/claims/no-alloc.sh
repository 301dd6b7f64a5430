#!/usr/bin/env bash
# Steady state: over 200 steps after the third, the pool asks the system for nothing, no large block is taken from the
# heap, and resident memory stays flat. MiniLM with 16 sequences, as where its speed is measured; every step uploads a
# batch of its own, of eight lengths in turn. The figure is requests / large allocations / growth in bytes.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

build step_bench
scratch
status=0
"$bin/step_bench" --model minilm --batch 16 --lengths 128,72,104,40,96,56,120,88 --steps 200 --threads 2 --no-floor \
    --check-alloc >"$scratch/out" || status=$?
cat "$scratch/out" >&2
figure="$(sed -n 's/^figure: //p' "$scratch/out")"
[ -n "$figure" ] ||
    fail "no-alloc" "step_bench ended with status $status and printed no figure" "run it by hand, see the lines above"
if [ "$status" -eq 0 ]; then verdict "$figure" ok; else verdict "$figure" short; fi
