#!/usr/bin/env bash
# Four data sets mixed by proportions over a million samples: their shares in every part of an epoch, no sample again
# before the others of its set, and the same order on one, two and four ranks and after a resume. The figure is the
# largest deviation of a count.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --release --package model-center --test it -- data::mixture::
