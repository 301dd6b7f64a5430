#!/usr/bin/env bash
# The CUDA backend on this machine's GPU against the CPU: every row of the conformance table, tiny models in training,
# and beside them the measurements of docs/gpu-check.md. The figure is the conformance table's. Without a GPU, its
# driver or its libraries it reports what is missing and ends with exit status 75.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

build gpu-check
# An emulated device proves nothing here.
if ! found="$("$bin/gpu-check" --only environment)" || grep -q '^emulated' <<<"$found"; then
    note "gpu: there is no GPU to be checked here: see the line above, or the doctor program"
    verdict none noisy
fi
outcome=ok
table="$("$bin/gpu-check" "$@")" || outcome=short
printf '%s\n' "$table" >&2
figure="$(sed -n 's/^conformance, \([0-9]*\) rows *\([0-9]*\) passed.*/\1_rows\/\2_passed/p' <<<"$table")"
verdict "${figure:-none}" "$outcome"
