#!/usr/bin/env bash
# What the plan program says against what the fullest pool of a run then held, over thirty configurations. The figure is the
# largest excess and the largest shortfall of the planned peak, in percent of the measured one.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need python3 "install Python 3.9 or newer"
build plan finetune
scratch
figure="$(python3 "$root/scripts/claims/plan.py" "$bin" "$scratch")"
read -r over under classes <<<"$figure"
word=ok
awk -v over="$over" -v under="$under" 'BEGIN { exit !(over <= 5 && under <= 2) }' || word=short
note "largest difference of a class at the peak: $classes % of the peak"
verdict "+$over%/-$under%" "$word"
