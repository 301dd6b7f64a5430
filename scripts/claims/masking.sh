#!/usr/bin/env bash
# Masked language modelling over a million tokens: how many are predicted, and which of them are masked, kept and
# replaced. The figure is these shares.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --release --package model-center --test it -- pretraining::masking::
