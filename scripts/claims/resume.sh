#!/usr/bin/env bash
# A run killed at 20 random moments in every dtype, stopped by signals, moved to other numbers of ranks: the repeated
# and the following steps have the bits of the unbroken run. The figure is tests passed / all.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --package bmtrain-dist --package bmtrain-programs --test it -- snapshot:: resume:: kills::
