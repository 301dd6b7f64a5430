#!/usr/bin/env bash
# Beam search and other decoding with tiny models against transformers: a test on committed texts and scores. The
# figure is the number of texts and the largest difference of a score.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --release --package model-center --test it -- generate::
