#!/usr/bin/env bash
# Checkpoints of every layout of ranks, read by every other one. The figure is tests passed / all.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --release --package model-center --test it -- tensor_parallel::checkpoints
