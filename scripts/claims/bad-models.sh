#!/usr/bin/env bash
# A damaged, inconsistent or malicious model directory or file ends in one readable error of every program that opens
# it.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --package bmtrain-programs --test it -- bad_input::models::
