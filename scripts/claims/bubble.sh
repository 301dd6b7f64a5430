#!/usr/bin/env bash
# Pipelines of blocks that take a fixed time: the bubble of each schedule on stderr. The figure is the largest
# difference from its formula, in points.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --release --package bmtrain-dist --test it -- --ignored pipeline::bubble::the_bubble
