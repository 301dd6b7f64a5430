#!/usr/bin/env bash
# What the plan program computes against what a run then took, over forty-one configurations: the fullest pool of a
# rank, and the process with all its ranks. The figure is the largest excess and the largest shortfall of the planned
# peaks, in percent of the measured ones: of the pool, then of the process, whose differences of up to 32 MiB count as
# none.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need python3 "install Python 3.9 or newer"
build plan finetune
scratch
figure="$(python3 "$root/scripts/claims/plan.py" "$bin" "$scratch")"
read -r over under classes above below outside <<<"$figure"
outcome=ok
awk -v over="$over" -v under="$under" 'BEGIN { exit !(over <= 5 && under <= 2) }' || outcome=short
[ "$outside" -eq 0 ] || outcome=short
note "largest difference of a class at the peak: $classes % of the peak"
note "runs whose process is outside of +10 % and -5 %: $outside"
verdict "+$over%/-$under%,process:+$above%/-$below%" "$outcome"
