#!/usr/bin/env bash
# 2,000 random corruptions of a checkpoint are found before a tensor reaches training, and every crash state of a save
# loads the last good one. The figure is tests passed / all.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --release --package bmtrain-dist --test it -- checkpoint::
