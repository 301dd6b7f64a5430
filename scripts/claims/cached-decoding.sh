#!/usr/bin/env bash
# Text written token by token behind what blocks keep, against whole rows: a test over the golden models of all
# families. The figure is their number and the largest difference of a logit.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --release --package model-center --test it -- cached_decoding::
