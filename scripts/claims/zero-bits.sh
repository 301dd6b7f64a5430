#!/usr/bin/env bash
# The same training bit for bit however it is shared: tests that compare losses, norms and fingerprints. The figure is
# tests passed / all.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --release --package bmtrain-dist --test it -- zero::
