#!/usr/bin/env bash
# Every mistake in a recipe, a file or a directory is one readable error with place, reason and fix.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --package bmtrain-programs --test it -- bad_input::
