#!/usr/bin/env bash
# Accuracy on 1,000 held-out sentences after the quickstart's training, at the committed seed; at least 85.0 %.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

scratch
"$root/scripts/quickstart.sh" --out "$scratch/run" >&2
accuracy="$(python3 "$root/scripts/claims/accuracy.py" "$scratch/run/metrics.jsonl")"
if awk -v a="$accuracy" 'BEGIN { exit !(a >= 85.0) }'; then verdict "$accuracy%" ok; else verdict "$accuracy%" short; fi
