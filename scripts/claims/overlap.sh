#!/usr/bin/env bash
# Exchange behind compute, over a simulated link: the figure is the share of the exchange that fetching ahead hides.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --release --package bmtrain-dist --test overlap
