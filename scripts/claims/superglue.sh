#!/usr/bin/env bash
# The predecessor's tasks run from files to metrics, on BERT, GPT-2, T5 and the CPMs, alike on any number of ranks.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --package bmtrain-programs --test it -- superglue::
