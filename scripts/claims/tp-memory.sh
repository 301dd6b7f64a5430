#!/usr/bin/env bash
# Parameters, gradients and optimizer state of every rank in eight layouts against what the split of the parameters, the
# stages and ZeRO predict. The figure is the largest ratio.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests_verdict --release --package model-center --test it -- plan_layouts::sharding:: tensor_parallel::memory_of_a_rank
