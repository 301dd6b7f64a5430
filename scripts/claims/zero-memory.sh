#!/usr/bin/env bash
# What a rank holds under ZeRO-3: tests that ask the rank's pool and its communicator. The figure is the largest share
# of the bound that was used.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --release --package bmtrain-dist --test it -- zero_memory::
