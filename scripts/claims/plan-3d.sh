#!/usr/bin/env bash
# Every rank's planned memory in thirty layouts of tensor, sequence, pipeline and data parallelism against the pools of
# real runs of small models on rank threads. The figure is the largest excess and the largest shortfall of a planned
# peak, in percent of the measured one.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --release --package model-center --test it -- plan_layouts::planned_peaks
