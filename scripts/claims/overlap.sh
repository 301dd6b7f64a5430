#!/usr/bin/env bash
# Overlap of communication and computation over a simulated link: the figure is the share of the communication time
# that prefetching hides.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --release --package bmtrain-dist --test overlap
