#!/usr/bin/env bash
# The pretrain program states the published parameters of published sizes, counted on the model and by formula: GPT-2 of
# 345 million and 8.3 billion, and the 4.7 billion of the ASC22 contest. The figure is tests passed / all.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --release --package bmtrain-programs --features bmtrain-programs/testing --test it -- \
    pretrain::published_sizes
