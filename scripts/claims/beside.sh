#!/usr/bin/env bash
# Files beside a checkpoint that were changed while a run was stopped are refused, or change no bit of it.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --package bmtrain-programs --test it -- --ignored resume::changes::
