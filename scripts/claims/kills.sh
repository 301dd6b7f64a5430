#!/usr/bin/env bash
# Rank processes killed at every named place of a save, commit and prune, and at 20 random moments, resume unattended to
# the same bits. The figure is what the test counted.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --package bmtrain-programs --test it -- kills::a_rank_killed_at_any_named_place_or_moment_costs_nothing
