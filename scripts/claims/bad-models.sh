#!/usr/bin/env bash
# A model directory or file that is damaged, lies or means harm ends in one readable error of every program that opens
# it.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --package bmtrain-examples --test it -- bad_input::models::
